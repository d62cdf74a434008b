from orchestrator.report.cell_plots import cell_rows, with_times
from orchestrator.report.facts import provenance
from orchestrator.report.page import plots_of
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.report import demo


def test_facts_of_ranks_replace_those_of_the_driver() -> None:
    trials, _ = collect(demo.records()[:3], scaling="weak")
    driver = {"host": "where the driver was", "commit": "0123", "command": "x", "packages": {"ray": "2.60.0"}}
    facts = provenance(demo.end(trials, driver=driver))
    by_name = dict(facts)
    assert len(by_name) == len(facts) and "command" not in by_name
    assert (by_name["host"], by_name["commit"], by_name["ray"]) == ("node-1", "0123", "2.60.0")


def test_counts_are_integers_if_some_trials_lack_them() -> None:
    trials, _ = collect(demo.records(), scaling="weak")  # of which one never ran
    assert dict(provenance(demo.end(trials)))["cpu cores"] == "64"


def test_a_sweep_without_a_started_trial_has_plots() -> None:
    ends = [demo.replaced(record, status=Status.INFEASIBLE, metrics={}, provenance={}) for record in demo.records()]
    trials, cells = collect(ends, scaling="weak")
    assert cells["device"].dropna().empty
    rows = cell_rows(with_times(cells, trials), demo.NOT_MADE)
    plots = plots_of(demo.end(trials, cells, driver=demo.DRIVER), rows)
    assert all(plot.absent for plot in plots if plot.name == "memory")
