import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.report.cell_plots import cell_rows, with_times
from orchestrator.report.files import plots_of
from orchestrator.report.markdown import ReportData, document, provenance, trained
from orchestrator.store.results import Finding
from sweeps.status import Status
from tests.unit.orchestrator.report import demo


def test_sections_are_in_order_and_hostile_text_is_escaped() -> None:
    trials, cells = collect(demo.records(sweep="demo <script>")[::9], scaling="weak")
    damage = Finding(where="trials/x", what="a <b> | c")
    data = ReportData(trials=trials, cells=cells, driver=demo.DRIVER, findings=[damage])
    text = document(
        data, plots_of(data, cell_rows(with_times(cells, trials), None), []), "# Recommendation: demo\n\n**Use it.**\n"
    )
    titles = [line for line in text.splitlines() if line.startswith(("# ", "## "))]
    order = (
        "Recommendation: demo",
        "Damaged",
        "Speed-up of more",
        "Not drawn",
        "Speed-up: demo &lt;",
        "Accuracy: demo &lt;",
    )
    places = [next(i for i, line in enumerate(titles) if line.startswith(f"## {title}")) for title in order]
    assert places == sorted(places) and titles[0] == "# Sweep report: demo &lt;script>"
    assert "- trials/x: a &lt;b> \\| c" in text and "![Speed-up of more GPUs](report/speedup.png)" in text
    assert "| commit | 0123456789abcdef0123456789abcdef01234567 |" in text
    assert "- Power: " in text.partition("## Not drawn")[2] and "- 8×512 none: oom" in text


def test_facts_of_ranks_replace_those_of_the_driver():
    trials, _ = collect(demo.records()[:3], scaling="weak")
    facts = provenance(trials, {"host": "where the driver was", "commit": "0123", "packages": {"ray": "2.60.0"}})
    told = dict(facts)
    assert len(told) == len(facts) and (told["host"], told["commit"], told["ray"]) == ("node-1", "0123", "2.60.0")


def test_counts_are_integers_if_some_trials_lack_them():
    trials, _ = collect(demo.records(), scaling="weak")  # of which one never ran
    assert dict(provenance(trials, {}))["cpu cores"] == "64"


def test_a_sweep_without_a_started_trial_has_plots():
    ends = [demo.replaced(record, status=Status.INFEASIBLE, metrics={}, provenance={}) for record in demo.records()]
    trials, cells = collect(ends, scaling="weak")
    assert cells["device"].dropna().empty
    plots = plots_of(
        ReportData(trials=trials, cells=cells, driver=demo.DRIVER), cell_rows(with_times(cells, trials), None), []
    )
    assert all(plot.absent for plot in plots if plot.name == "memory")


@pytest.mark.parametrize(
    ("config", "axes", "what"),
    [
        ({}, [], "mlp on digits, 10 epochs"),
        ({}, ["model"], "digits, 10 epochs"),
        ({}, ["budget.epochs"], "mlp on digits"),
        ({"budget": {"epochs": None, "seconds": 1}}, [], "mlp on digits, 1 second"),
        ({"trainable": {"_target_": "mine:train"}}, [], "mine:train, 10 epochs"),
        ({"trainable": {"argv": ["python", "train.py"]}}, [], "python train.py, 10 epochs"),
    ],
)
def test_trained_names_what_all_trials_share(config: dict, axes: list[str], what: str) -> None:
    shipped = {
        "trainable": {"_target_": "trainables.supervised.training:train"},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "budget": {"epochs": 10},
    }
    trials = pd.DataFrame(columns=[f"axes.{axis}" for axis in axes])
    assert trained(trials, {"config": shipped | config}) == what


def test_trained_is_empty_without_a_config() -> None:
    assert trained(pd.DataFrame(), {}) == ""
