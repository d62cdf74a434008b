from dataclasses import replace

import pytest

from orchestrator.schedule.cluster import Node
from orchestrator.schedule.failure_policy import SystematicFailures
from orchestrator.schedule.queue import Patience, TrialQueue
from orchestrator.store.record import Cause, TrialOutcome
from sweeps.status import Status
from tests.contract.trials import trial
from tests.unit.orchestrator.schedule.test_queue import Source

NODE = Node(name="a", cpus=1, gpus=0)
OK = TrialOutcome(status=Status.OK, wall_s=1.0)


def failed(note="ValueError: no such file", cause=Cause.ERROR, status=Status.FAILED):
    return TrialOutcome(status=status, cause=cause, note=note, wall_s=1.0)


def cell(batch, rule="none", seed=0):
    name = f"{batch}-{rule}"
    one = trial(f"{name}-{seed}", "quick")
    return replace(one, cell_id=name, seed=seed, axes={"gpus": 1, "batch": batch, "lr_rule": rule, "seed": seed})


GRID = [cell(batch, rule) for batch in (512, 256, 128, 64, 32) for rule in ("none", "linear")]


def told(ends, cells=3):
    failures = SystematicFailures(cells)
    for one, outcome in ends:
        failures.ended(one, outcome)
    return failures


def test_enough_cells_that_fail_alike_are_doubted():
    assert not told([(one, failed()) for one in GRID[:2]]).doubted
    assert told([(one, failed()) for one in GRID[:3]]).doubted
    assert told([(one, failed(f"rank {n}: ValueError: x\nmore {n}")) for n, one in enumerate(GRID[:3])]).doubted
    assert not told([(one, failed()) for one in GRID[:3]], cells=None).doubted


def test_shapes_that_hold_the_trials_own_batch_are_one_reason_told_with_the_first_ones():
    batches = zip(GRID[:4], (64, 32, 16, 7), strict=True)
    sizes = [replace(each, batch=replace(each.batch, global_batch_size=size)) for each, size in batches]
    alike = [(each, failed(f"ValueError: {each.batch.global_batch_size}×1×9, not 10")) for each in sizes]
    assert told(alike).doubted and told(alike).reason == "ValueError: 64×1×9, not 10"
    other = [(each, failed(f"ValueError: {n}×1×9")) for n, each in enumerate(sizes)]
    assert not told(other).doubted


def test_seeds_of_one_cell_count_once():
    assert not told([(cell(512, seed=seed), failed()) for seed in range(5)]).doubted


@pytest.mark.parametrize(
    "other",
    [
        OK,
        failed("KeyError: y"),
        failed(status=Status.TIMEOUT, cause=Cause.HANG),
        failed("loss is nan", Cause.NONE, Status.DIVERGED),
    ],
)
def test_any_that_ends_otherwise_speaks_for_the_rest(other):
    for at in range(4):
        ends = [(one, failed()) for one in GRID[1:4]]
        ends.insert(at, (GRID[0], other))
        assert not told(ends).doubted


@pytest.mark.parametrize(
    "other",
    [
        None,
        failed(cause=Cause.NODE),
        failed(cause=Cause.DEVICE),
        *(failed("x", Cause.NONE, status) for status in (Status.OOM, Status.INFEASIBLE, Status.SKIPPED)),
    ],
)
def test_other_ends_do_not_count(other):
    assert not told([(one, other) for one in GRID]).doubted
    assert told([(GRID[5], other), *((one, failed()) for one in GRID[:3])]).doubted


def test_a_further_attempt_is_another_chance():
    failures = told([(one, failed()) for one in GRID[:3]])
    failures.again(GRID[0])
    assert not failures.doubted


@pytest.mark.parametrize(
    ("waiting", "witnesses"),
    [
        (GRID[3:], [GRID[4], GRID[6], GRID[8]]),  # batches 512 and 256 have failed, and both rules
        ([cell(512, "sqrt"), cell(64, "sqrt")], [cell(64, "sqrt")]),
        ([cell(256, "linear")], []),
    ],
)
def test_witnesses_have_every_value_that_has_not_been_tried(waiting, witnesses):
    failures = told([(one, failed()) for one in GRID[:3]])
    failures.hold(waiting)
    assert failures.witnesses() == witnesses
    assert failures.held == len(waiting) - len(witnesses)
    assert [*witnesses, *failures.let_go()] == sorted(waiting, key=lambda one: one not in witnesses)
    assert failures.held == 0


def played(outcome_of, trials=GRID, cells=3, rounds=None):
    """What ran, in order, on one node, and the agenda."""
    trial_queue, ran, now_s = TrialQueue(trials, equal_failures=cells, rounds=rounds), [], 0.0
    trial_queue.on([NODE], now_s)
    for _ in range(1000):
        if trial_queue.over:
            break
        if start := trial_queue.next(now_s):
            now_s += 1.0
            ran.append(start.trial)
            trial_queue.ended(start.trial.trial_id, now_s, outcome_of(start.trial))
    assert trial_queue.over
    return ran, trial_queue


def test_where_all_fail_alike_the_rest_is_left_alone():
    ran, trial_queue = played(lambda one: failed())
    assert trial_queue.all_failing == "ValueError: no such file" and not trial_queue.left_out
    assert len(ran) == 6 and {one.axes["batch"] for one in ran} == {512, 256, 128, 64, 32}
    assert len(trial_queue) == 4


def test_large_batches_that_fail_alike_do_not_stop_the_others():
    ran, trial_queue = played(lambda one: failed() if one.axes["batch"] >= 128 else OK)
    assert len(ran) == len(GRID) == len(set(map(id, ran))) and not trial_queue.all_failing


def test_one_rule_that_works_lets_all_run():
    ran, trial_queue = played(lambda one: OK if one.axes["lr_rule"] == "linear" else failed(), GRID[::2] + GRID[1::2])
    assert len(ran) == len(GRID) and not trial_queue.all_failing


def test_a_grid_no_larger_than_that_runs_whole_and_so_does_every_grid_without_the_rule():
    ran, trial_queue = played(lambda one: failed(), GRID[:3])
    assert len(ran) == 3 and not trial_queue.all_failing
    ran, trial_queue = played(lambda one: failed(), cells=None)
    assert len(ran) == len(GRID) and not trial_queue.all_failing


def test_later_rounds_are_doubted_too():
    source = Source(GRID[4:])
    ran, trial_queue = played(lambda one: failed(), GRID[:3], rounds=source)
    assert trial_queue.all_failing and len(ran) < len(GRID) and len(source.left_out) == 1


def test_a_budget_that_runs_out_meanwhile_leaves_out_what_was_held_back():
    from sweeps.status import Allowance, Limit

    trial_queue = TrialQueue(GRID, equal_failures=3, allowance=Allowance(limit=Limit(wall_s=3.0)))
    trial_queue.on([NODE], 0.0)
    now_s = 0.0
    while start := trial_queue.next(now_s):
        now_s += 1.0
        trial_queue.ended(start.trial.trial_id, now_s, failed())
    assert trial_queue.next(now_s) is None and trial_queue.over
    assert len(trial_queue.left_out) == len(GRID) - 3 and not trial_queue.all_failing


def test_what_is_held_back_waits_for_nodes_no_longer_than_the_first_of_its_size():
    gang = trial("pair", "quick", ranks=2).gang
    pairs = [replace(cell(4096, seed=seed), gang=gang) for seed in range(3)]
    trial_queue = TrialQueue([*GRID[:3], *pairs], equal_failures=3, patience=Patience(wait_s=10.0))
    trial_queue.on([NODE], 0.0)
    while start := trial_queue.next(0.0):
        trial_queue.ended(start.trial.trial_id, 0.0, failed())
    trial_queue.on([NODE], 0.0)
    assert len(trial_queue) == 3 and not trial_queue.over
    trial_queue.on([NODE], 10.0)
    assert [outcome.status for _, outcome in trial_queue.left_out] == [Status.INFEASIBLE] * 3 and len(trial_queue) == 0
    assert trial_queue.next(10.0) is None and trial_queue.over
