"""The plan, its printout, and the share of a GPU that packed trials hold."""

import errno
import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.plan import plan as planning
from orchestrator.plan import printout
from orchestrator.plan.plan import GpuFractions, Plan
from orchestrator.plan.printout import rows
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.queue import SweepBudget, TrialQueue
from orchestrator.store.history import History
from orchestrator.store.record import Kind, Record, TrialOutcome, TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from sweeps.errors import ConfigError
from sweeps.probe import probe_of
from sweeps.status import Status
from tests.contract.trials import trial
from tests.unit.orchestrator.plan.planned import NODES, TRIALS, ended, plan
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request
from tests.unit.sweeps.setups import expanded, setup


def test_trials_that_do_not_fit_are_infeasible():
    planned = plan()
    assert [trial.gpus for trial in planned.to_run] == [1, 1]
    assert set(planned.infeasible) == {trial.trial_id for trial in TRIALS if trial.gpus == 4}


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
def test_rerun_selects_by_status(status, rerun, again):
    trial = TRIALS[0]
    assert (trial in plan(ended(trial, status), rerun=rerun).to_run) is again


def test_named_trials_run_again_with_any_status():
    mine, other = TRIALS[:2]
    for status in (Status.OK, Status.FAILED, Status.OOM):
        planned = plan(ended(mine, status), ended(other, status), rerun=[mine.trial_id[:8]])
        assert (planned.to_run, set(planned.finished), planned.named) == ([mine], {other.trial_id}, {mine.trial_id})
        assert planned.again == {mine.trial_id: 1}
        for attempt, waits in ((1, {mine.trial_id}), (2, set())):
            assert planned.not_run_again({mine.trial_id: replace(ended(mine, status), attempt=attempt)}) == waits


def test_skipped_and_infeasible_trials_do_not_count_as_rerun():
    early = replace(ended(TRIALS[0], Status.SKIPPED), skipped_by="early_stop")
    unfit = ended(TRIALS[1], Status.INFEASIBLE)
    assert not plan(early, unfit).again and not plan(early, unfit, rerun="all").again


def test_records_of_other_trials_do_not_count():
    stranger = replace(ended(TRIALS[0]), trial_id="stranger")
    assert not plan(stranger).finished


def test_durations_come_from_the_same_cell():
    first, second = (trial for trial in TRIALS if trial.gpus == 1)
    planned = plan(ended(first, wall_s=7200))
    assert planned.durations.expected_s(second) == 7200
    assert (planned.timetable.gpu_hours, planned.timetable.unknown, planned.timetable.makespan_s) == (2.0, 0, 7200)
    assert (plan().timetable.gpu_hours, plan().timetable.unknown, plan().timetable.makespan_s) == (0, 2, None)


def test_trials_skipped_by_a_budget_run_again():
    record = replace(ended(TRIALS[0], Status.SKIPPED), skipped_by="budget")
    assert TRIALS[0] in plan(record).to_run


def test_timetable_turns_around_at_every_seed():
    planned = Plan.of(expanded({"device_batch_size": [8, 16, 32], "seed": [0, 1]}), {}, NODES)
    order = [(place.trial.seed, place.trial.batch.device_batch_size) for place in planned.timetable.schedule]
    assert order == [(0, 8), (0, 16), (0, 32), (1, 32), (1, 16), (1, 8)]


@pytest.mark.parametrize(
    ("limits", "starting"), [({"wall_s": 61}, "2"), ({"gpu_hours": 0.01}, "1"), ({"wall_s": 1e9}, None), ({}, None)]
)
def test_a_budget_that_is_too_small_is_told(limits, starting):
    grid = expanded({"gpus": [1], "device_batch_size": [8, 16, 32], "seed": [0, 1]})
    planned = Plan.of(grid, {grid[0].trial_id: ended(grid[0], wall_s=60)}, NODES)
    told = re.findall(r"(\d+) of 5 trials", printout.budget_line(planned, SweepBudget(**limits)))
    assert told == ([starting] if starting else [])


def test_trials_that_run_side_by_side_spend_a_budget_together():
    grid = expanded(
        {"gpus": [1], "device_batch_size": [8], "seed": [0, 1, 2, 3]}, setup(device="cuda", timing="device")
    )
    nodes = [Node(name="host", cpus=8, gpus=2)]
    planned = Plan.of(grid, {grid[0].trial_id: ended(grid[0], wall_s=3600)}, nodes)
    assert [stay.start_s for stay in planned.timetable.schedule] == [0, 0, 3600]
    assert "2 of 3 trials" in printout.budget_line(planned, SweepBudget(gpu_hours=1))
    assert printout.budget_line(planned, SweepBudget(gpu_hours=2.1)).endswith("gpu_hours=2.1: all trials start")
    assert printout.budget_line(planned, SweepBudget()) == ""


def test_rows_are_in_starting_order():
    first, second = (trial for trial in TRIALS if trial.gpus == 1)
    rows = printout.rows(plan(ended(first, wall_s=60)))
    assert [(row["order"], row["start_s"], row["nodes"]) for row in rows[:2]] == [(1, 0.0, ["host"]), (None, None, [])]
    assert rows[0]["trial_id"] == second.trial_id and rows[-1]["state"] == "finished: ok"


def test_json_has_counts_costs_and_trials():
    told = json.loads(printout.as_json(plan(ended(TRIALS[0])), price_per_gpu_hour=2))
    assert [row["state"] for row in told["trials"]].count("finished: ok") == 1
    assert (told["to_run"], told["finished"], told["infeasible"]) == (1, 1, 2)
    assert told["expected_cost"] == pytest.approx(2 * 3 / 3600)
    assert {"trial_id", "state", "axes", "gpus", "global_batch_size", "lr", "expected_s", "note"} <= set(
        told["trials"][0]
    )


def test_text_leaves_out_empty_columns():
    heading, _, *rows = printout.as_text(plan(), None).splitlines()[:4]
    # The rate, the batch per device and the seeds are the same in all cells.
    assert heading.split() == ["state", "gpus", "global_batch_size"]
    assert len(rows) == 2 and all(len(row) == len(heading) for row in rows)
    heading = printout.as_text(plan(ended(TRIALS[0], Status.OOM)), None).splitlines()[0]
    assert heading.split()[-1:] == ["note"]
    heading, _, *rows = printout.as_text(plan(ended(TRIALS[0])), None).splitlines()
    assert heading.split()[-2:] == ["start_s", "expected_s"]
    assert heading.split()[:2] == ["state", "trial"] and any(TRIALS[0].trial_id[:8] in row for row in rows)
    assert printout.as_text(plan(ended(TRIALS[0]), rerun="all"), None).split()[:2] == ["state", "trial"]


@pytest.mark.parametrize("address", ["auto", None])
def test_plan_does_not_wait_for_nodes(monkeypatch, address):
    waited = []
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")  # as good as an address of the config
    monkeypatch.setattr(planning, "check_reachable", lambda request: None)
    monkeypatch.setattr(planning, "make_backend", lambda request: SimpleNamespace(nodes=lambda: NODES, close=list))
    monkeypatch.setattr(
        planning, "first_nodes", lambda backend, asked, wait_s: waited.append(wait_s) or backend.nodes()
    )
    assert planning._nodes(request(backend="ray", address=address, wait_s=600.0)) == NODES and waited == [0.0]


def test_unreadable_results_dir_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "_nodes", lambda request: NODES)
    asked = SimpleNamespace(results_dir=tmp_path / ("long" * 100))
    with pytest.raises(ConfigError, match=rf"long .*: {os.strerror(errno.ENAMETOOLONG)}"):
        planning.plan_now(SimpleNamespace(request=asked))


def packed(gpus=0.25, batch=32, **changes):
    one = trial("one", "", timing="shared", trainable={"probe": {"budget": {"steps": 10}}})
    axes = {"gpus": gpus, "device_batch_size": batch, "model": "cnn", "seed": 3}
    shape = replace(one.gang, gpus_per_rank=gpus)
    shares = replace(one.batch, global_batch_size=batch, shares=(batch,))
    return replace(one, device="cuda", gpus=gpus, gang=shape, batch=shares, axes=axes, **changes)


def took(gb, batch=32, gpus=1.0, model="cnn", **fields):
    metrics = {} if gb is None else {"reserved_memory_gb": gb, "device_memory_gb": 80.0}
    return record_of(gpus, batch=batch, axes={"model": model}, metrics=metrics, **fields)


def held(ends, asked, probes=()):
    return GpuFractions.of(ends, probes).placed(asked).gang.gpus_per_rank


@pytest.mark.parametrize(("gb", "share"), [(2.0, 0.25), (30.0, 0.45), (79.0, 1.0), (None, 0.25)])
def test_packed_trial_holds_the_larger_of_request_and_need(gb, share):
    assert held([took(gb)], packed()) == share  # a trainable that does not tell is believed


def test_packed_trial_holds_a_whole_gpu_until_measured():
    assert held([], packed()) == 1.0
    assert held([took(2.0, batch=64), took(2.0, model="mlp")], packed()) == 1.0
    assert held([took(None, status=Status.SKIPPED, skipped_by="budget")], packed()) == 1.0
    assert held([took(None, status=Status.OOM), took(2.0)], packed()) == 1.0


def test_largest_measured_need_counts():
    asked = packed()
    key = "(32, [('model', 'cnn')])"
    probe = {"size": key, "status": "ok", "reserved_memory_gb": 40.0, "device_memory_gb": 80.0}
    ends = [took(30.0), took(None), took(20.0, gpus=2.0)]
    assert held(ends, asked) == 0.45 and held(ends, asked, [probe]) == 0.6
    assert GpuFractions.of(ends).unknown([asked, packed(batch=64), packed(batch=64)]) == [packed(batch=64)]


def test_probes_and_timed_trials_are_not_packed():
    known = [took(2.0)]
    assert held(known, probe_of(packed())) == 1.0
    assert held([], replace(packed(), timing="device")) == 0.25 and held([], packed(gpus=1.0)) == 1.0
    assert not GpuFractions.of([]).unknown([replace(packed(), device="cpu")])


def test_gpu_hours_count_held_gpus():
    """A packed trial costs what its memory keeps from others, a timed part of a GPU all of it."""
    known = GpuFractions.of([took(30.0)])
    assert known.foreseen(packed()).gpus_held == 0.45 and known.foreseen(packed(batch=64)).gpus_held == 0.25
    assert replace(packed(), timing="device").gpus_held == 1.0
    assert replace(packed(), device="cpu").gpus_held == 0.25
    pair = replace(packed().gang, ranks=2, gpus_per_rank=2.0)
    assert replace(packed(), gpus=4, timing="device", gang=pair).gpus_held == 4.0


def test_budget_and_forecast_count_held_gpus():
    placed = GpuFractions.of([took(30.0)]).placed(packed())
    trial_queue = TrialQueue([placed])
    trial_queue.set_nodes([Node(name="a", cpus=8, gpus=1)], 0.0)
    assert trial_queue.next(0.0) is not None and trial_queue.gpu_s(100.0) == 45.0
    end = TrialRecord.of(placed, TrialOutcome(wall_s=100.0), attempt=1, finished_at="")
    probed = Record(kind=Kind.PROBED, value={"gpus": 0.25, "gpus_held": 1.0, "wall_s": 10.0})
    assert History([Record(kind=Kind.FINISHED, value=end.to_json()), probed]).spent_gpu_s == 45.0 + 10.0
    again = replace(packed(), trial_id="another", seed=4)
    plan = Plan.of([again], {end.trial_id: end}, [Node(name="a", cpus=8, gpus=1)])
    assert rows(plan)[0]["gpus_held"] == 0.25  # nothing told of its memory
    told = replace(end, metrics={"reserved_memory_gb": 30.0, "device_memory_gb": 80.0})
    plan = Plan.of([again], {end.trial_id: told}, [Node(name="a", cpus=8, gpus=1)])
    assert rows(plan)[0]["gpus_held"] == 0.45 and plan.timetable.gpu_hours == pytest.approx(0.45 * 100 / 3600)


def test_a_finished_base_runs_again_only_for_branches_without_its_checkpoint(tmp_path):
    base, *others = (replace(TRIALS[0], trial_id=f"aaaa{index}", seed=index) for index in range(3))
    branches = [
        replace(trial, config={"trainable": {"branch_base": "aaaa0", "branch_tokens": 8 * index}})
        for index, trial in enumerate(others, 1)
    ]
    asked = request(results_dir=str(tmp_path))
    ResultsFolder(asked.results_dir).branch_point("aaaa0", 8).mkdir(parents=True)

    def runs(*finished, rerun="none"):
        records = {trial.trial_id: ended(trial) for trial in finished}
        sweep = SimpleNamespace(request=request(asked, rerun=rerun), trials=lambda nodes: [base, *branches])
        planned = Plan.of_sweep(sweep, records, NODES)
        return sorted(trial.trial_id for trial in planned.to_run), sorted(planned.again)

    assert runs() == (["aaaa0", "aaaa1", "aaaa2"], [])
    assert runs(base, branches[1]) == (["aaaa1"], [])
    assert runs(base, branches[0]) == (["aaaa0", "aaaa2"], ["aaaa0"])
    assert runs(base, *branches) == ([], [])
    assert runs(base, *branches, rerun=["aaaa2"]) == (["aaaa0", "aaaa2"], ["aaaa0", "aaaa2"])
