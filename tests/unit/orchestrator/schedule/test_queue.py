import dataclasses

import pytest

from orchestrator.schedule.cluster import Node, Shape
from orchestrator.schedule.queue import (
    ARRIVAL_S,
    REVISIONS,
    Patience,
    TrialQueue,
    arrived,
    can_run,
    first_shape,
    nodes_ready,
    patience_s,
)
from orchestrator.schedule.scheduler import Scheduler
from orchestrator.store.history import Durations
from orchestrator.store.record import TrialOutcome
from sweeps.errors import ConfigError
from sweeps.status import Allowance, Limit, Status
from tests.contract.trials import trial
from tests.unit.orchestrator.requests import request

ONE = Node(name="a", cpus=2, gpus=0)
TWO = Node(name="b", cpus=2, gpus=0)


def trials(count, ranks=1):
    return [trial(str(number), "quick", ranks=ranks) for number in range(count)]


def on(trial_queue, *nodes, now_s=0.0):
    trial_queue.on(nodes, now_s)
    return trial_queue


def ids(left_out):
    return [(each.trial_id, outcome.status) for each, outcome in left_out]


def test_trials_start_as_others_end():
    trial_queue = on(TrialQueue(trials(2)), ONE)
    assert trial_queue.next(0.0).trial.trial_id == "0" and trial_queue.next(0.0) is None and len(trial_queue) == 1
    trial_queue.ended("0", 5.0, TrialOutcome(status=Status.OK, wall_s=5.0))
    assert trial_queue.next(5.0).trial.trial_id == "1" and len(trial_queue) == 0 and not trial_queue.left_out


@pytest.mark.parametrize(
    ("limit", "spent_gpu_s", "note"),
    [
        (Limit(gpu_hours=1.0), 3595.0, "sweep.budget.gpu_hours=1 was used up"),
        (Limit(wall_s=5.0), 0.0, "sweep.budget.wall_s=5 was used up"),
        (Limit(cost=3.0, price_per_gpu_hour=3.0), 3595.0, "sweep.budget.cost=3 was used up"),
    ],
)
def test_no_trial_starts_once_a_budget_is_used_up(limit, spent_gpu_s, note):
    trial_queue = on(TrialQueue(trials(3), allowance=Allowance(limit=limit, gpu_s=spent_gpu_s)), ONE)
    assert trial_queue.next(0.0) is not None
    trial_queue.ended("0", 5.0, TrialOutcome(status=Status.OK, wall_s=5.0))
    assert trial_queue.next(5.0) is None and len(trial_queue) == 0
    assert [(outcome.status, outcome.note, outcome.skipped_by) for _, outcome in trial_queue.left_out] == [
        (Status.SKIPPED, note, "budget")
    ] * 2


def test_seconds_before_this_trial_queue_count_for_the_budget():
    """The driver's own, before its first trial, and those of rounds before."""
    trial_queue = on(TrialQueue(trials(2), allowance=Allowance(limit=Limit(wall_s=10.0), wall_s=6.0)), ONE, now_s=100.0)
    assert trial_queue.next(103.9) is not None
    trial_queue.ended("0", 104.0, TrialOutcome(status=Status.OK, wall_s=0.1))
    assert trial_queue.next(104.0) is None and ids(trial_queue.left_out) == [("1", Status.SKIPPED)]


def test_a_probe_says_nothing_of_how_long_its_trial_takes():
    whole = trial("whole", "quick")
    probe = dataclasses.replace(whole, trial_id="probe", probes="whole")
    trial_queue = on(TrialQueue([probe, whole]), ONE)
    for name, timed in (("probe", False), ("whole", True)):
        assert trial_queue.next(0.0).trial.trial_id == name
        trial_queue.ended(name, 1.0, TrialOutcome(status=Status.OK, wall_s=1.0))
        assert trial_queue.is_timed(probe) is trial_queue.is_timed(whole) is timed


def test_what_runs_counts_for_the_budget():
    trial_queue = on(TrialQueue([trial("pair", "quick", ranks=2), trial("next", "quick")]), ONE)
    assert trial_queue.next(0.0) is not None
    assert trial_queue.gpu_s(10.0) == 20.0


def test_a_trial_without_nodes_waits_only_so_long():
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=Patience(wait_s=10.0)), ONE)
    assert trial_queue.next(0.0) is None and len(trial_queue) == 1
    assert len(on(trial_queue, ONE, now_s=9.0)) == 1
    assert len(on(trial_queue, ONE, now_s=10.0)) == 0
    assert ids(trial_queue.left_out) == [("0", Status.INFEASIBLE)]


def test_a_trial_starts_when_its_nodes_have_come():
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=Patience(wait_s=10.0)), ONE)
    start = on(trial_queue, ONE, TWO, now_s=9.0).next(9.0)
    assert start is not None and {node.name for node in start.nodes} == {"a", "b"}


class Source:
    """Rounds that are given, and attempts that are asked for."""

    def __init__(self, *rounds):
        self.rounds, self.asked, self.left_out = list(rounds), [], []

    def again(self):
        asked, self.asked = self.asked, []
        return asked

    def next(self, left_out):
        self.left_out.append(ids(left_out))
        return self.rounds.pop(0) if self.rounds else []


def test_another_attempt_waits_until_the_last_one_has_left_its_place_and_comes_before_others():
    source = Source()
    trial_queue = on(TrialQueue(trials(3), rounds=source), ONE, TWO)
    first, second = trial_queue.next(0.0), trial_queue.next(0.0)
    survivor = next(node for node in (ONE, TWO) if node not in first.nodes)
    source.asked = [first.trial]
    on(trial_queue, survivor, now_s=1.0)
    assert trial_queue.next(1.0) is None
    trial_queue.ended(first.trial.trial_id, 1.0)
    assert trial_queue.next(1.0) is None
    trial_queue.ended(second.trial.trial_id, 2.0)
    assert trial_queue.next(2.0).trial is first.trial


def test_a_round_begins_when_nothing_of_the_last_runs_and_hears_what_was_left_out():
    more, none = [trial("more", "quick")], [trial("homeless", "quick", ranks=9)]
    source = Source(more, none)
    trial_queue = on(TrialQueue(trials(1), rounds=source), ONE)
    assert trial_queue.next(0.0).trial.trial_id == "0"
    assert trial_queue.next(1.0) is None and not trial_queue.over and source.left_out == []
    trial_queue.ended("0", 2.0)
    assert trial_queue.next(2.0).trial.trial_id == "more"
    trial_queue.ended("more", 3.0)
    assert trial_queue.next(3.0) is None and trial_queue.over
    assert source.left_out == [[], [], [("homeless", Status.INFEASIBLE)]]


def test_a_smaller_trial_that_is_alone_anyway_takes_the_place_of_the_largest():
    trial_queue = on(TrialQueue([trial("pair", "quick", ranks=2), trial("one", "quick")]), ONE)
    for name in ("pair", "one"):
        start = trial_queue.next(0.0)
        assert start.trial.trial_id == name and trial_queue.kept_gang(start).ranks == 2
        trial_queue.ended(name, 1.0)


def test_durations_of_ended_trials_decide_who_is_next():
    cells = {name: trial(name, "quick", timing="shared") for name in ("short", "long")}
    repeats = [
        dataclasses.replace(cell, trial_id=f"{name} {seed}", seed=seed)
        for seed in range(2)
        for name, cell in cells.items()
    ]
    trial_queue = on(TrialQueue(repeats), Node(name="a", cpus=1, gpus=0))
    for name, seconds in (("short 0", 2.0), ("long 0", 7.0)):
        assert trial_queue.next(0.0).trial.trial_id == name
        trial_queue.ended(name, seconds, TrialOutcome(status=Status.OK, wall_s=seconds))
    assert [trial_queue.is_timed(each) for each in repeats] == [True] * 4
    assert trial_queue.next(9.0).trial.trial_id == "long 1"


def test_without_any_node_nothing_is_infeasible_and_after_a_while_all_is_left_for_another_time():
    head = Node(name="head", cpus=0, gpus=0)
    trial_queue = on(TrialQueue(trials(1)), head)
    assert trial_queue.next(0.0) is None and not trial_queue.over
    on(trial_queue, now_s=ARRIVAL_S - 1)
    assert not trial_queue.no_nodes and len(trial_queue) == 1
    on(trial_queue, head, now_s=ARRIVAL_S)
    assert trial_queue.next(ARRIVAL_S) is None and trial_queue.no_nodes and trial_queue.over
    assert len(trial_queue) == 1 and not trial_queue.left_out


def test_a_node_that_comes_back_in_time_goes_on_and_waiting_for_a_long_time_is_up_to_the_user():
    trial_queue = on(TrialQueue(trials(1), patience=Patience(wait_s=100.0)), ONE)
    on(trial_queue, now_s=99.0)
    assert trial_queue.next(99.0) is None and not trial_queue.over
    assert on(trial_queue, TWO, now_s=99.5).next(99.5) is not None


def test_what_still_runs_without_nodes_has_its_end_first():
    trial_queue = on(TrialQueue(trials(2)), ONE, now_s=0.0)
    trial_queue.next(0.0)
    on(trial_queue, now_s=ARRIVAL_S)
    assert trial_queue.next(ARRIVAL_S) is None and not trial_queue.over
    trial_queue.ended("0", ARRIVAL_S)
    assert trial_queue.next(ARRIVAL_S) is None and trial_queue.over


def sizes(shapes):
    return [shape.gang.ranks for shape in shapes]


def test_nodes_are_wanted_for_what_waits_and_by_whoever_may_wait_only():
    mixed = [trial("pair", "quick", ranks=2), trial("four", "quick", ranks=4), trial("next", "quick", ranks=2)]
    assert on(TrialQueue(mixed), ONE).wanted(0.0) == []
    trial_queue = on(TrialQueue(mixed, patience=Patience(wait_s=60.0)), ONE)
    assert trial_queue.next(0.0).trial.trial_id == "pair" and trial_queue.next(0.0) is None
    assert sorted(sizes(trial_queue.wanted(0.0))) == [2, 4]  # one fits no node, another waits for the first
    assert trial_queue.needs_gangs
    on(trial_queue, ONE, TWO, now_s=1.0)
    assert trial_queue.needs_gangs and sorted(sizes(trial_queue.wanted(1.0))) == [2, 4]


def test_what_is_done_soon_wants_no_nodes_but_what_fits_none_does():
    durations = Durations()
    mixed = [*trials(3, ranks=2), trial("four", "quick", ranks=4)]
    for each in mixed:
        durations.add(each.cell_id, each.axes, 10.0)
    trial_queue = on(TrialQueue(mixed, patience=Patience(wait_s=60.0), durations=durations), ONE)
    assert trial_queue.next(0.0) is not None
    assert sizes(trial_queue.wanted(0.0)) == [4]
    for each in mixed:
        durations.add(each.cell_id, each.axes, 1000.0)
    long = on(TrialQueue(mixed, patience=Patience(wait_s=60.0), durations=durations), ONE)
    assert long.next(0.0) is not None and sorted(sizes(long.wanted(0.0))) == [2, 2, 4]


def test_gangs_that_idle_are_needed_only_by_what_could_start_there():
    trial_queue = on(
        TrialQueue([trial("pair", "quick", ranks=2), trial("four", "quick", ranks=4)], patience=Patience(wait_s=60.0)),
        ONE,
    )
    assert trial_queue.needs_gangs
    assert trial_queue.next(0.0).trial.trial_id == "pair"
    assert not trial_queue.needs_gangs and sizes(trial_queue.wanted(0.0)) == [4]


def test_who_was_given_up_is_not_counted_among_those_who_wait():
    large = [trial(f"large {number}", "quick", ranks=4) for number in range(3)]
    trial_queue = on(TrialQueue([*large, *trials(3)], patience=Patience(wait_s=10.0)), ONE)
    on(trial_queue, ONE, now_s=10.0)
    assert len(trial_queue.left_out) == 3 and trial_queue.next(10.0) is not None
    assert len(trial_queue) == 2 and trial_queue.needs_gangs


def test_who_waits_in_vain_is_told_how_long():
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=Patience(wait_s=10.0)), ONE)
    on(trial_queue, ONE, now_s=10.0)
    ((_, outcome),) = trial_queue.left_out
    assert outcome.note.endswith("; no node for it came within cluster.wait_s=10")
    ((_, at_once),) = on(TrialQueue(trials(1, ranks=3)), ONE).left_out
    assert "wait_s" not in at_once.note


def test_who_has_waited_before_the_plan_waits_no_more_and_later_comers_do():
    source = Source([trial("late", "quick", ranks=5)])
    trial_queue = on(TrialQueue(trials(1, ranks=3), patience=Patience(wait_s=10.0, waited_s=10.0), rounds=source), ONE)
    assert trial_queue.next(0.0) is None and source.left_out == [[("0", Status.INFEASIBLE)]]
    assert (
        not trial_queue.over
        and len(on(trial_queue, ONE, now_s=9.0)) == 1
        and len(on(trial_queue, ONE, now_s=10.0)) == 0
    )


def test_the_wait_for_nodes_counts_from_when_nothing_runs():
    trial_queue = on(
        TrialQueue([trial("pair", "quick", ranks=2), trial("four", "quick", ranks=4)], patience=Patience(wait_s=10.0)),
        ONE,
    )
    assert trial_queue.next(0.0).trial.trial_id == "pair"
    assert len(on(trial_queue, ONE, now_s=50.0)) == 1
    trial_queue.ended("pair", 51.0, TrialOutcome(status=Status.OK, wall_s=51.0))
    assert len(on(trial_queue, ONE, now_s=59.0)) == 1 and len(on(trial_queue, ONE, now_s=60.0)) == 0
    assert ids(trial_queue.left_out) == [("four", Status.INFEASIBLE)]


def test_with_a_budget_no_size_has_its_second_seed_before_each_has_had_one():
    mixed = [
        dataclasses.replace(trial(f"{n}.{seed}", "quick", ranks=n, timing="device"), seed=seed)
        for n in (1, 2)
        for seed in (0, 1)
    ]

    def order(limit):
        trial_queue, found = on(TrialQueue(mixed, allowance=Allowance(limit=limit)), TWO), []
        while start := trial_queue.next(0.0):
            found.append(start.trial.trial_id)
            trial_queue.ended(start.trial.trial_id, 0.0)
        return found

    assert order(Limit()) == ["2.0", "2.1", "1.0", "1.1"]
    assert order(Limit(wall_s=60.0)) == ["2.0", "1.0", "1.1", "2.1"]


def test_who_fits_no_nodes_waits_no_longer_when_those_have_gone_too():
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


def test_what_was_left_out_is_told_once_also_where_no_round_follows():
    trial_queue = on(TrialQueue([trial("single", "quick"), trial("four", "quick", ranks=4)]), ONE)
    on(trial_queue, now_s=ARRIVAL_S)
    assert trial_queue.no_nodes and trial_queue.next(ARRIVAL_S) is None and trial_queue.over
    assert [(each.trial_id, outcome.status) for each, outcome in trial_queue.newly_left_out()] == [
        ("four", Status.INFEASIBLE)
    ]
    assert trial_queue.newly_left_out() == []


def test_a_large_round_after_a_small_one_is_not_planned_anew_at_every_end(monkeypatch):
    made, revise = [], Scheduler.revise
    monkeypatch.setattr(Scheduler, "revise", lambda self: made.append(revise(self)))
    trial_queue = on(TrialQueue([trial("first", "quick")], rounds=Source(trials(4 * REVISIONS))), ONE)
    for now_s in range(4 * REVISIONS + 1):
        trial_queue.ended(trial_queue.next(now_s).trial.trial_id, now_s, TrialOutcome(status=Status.OK, wall_s=1.0))
    assert trial_queue.next(now_s) is None and trial_queue.over
    assert 0.9 * REVISIONS < len(made) < 1.1 * REVISIONS


HEAD = Node(name="head", cpus=0, gpus=0)
WORKER = Node(name="worker", cpus=2, gpus=0)
GPU = Node(name="gpu", cpus=2, gpus=1)


class Clock:
    """Time that passes only while somebody sleeps."""

    now_s = 100.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def ask(clock, nodes, stopping=lambda: False, labels=(), wait_s=0.0, device="auto"):
    asked = request(address="10.0.0.1:6379", labels=dict(labels), wait_s=wait_s, device=device).cluster
    return arrived(nodes, asked, stopping=stopping, clock=clock, sleep=clock.sleep)


def test_a_head_without_cpus_can_run_nothing():
    assert not can_run(()) and not can_run([HEAD]) and can_run([HEAD, WORKER])


def test_nodes_that_are_there_are_not_waited_for():
    clock = Clock()
    assert ask(clock, lambda: [WORKER]) == [WORKER] and clock.now_s == 100.0


def test_a_node_that_comes_late_is_waited_for():
    clock = Clock()
    assert ask(clock, lambda: [HEAD, WORKER] if clock.now_s >= 110 else [HEAD]) == [HEAD, WORKER]
    assert clock.now_s == 110.0


@pytest.mark.parametrize(
    ("nodes", "labels", "told"),
    [
        ([], {}, "it has no node that is alive"),
        ([HEAD], {}, "none of its 1 nodes has CPUs"),
        ([], {"market-type": "spot"}, "it has no node with the labels {'market-type': 'spot'} that is alive"),
    ],
)
def test_a_cluster_without_any_is_refused_in_time(nodes, labels, told):
    clock = Clock()
    with pytest.raises(ConfigError) as refused:
        ask(clock, lambda: nodes, labels=labels)
    (line,) = refused.value.errors
    assert line == f"cluster.address=10.0.0.1:6379: {told}, and none came within 30 s (cluster.wait_s waits longer)"
    assert clock.now_s == 130.0


def test_a_signal_ends_the_wait():
    clock = Clock()
    assert ask(clock, lambda: [], stopping=lambda: clock.now_s > 105) == []


def test_wait_s_waits_longer_and_never_shorter():
    assert patience_s(0.0) == patience_s(5.0) == ARRIVAL_S and patience_s(600.0) == 600.0
    clock = Clock()
    with pytest.raises(ConfigError, match="none came within 90 s"):
        ask(clock, lambda: [HEAD], wait_s=90.0)
    assert clock.now_s == 190.0


def test_gpus_that_are_asked_for_are_waited_for_where_that_may_help():
    clock = Clock()
    found = ask(clock, lambda: [WORKER, GPU] if clock.now_s >= 110 else [WORKER], wait_s=60.0, device="cuda")
    assert found == [WORKER, GPU] and clock.now_s == 110.0
    clock = Clock()
    assert ask(clock, lambda: [WORKER], wait_s=60.0, device="cuda") == [WORKER] and clock.now_s == 160.0
    for wait_s, device in ((0.0, "cuda"), (60.0, "auto"), (60.0, "cpu")):
        assert nodes_ready([WORKER], request(wait_s=wait_s, device=device).cluster)


def test_room_for_the_smallest_gang_is_asked_for_first():
    pair, single = trial("pair", "quick", ranks=2), trial("single", "quick")
    assert first_shape([pair, single]) == Shape.of(single)
