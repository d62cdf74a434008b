import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.plan import plan as planning
from orchestrator.plan import printout
from orchestrator.plan.plan import Plan
from sweeps.mistakes import MistakesError
from sweeps.rerun import Rerun
from sweeps.status import Status
from tests.unit.orchestrator.plan.planned import NODES, TRIALS, ended
from tests.unit.orchestrator.requests import request


def plan(*ends, rerun="none"):
    return Plan.of(TRIALS, {record.trial_id: record for record in ends}, NODES, Rerun.of(rerun))


def test_what_does_not_fit_is_infeasible_and_the_rest_runs():
    found = plan()
    assert [trial.gpus for trial in found.to_run] == [1, 1]
    assert set(found.infeasible) == {trial.trial_id for trial in TRIALS if trial.gpus == 4}


@pytest.mark.parametrize(
    ("status", "rerun", "again"),
    [
        (Status.OK, "none", False),
        (Status.FAILED, "none", False),
        (Status.FAILED, "failed", True),
        (Status.OOM, "failed", False),
        (Status.SKIPPED, "failed", True),
        (Status.OK, "all", True),
        (Status.INFEASIBLE, "none", True),
    ],
)
def test_what_is_run_again(status, rerun, again):
    trial = TRIALS[0]
    assert (trial in plan(ended(trial, status), rerun=rerun).to_run) is again


def test_only_what_somebody_points_at_runs_again_whatever_became_of_it():
    mine, other = TRIALS[:2]
    for status in (Status.OK, Status.FAILED, Status.OOM):
        found = plan(ended(mine, status), ended(other, status), rerun=[mine.trial_id[:8]])
        assert (found.to_run, set(found.finished), found.named) == ([mine], {other.trial_id}, {mine.trial_id})
        assert found.again == {mine.trial_id: 1}
        for attempt, waits in ((1, {mine.trial_id}), (2, set())):
            assert found.not_run_again({mine.trial_id: replace(ended(mine, status), attempt=attempt)}) == waits


def test_what_a_rule_left_out_or_did_not_fit_runs_without_anybody_asking_for_it_again():
    early = replace(ended(TRIALS[0], Status.SKIPPED), skipped_by="early_stop")
    unfit = ended(TRIALS[1], Status.INFEASIBLE)
    assert not plan(early, unfit).again and not plan(early, unfit, rerun="all").again


def test_records_of_other_trials_do_not_count():
    stranger = replace(ended(TRIALS[0]), trial_id="stranger")
    assert not plan(stranger).finished


def test_durations_are_known_from_the_same_cell_and_else_unknown():
    first, second = (trial for trial in TRIALS if trial.gpus == 1)
    found = plan(ended(first, wall_s=7200))
    assert found.expected_s(second) == 7200
    assert (found.forecast.gpu_hours, found.forecast.unknown, found.forecast.makespan_s) == (2.0, 0, 7200)
    assert (plan().forecast.gpu_hours, plan().forecast.unknown, plan().forecast.makespan_s) == (0, 2, None)


def test_what_a_budget_left_out_is_run_again():
    record = replace(ended(TRIALS[0], Status.SKIPPED), skipped_by="budget")
    assert TRIALS[0] in plan(record).to_run


def test_rows_come_in_the_order_of_their_starts_with_their_times():
    first, second = (trial for trial in TRIALS if trial.gpus == 1)
    rows = printout.rows(plan(ended(first, wall_s=60)))
    assert [(row["order"], row["start_s"], row["nodes"]) for row in rows[:2]] == [(1, 0.0, ["host"]), (None, None, [])]
    assert rows[0]["trial_id"] == second.trial_id and rows[-1]["state"] == "finished: ok"


def test_as_json_it_is_one_object_with_its_trials():
    told = json.loads(printout.as_json(plan(ended(TRIALS[0])), price_per_gpu_hour=2))
    assert [row["state"] for row in told["trials"]].count("finished: ok") == 1
    assert (told["to_run"], told["finished"], told["infeasible"]) == (1, 1, 2)
    assert told["expected_cost"] == pytest.approx(2 * 3 / 3600)
    assert {"trial_id", "state", "axes", "gpus", "global_batch_size", "lr", "expected_s", "note"} <= set(
        told["trials"][0]
    )


def test_as_text_it_ends_with_what_it_comes_to():
    assert printout.as_text(plan(), None, ["mind this"]).splitlines()[-5:] == [
        "2 trials to run, 0 finished, 2 infeasible",
        "2 infeasible: needs 4 ranks of 1 CPU; there is room for 2 (host: 2 CPUs, 0 GPUs)",
        "on host: 2 CPUs, no GPU",
        "expected duration: unknown until the first trials have run",
        "note: mind this",
    ]
    first = next(trial for trial in TRIALS if trial.gpus == 1)
    assert printout.as_text(plan(ended(first, wall_s=7200)), 1.5).splitlines()[-1] == (
        "expected duration: 2:00:00; 2.00 worker-hours, cost 3.00"
    )


def test_as_text_it_has_only_columns_that_say_something():
    heading, _, *rows = printout.as_text(plan(), None).splitlines()[:6]
    assert heading.split() == ["state", "gpus", "device_batch_size", "seed", "global_batch_size", "lr"]
    assert len(rows) == 4 and all(len(row) == len(heading) for row in rows)
    heading = printout.as_text(plan(ended(TRIALS[0], Status.OOM)), None).splitlines()[0]
    assert heading.split()[-1:] == ["note"]
    heading, _, *rows = printout.as_text(plan(ended(TRIALS[0])), None).splitlines()
    assert heading.split()[-2:] == ["start_s", "expected_s"]
    assert heading.split()[:2] == ["state", "trial"] and any(TRIALS[0].trial_id[:8] in row for row in rows)
    assert printout.as_text(plan(ended(TRIALS[0]), rerun="all"), None).split()[:2] == ["state", "trial"]


@pytest.mark.parametrize("address", ["auto", None])
def test_a_plan_asks_the_cluster_and_waits_for_no_nodes_that_only_a_sweep_asks_for(monkeypatch, address):
    waited = []
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")  # as good as an address of the config
    monkeypatch.setattr(planning, "check_reachable", lambda request: None)
    monkeypatch.setattr(planning, "make_backend", lambda request: SimpleNamespace(nodes=lambda: NODES, close=list))
    monkeypatch.setattr(planning, "arrived", lambda nodes, cluster: waited.append(cluster.wait_s) or nodes())
    assert planning._nodes(request(backend="ray", address=address, wait_s=600.0)) == NODES and waited == [0.0]


def test_a_plan_for_a_folder_that_cannot_be_looked_for_is_a_mistake(monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "_nodes", lambda request: NODES)
    asked = SimpleNamespace(results_dir=tmp_path / ("long" * 100))
    with pytest.raises(MistakesError, match=r"long cannot be read: File name too long"):
        planning.plan_now(asked, {}, lambda nodes: TRIALS)
