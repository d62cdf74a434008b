import dataclasses
from dataclasses import replace

import pytest

from orchestrator.schedule.cluster import Node
from orchestrator.schedule.queue import (
    EMPTY_CLUSTER_S,
    REVISIONS,
    Patience,
    SweepBudget,
    SystematicFailures,
    TrialQueue,
)
from orchestrator.schedule.scheduler import Scheduler
from orchestrator.store.history import Durations
from orchestrator.store.record import TrialOutcome
from sweeps.rank_exit import Cause
from sweeps.status import Status
from sweeps.trial import Purpose
from tests.contract.trials import trial

ONE = Node(name="a", cpus=2, gpus=0)
TWO = Node(name="b", cpus=2, gpus=0)


def trials(count, ranks=1):
    return [trial(str(number), "quick", ranks=ranks) for number in range(count)]


def on(trial_queue, *nodes, now_s=0.0):
    trial_queue.set_nodes(nodes, now_s)
    return trial_queue


def ids(left_out):
    return [(spec.trial_id, outcome.status) for spec, outcome in left_out]


def test_trials_start_as_others_end():
    trial_queue = on(TrialQueue(trials(2)), ONE)
    assert trial_queue.next(0.0).trial.trial_id == "0" and trial_queue.next(0.0) is None and len(trial_queue) == 1
    trial_queue.ended("0", 5.0, TrialOutcome(wall_s=5.0))
    assert trial_queue.next(5.0).trial.trial_id == "1" and len(trial_queue) == 0 and not trial_queue.left_out


@pytest.mark.parametrize(
    ("limit", "spent_gpu_s", "note"),
    [
        (SweepBudget(gpu_hours=1.0), 3595.0, "sweep.budget.gpu_hours=1 was used up"),
        (SweepBudget(wall_s=5.0), 0.0, "sweep.budget.wall_s=5 was used up"),
        (SweepBudget(cost=3.0, price_per_gpu_hour=3.0), 3595.0, "sweep.budget.cost=3 was used up"),
    ],
)
def test_no_trial_starts_once_a_budget_is_used_up(limit, spent_gpu_s, note):
    trial_queue = on(TrialQueue(trials(3), budget=replace(limit, used_gpu_s=spent_gpu_s)), ONE)
    assert trial_queue.next(0.0) is not None
    trial_queue.ended("0", 5.0, TrialOutcome(wall_s=5.0))
    assert trial_queue.next(5.0) is None and len(trial_queue) == 0
    assert [(outcome.status, outcome.note, outcome.skipped_by) for _, outcome in trial_queue.left_out] == [
        (Status.SKIPPED, note, "budget")
    ] * 2


def test_seconds_before_the_queue_count_for_the_budget():
    """The driver's own, before its first trial, and those of rounds before."""
    trial_queue = on(TrialQueue(trials(2), budget=SweepBudget(wall_s=10.0, began_s=94.0)), ONE, now_s=100.0)
    assert trial_queue.next(103.9) is not None
    trial_queue.ended("0", 104.0, TrialOutcome(wall_s=0.1))
    assert trial_queue.next(104.0) is None and ids(trial_queue.left_out) == [("1", Status.SKIPPED)]


def test_probe_is_no_estimate_of_a_trials_duration():
    whole = trial("whole", "quick")
    probe = dataclasses.replace(whole, trial_id="probe", purpose=Purpose.PROBE, measures="whole")
    trial_queue = on(TrialQueue([probe, whole]), ONE)
    for name, timed in (("probe", False), ("whole", True)):
        assert trial_queue.next(0.0).trial.trial_id == name
        trial_queue.ended(name, 1.0, TrialOutcome(wall_s=1.0))
        assert trial_queue.is_timed(probe) is trial_queue.is_timed(whole) is timed


def test_running_trials_count_for_the_budget():
    trial_queue = on(TrialQueue([trial("pair", "quick", ranks=2), trial("next", "quick")]), ONE)
    assert trial_queue.next(0.0) is not None
    assert trial_queue.gpu_s(10.0) == 20.0


def test_trial_without_nodes_waits_wait_s():
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=Patience(wait_s=10.0)), ONE)
    assert trial_queue.next(0.0) is None and len(trial_queue) == 1
    assert len(on(trial_queue, ONE, now_s=9.0)) == 1
    assert len(on(trial_queue, ONE, now_s=10.0)) == 0
    ((_, outcome),) = trial_queue.left_out
    assert outcome.status is Status.INFEASIBLE and outcome.note.endswith("cluster.wait_s=10")
    ((_, at_once),) = on(TrialQueue(trials(1, ranks=3)), ONE).left_out
    assert "wait_s" not in at_once.note


def test_trial_starts_when_its_nodes_have_come():
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=Patience(wait_s=10.0)), ONE)
    start = on(trial_queue, ONE, TWO, now_s=9.0).next(9.0)
    assert {node.name for node in start.nodes} == {"a", "b"}


def test_exclusive_trial_uses_the_largest_kept_gang():
    trial_queue = on(TrialQueue([trial("pair", "quick", ranks=2), trial("one", "quick")]), ONE)
    for name in ("pair", "one"):
        start = trial_queue.next(0.0)
        assert start.trial.trial_id == name and trial_queue.kept_gang(start).ranks == 2
        trial_queue.ended(name, 1.0)


def test_durations_of_ended_trials_set_the_order():
    cells = {name: trial(name, "quick", timing="shared") for name in ("short", "long")}
    repeats = [
        dataclasses.replace(cell, trial_id=f"{name} {seed}", seed=seed)
        for seed in range(2)
        for name, cell in cells.items()
    ]
    trial_queue = on(TrialQueue(repeats), Node(name="a", cpus=1, gpus=0))
    for name, seconds in (("short 0", 2.0), ("long 0", 7.0)):
        assert trial_queue.next(0.0).trial.trial_id == name
        trial_queue.ended(name, seconds, TrialOutcome(wall_s=seconds))
    assert [trial_queue.is_timed(spec) for spec in repeats] == [True] * 4
    assert trial_queue.next(9.0).trial.trial_id == "long 1"


def test_without_nodes_trials_are_left_without_an_end():
    head = Node(name="head", cpus=0, gpus=0)
    trial_queue = on(TrialQueue(trials(1)), head)
    assert trial_queue.next(0.0) is None and not trial_queue.over
    on(trial_queue, now_s=EMPTY_CLUSTER_S - 1)
    assert not trial_queue.no_nodes and len(trial_queue) == 1
    on(trial_queue, head, now_s=EMPTY_CLUSTER_S)
    assert trial_queue.next(EMPTY_CLUSTER_S) is None and trial_queue.no_nodes and trial_queue.over
    assert len(trial_queue) == 1 and not trial_queue.left_out


def test_node_that_returns_within_wait_s_is_used():
    trial_queue = on(TrialQueue(trials(1), patience=Patience(wait_s=100.0)), ONE)
    on(trial_queue, now_s=99.0)
    assert trial_queue.next(99.0) is None and not trial_queue.over
    assert on(trial_queue, TWO, now_s=99.5).next(99.5) is not None


def test_running_trials_end_before_the_queue_is_over():
    trial_queue = on(TrialQueue(trials(2)), ONE, now_s=0.0)
    trial_queue.next(0.0)
    on(trial_queue, now_s=EMPTY_CLUSTER_S)
    assert trial_queue.next(EMPTY_CLUSTER_S) is None and not trial_queue.over
    trial_queue.ended("0", EMPTY_CLUSTER_S)
    assert trial_queue.next(EMPTY_CLUSTER_S) is None and trial_queue.over


def sizes(footprints):
    return [footprint.gang.ranks for footprint in footprints]


def test_nodes_are_requested_only_if_trials_may_wait():
    mixed = [trial("pair", "quick", ranks=2), trial("four", "quick", ranks=4), trial("next", "quick", ranks=2)]
    assert on(TrialQueue(mixed), ONE).wanted(0.0) == []
    trial_queue = on(TrialQueue(mixed, patience=Patience(wait_s=60.0)), ONE)
    assert trial_queue.next(0.0).trial.trial_id == "pair" and trial_queue.next(0.0) is None
    assert sorted(sizes(trial_queue.wanted(0.0))) == [2, 4]  # one fits no node, another waits for the first
    assert trial_queue.needs_gangs
    on(trial_queue, ONE, TWO, now_s=1.0)
    assert trial_queue.needs_gangs and sorted(sizes(trial_queue.wanted(1.0))) == [2, 4]


def test_short_rest_requests_nodes_only_for_unplaced_trials():
    durations = Durations()
    mixed = [*trials(3, ranks=2), trial("four", "quick", ranks=4)]
    for spec in mixed:
        durations.add(spec.cell_id, spec.axes, 10.0)
    trial_queue = on(TrialQueue(mixed, patience=Patience(wait_s=60.0), durations=durations), ONE)
    assert trial_queue.next(0.0) is not None
    assert sizes(trial_queue.wanted(0.0)) == [4]
    for spec in mixed:
        durations.add(spec.cell_id, spec.axes, 1000.0)
    long = on(TrialQueue(mixed, patience=Patience(wait_s=60.0), durations=durations), ONE)
    assert long.next(0.0) is not None and sorted(sizes(long.wanted(0.0))) == [2, 2, 4]


def test_idle_gangs_are_needed_only_by_trials_that_fit():
    trial_queue = on(
        TrialQueue([trial("pair", "quick", ranks=2), trial("four", "quick", ranks=4)], patience=Patience(wait_s=60.0)),
        ONE,
    )
    assert trial_queue.needs_gangs
    assert trial_queue.next(0.0).trial.trial_id == "pair"
    assert not trial_queue.needs_gangs and sizes(trial_queue.wanted(0.0)) == [4]


def test_given_up_trials_no_longer_count_as_waiting():
    large = [trial(f"large {number}", "quick", ranks=4) for number in range(3)]
    trial_queue = on(TrialQueue([*large, *trials(3)], patience=Patience(wait_s=10.0)), ONE)
    on(trial_queue, ONE, now_s=10.0)
    assert len(trial_queue.left_out) == 3 and trial_queue.next(10.0) is not None
    assert len(trial_queue) == 2 and trial_queue.needs_gangs


def test_wait_for_nodes_starts_when_nothing_runs():
    trial_queue = on(
        TrialQueue([trial("pair", "quick", ranks=2), trial("four", "quick", ranks=4)], patience=Patience(wait_s=10.0)),
        ONE,
    )
    assert trial_queue.next(0.0).trial.trial_id == "pair"
    assert len(on(trial_queue, ONE, now_s=50.0)) == 1
    trial_queue.ended("pair", 51.0, TrialOutcome(wall_s=51.0))
    assert len(on(trial_queue, ONE, now_s=59.0)) == 1 and len(on(trial_queue, ONE, now_s=60.0)) == 0
    assert ids(trial_queue.left_out) == [("four", Status.INFEASIBLE)]


def test_wait_goes_on_when_all_nodes_have_left():
    trial_queue = on(
        TrialQueue([trial("single", "quick"), trial("four", "quick", ranks=4)], patience=Patience(wait_s=120.0)), ONE
    )
    assert trial_queue.next(0.0).trial.trial_id == "single"
    on(trial_queue, ONE, now_s=5.0)
    trial_queue.ended("single", 10.0)
    on(trial_queue, ONE, now_s=10.0)
    on(trial_queue, now_s=20.0)  # an autoscaler lets what idles go
    on(trial_queue, now_s=124.0)
    assert trial_queue.next(124.0) is None and not trial_queue.left_out
    on(trial_queue, now_s=125.0)
    ((left, outcome),) = trial_queue.left_out
    assert left.trial_id == "four" and outcome.note.startswith("needs 4 ranks") and not trial_queue.no_nodes
    assert trial_queue.next(125.0) is None and trial_queue.over


def test_retry_comes_before_others_once_its_place_is_free():
    trial_queue = on(TrialQueue(trials(3)), ONE, TWO)
    first, second = trial_queue.next(0.0), trial_queue.next(0.0)
    survivor = next(node for node in (ONE, TWO) if node not in first.nodes)
    on(trial_queue, survivor, now_s=1.0)
    assert trial_queue.next(1.0) is None
    lost = TrialOutcome(cause=Cause.NODE, wall_s=1.0)
    trial_queue.ended(first.trial.trial_id, 1.0, lost, is_retried=True)
    assert trial_queue.next(1.0) is None
    trial_queue.ended(second.trial.trial_id, 2.0)
    assert trial_queue.next(2.0).trial is first.trial


def test_a_trial_whose_port_was_in_use_is_tried_again_alone():
    side_by_side = [replace(one, timing="shared") for one in trials(2)]
    trial_queue = on(TrialQueue(side_by_side), ONE)
    starts = [trial_queue.next(0.0), trial_queue.next(0.0)]
    assert [start.trial for start in starts] == side_by_side
    in_use = TrialOutcome(cause=Cause.PORT, wall_s=1.0)
    trial_queue.ended(starts[1].trial.trial_id, 1.0, in_use, is_retried=True)
    assert trial_queue.next(1.0) is None  # the other trial still has the port
    trial_queue.ended(starts[0].trial.trial_id, 2.0, TrialOutcome(wall_s=2.0))
    again = trial_queue.next(2.0)
    assert again.trial.trial_id == starts[1].trial.trial_id and again.trial.timing == "exclusive"


class Supply:
    """A supplier of these rounds, which notes what it is told."""

    def __init__(self, *rounds):
        self._rounds = list(rounds)
        self.left_out, self.ends = [], []

    def next(self, left_out):
        self.left_out += ids(left_out)
        return self._rounds.pop(0) if self._rounds else []

    def ended(self, trial, outcome):
        self.ends.append(trial.trial_id)


def test_queue_asks_its_supplier_when_nothing_runs_or_waits():
    supply = Supply([trial("homeless", "quick", ranks=9)], [trial("more", "quick")])
    trial_queue = on(TrialQueue(trials(1), supplier=supply), ONE)
    assert trial_queue.next(0.0).trial.trial_id == "0"
    assert trial_queue.next(1.0) is None and not trial_queue.over
    trial_queue.ended("0", 2.0, TrialOutcome(wall_s=1.0))
    assert trial_queue.needs_gangs and not trial_queue.over and supply.ends == ["0"]
    assert trial_queue.next(2.0).trial.trial_id == "more" and supply.left_out == [("homeless", Status.INFEASIBLE)]
    trial_queue.ended("more", 3.0)
    assert trial_queue.next(3.0) is None and trial_queue.over and supply.ends == ["0"]


def test_a_trial_may_change_as_it_starts():
    queued = TrialQueue(trials(1), as_started=lambda start: replace(start.trial, timing="shared"))
    assert on(queued, ONE).next(0.0).trial.timing == "shared"


def test_supplier_is_asked_again_once_a_budget_is_used_up():
    supply = Supply(trials(2)[1:])
    trial_queue = on(TrialQueue(trials(1), supplier=supply, budget=SweepBudget(wall_s=1.0)), ONE)
    assert trial_queue.next(2.0) is None and trial_queue.over
    assert supply.left_out == [("0", Status.SKIPPED), ("1", Status.SKIPPED)]


def test_queue_without_nodes_asks_for_no_trials():
    supply = Supply(trials(1))
    trial_queue = on(TrialQueue([], supplier=supply), ONE)
    on(trial_queue, now_s=EMPTY_CLUSTER_S)
    assert trial_queue.no_nodes and trial_queue.over and trial_queue.next(EMPTY_CLUSTER_S) is None
    assert len(trial_queue) == 0


def test_time_waited_before_the_plan_counts_for_its_trials_only():
    patience = Patience(wait_s=10.0, waited_s=10.0)
    supply = Supply([trial("late", "quick", ranks=5)])
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=patience, supplier=supply), ONE)
    assert ids(trial_queue.left_out) == [("0", Status.INFEASIBLE)]
    assert trial_queue.next(0.0) is None
    assert len(on(trial_queue, ONE, now_s=9.0)) == 1 and len(on(trial_queue, ONE, now_s=10.0)) == 0


def test_large_round_is_revised_a_limited_number_of_times(monkeypatch):
    made, revise = [], Scheduler.revise
    monkeypatch.setattr(Scheduler, "revise", lambda self: made.append(revise(self)))
    trial_queue = on(TrialQueue([trial("first", "quick")], supplier=Supply(trials(4 * REVISIONS))), ONE)
    for now_s in range(4 * REVISIONS + 1):
        trial_queue.ended(trial_queue.next(now_s).trial.trial_id, now_s, TrialOutcome(wall_s=1.0))
    assert trial_queue.next(now_s) is None and trial_queue.over
    assert 0.9 * REVISIONS < len(made) < 1.1 * REVISIONS


NODE = Node(name="a", cpus=1, gpus=0)
OK = TrialOutcome(wall_s=1.0)


def failed(note="ValueError: no such file", cause=Cause.ERROR):
    return TrialOutcome(cause=cause, note=note, wall_s=1.0)


def cell(batch, rule="none", seed=0):
    name = f"{batch}-{rule}"
    one = trial(f"{name}-{seed}", "quick")
    return replace(one, cell_id=name, seed=seed, axes={"gpus": 1, "batch": batch, "lr_rule": rule, "seed": seed})


GRID = [cell(batch, rule) for batch in (512, 256, 128, 64, 32) for rule in ("none", "linear")]


def failures_after(ends, cells=3):
    failures = SystematicFailures(cells)
    for one, outcome in ends:
        failures.ended(one, outcome)
    return failures


def run_all(outcome_of, trials=GRID, cells=3, rounds=()):
    """Return what ran, in order, on one node, and the queue; a further round is added when nothing runs or waits."""
    trial_queue, ran = TrialQueue(trials, equal_failures=cells, supplier=Supply(*rounds)), []
    now_s = 0.0
    trial_queue.set_nodes([NODE], now_s)
    for _ in range(1000):
        if trial_queue.over:
            break
        if start := trial_queue.next(now_s):
            now_s += 1.0
            ran.append(start.trial)
            trial_queue.ended(start.trial.trial_id, now_s, outcome_of(start.trial))
    assert trial_queue.over
    return ran, trial_queue


def test_reasons_that_differ_only_in_batch_size_are_one():
    batches = zip(GRID[:4], (64, 32, 16, 7), strict=True)
    sizes = [replace(spec, batch=replace(spec.batch, global_batch_size=size)) for spec, size in batches]
    alike = [(spec, failed(f"ValueError: {spec.batch.global_batch_size}×1×9, not 10")) for spec in sizes]
    assert failures_after(alike).doubted and failures_after(alike).reason == "ValueError: 64×1×9, not 10"
    other = [(spec, failed(f"ValueError: {n}×1×9")) for n, spec in enumerate(sizes)]
    assert not failures_after(other).doubted


ALIKE = [(one, failed()) for one in GRID[:3]]
OTHER_ENDS = [*(OK, failed("KeyError: y"), failed(cause=Cause.HANG)), failed("loss is nan", Cause.DIVERGED)]


@pytest.mark.parametrize(
    ("ends", "doubted"),
    [
        (ALIKE[:2], False),
        (ALIKE, True),
        *(
            (
                [(one, failed(f"rank {n}{host.format(n)}: ValueError: x\nmore {n}")) for n, one in enumerate(GRID[:3])],
                True,
            )
            for host in ("", " on host-{}")
        ),
        ([(cell(512, seed=seed), failed()) for seed in range(5)], False),  # seeds of one cell count once
        *(([*ALIKE[:at], (GRID[3], other), *ALIKE[at:]], False) for other in OTHER_ENDS for at in range(4)),
    ],
)
def test_three_cells_that_fail_alike_and_no_other_end_raise_doubt(ends, doubted):
    assert failures_after(ends).doubted is doubted
    assert not failures_after(ends, cells=None).doubted
    failures = failures_after(ends)
    failures.retried(ends[0][0])
    assert not failures.doubted


@pytest.mark.parametrize(
    "other",
    [
        None,
        failed(cause=Cause.NODE),
        failed(cause=Cause.DEVICE),
        *(failed("x", cause) for cause in (Cause.DEVICE_MEMORY, Cause.NO_ROOM, Cause.GIVEN_UP)),
    ],
)
def test_inconclusive_ends_do_not_count(other):
    assert not failures_after([(one, other) for one in GRID]).doubted
    assert failures_after([(GRID[5], other), *ALIKE]).doubted


@pytest.mark.parametrize(
    ("waiting", "witnesses"),
    [
        (GRID[3:], [GRID[4], GRID[6], GRID[8]]),  # batches 512 and 256 have failed, and both rules
        ([cell(512, "sqrt"), cell(64, "sqrt")], [cell(64, "sqrt")]),
        ([cell(256, "linear")], []),
    ],
)
def test_witnesses_cover_every_untried_value(waiting, witnesses):
    failures = failures_after(ALIKE)
    failures.hold(waiting)
    assert failures.witnesses() == witnesses
    assert failures.held == len(waiting) - len(witnesses)
    assert [*witnesses, *failures.release()] == sorted(waiting, key=lambda one: one not in witnesses)
    assert failures.held == 0


@pytest.mark.parametrize(
    ("fails", "trials", "given", "count"),
    [
        (lambda one: True, GRID, {}, 6),  # the first three, and a cell for each batch that was not among them
        (lambda one: True, GRID[:3], {"rounds": [GRID[4:]]}, 6),  # a later round
        (lambda one: one.axes["batch"] >= 128, GRID, {}, None),
        (lambda one: one.axes["lr_rule"] == "none", GRID[::2] + GRID[1::2], {}, None),
        (lambda one: True, GRID[:3], {}, None),  # a small grid
        (lambda one: True, GRID, {"cells": None}, None),
    ],
)
def test_rest_does_not_run_if_all_fail_alike(fails, trials, given, count):
    ran, trial_queue = run_all(lambda one: failed() if fails(one) else OK, trials, **given)
    assert trial_queue.all_failing == ("" if count is None else "ValueError: no such file")
    assert len({one.trial_id for one in ran}) == len(ran) == (count or len(trials)) and not trial_queue.left_out
    assert count is None or {one.axes["batch"] for one in ran} == {512, 256, 128, 64, 32}


def test_a_retry_of_another_seed_keeps_the_doubt():
    failures = failures_after([*ALIKE, (replace(ALIKE[0][0], trial_id="other", seed=1), failed())])
    failures.retried(replace(ALIKE[0][0], trial_id="other", seed=1))
    assert failures.doubted


def test_witnesses_run_side_by_side():
    shared = [replace(one, timing="shared") for one in (*GRID[:3], GRID[4], GRID[6])]
    trial_queue = TrialQueue(shared, equal_failures=3)
    trial_queue.set_nodes([Node(name="two", cpus=2, gpus=0)], 0.0)
    for _ in range(3):
        trial_queue.ended(trial_queue.next(0.0).trial.trial_id, 0.0, failed())
    assert [start.trial for start in (trial_queue.next(0.0), trial_queue.next(0.0))] == shared[3:]


def test_exhausted_budget_leaves_out_trials_held_back():
    trial_queue = TrialQueue(GRID, equal_failures=3, budget=SweepBudget(wall_s=3.0))
    trial_queue.set_nodes([NODE], 0.0)
    now_s = 0.0
    while start := trial_queue.next(now_s):
        now_s += 1.0
        trial_queue.ended(start.trial.trial_id, now_s, failed())
    assert trial_queue.next(now_s) is None and trial_queue.over
    assert len(trial_queue.left_out) == len(GRID) - 3 and not trial_queue.all_failing


def test_trials_held_back_are_given_up_with_their_gang():
    gang = trial("pair", "quick", ranks=2).gang
    pairs = [replace(cell(4096, seed=seed), gang=gang) for seed in range(3)]
    trial_queue = TrialQueue([*GRID[:3], *pairs], equal_failures=3, patience=Patience(wait_s=10.0))
    trial_queue.set_nodes([NODE], 0.0)
    while start := trial_queue.next(0.0):
        trial_queue.ended(start.trial.trial_id, 0.0, failed())
    trial_queue.set_nodes([NODE], 0.0)
    assert len(trial_queue) == 3 and not trial_queue.over
    trial_queue.set_nodes([NODE], 10.0)
    assert [outcome.status for _, outcome in trial_queue.left_out] == [Status.INFEASIBLE] * 3 and len(trial_queue) == 0
    assert trial_queue.next(10.0) is None and trial_queue.over
