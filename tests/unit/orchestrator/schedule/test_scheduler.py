import dataclasses
import random
from collections import Counter
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling import lower_bound_s
from orchestrator.schedule.cluster import Node, why_infeasible
from orchestrator.schedule.scheduler import Scheduler
from orchestrator.schedule.simulation import makespan_s, simulate
from sweeps.layout import Gang
from tests.contract.trials import trial

EIGHT = (Node(name="a", cpus=64, gpus=8),)
PAIR = (Node(name="a", cpus=32, gpus=4), Node(name="b", cpus=32, gpus=4))


def gang(name, gpus, *, timing="device", seed=0, cpus=1, types=(), nodes=None):
    ranks, gpus_per_rank = (1, gpus) if gpus < 1 else (int(gpus), 1)
    held = Gang(ranks=ranks, gpus_per_rank=gpus_per_rank, cpus_per_rank=cpus, gpu_types=types, nodes=nodes)
    return dataclasses.replace(trial(name, "quick", timing=timing), gpus=gpus, gang=held, device="cuda", seed=seed)


def cores(name, ranks, *, timing="exclusive", seed=0):
    return dataclasses.replace(trial(name, "quick", ranks=ranks, timing=timing), seed=seed)


def unknown(trial):
    return None


def started(scheduler, now_s=0.0):
    starts = iter(lambda: scheduler.next(now_s), None)
    return [start.trial.trial_id for start in starts]


def test_an_exclusive_trial_has_its_node_to_itself():
    nodes = (Node(name="a", cpus=2, gpus=0), Node(name="b", cpus=2, gpus=0))
    scheduler = Scheduler([cores("1", 1), cores("2", 1), cores("3", 1)], nodes, unknown)
    assert started(scheduler) == ["1", "2"]
    scheduler.ended("1")
    assert started(scheduler) == ["3"]


def test_gang_that_lost_a_node_holds_nothing():
    nodes = (Node(name="a", cpus=2, gpus=0), Node(name="b", cpus=2, gpus=0))
    scheduler = Scheduler([cores("both", 4, timing="shared"), cores("one", 2, timing="shared")], nodes, unknown)
    assert started(scheduler) == ["both"]
    scheduler.set_nodes(nodes[:1])
    assert started(scheduler) == ["one"]
    scheduler.ended("both")
    assert started(scheduler) == []


def test_left_s_counts_waiting_and_running_trials():
    scheduler = Scheduler(
        [cores(name, 1, timing="shared") for name in "abc"], (Node(name="a", cpus=2, gpus=0),), lambda trial: 10.0
    )
    assert scheduler.left_s(0.0) == 15.0  # three times 10 s on two cores
    assert len(started(scheduler)) == 2
    assert scheduler.left_s(0.0) == 15.0 and scheduler.left_s(4.0) == 11.0
    scheduler.ended("a")
    assert started(scheduler, 10.0) == ["c"] and scheduler.left_s(10.0) == 5.0


def test_a_node_is_in_one_timing_mode_at_a_time():
    trials = [gang("timed", 1), gang("packed", 0.5, timing="shared"), gang("quiet", 1, timing="exclusive")]
    scheduler = Scheduler(trials, EIGHT, unknown)
    for _ in trials:
        (one,) = started(scheduler)
        scheduler.ended(one)


def test_timed_fraction_occupies_the_whole_gpu():
    timed = Scheduler([gang(str(n), 0.25) for n in range(9)], EIGHT, unknown)
    assert len(started(timed)) == 8
    packed = Scheduler([gang(str(n), 0.25, timing="shared") for n in range(40)], EIGHT, unknown)
    assert len(started(packed)) == 32


def test_gang_that_fits_one_node_waits_for_it():
    scheduler = Scheduler([gang("left", 3), gang("right", 3), gang("two", 2)], PAIR, unknown)
    assert started(scheduler) == ["left", "right"]  # one GPU is free on each
    scheduler.ended("right")
    start = scheduler.next(1.0)
    assert start.trial.trial_id == "two" and start.nodes[0] is start.nodes[1]


def test_gang_that_fits_no_node_takes_several():
    start = Scheduler([gang("six", 6)], PAIR, unknown).next(0.0)
    assert sorted(Counter(node.name for node in start.nodes).values()) == [2, 4]


def test_reserved_nodes_are_used_until_they_are_needed():
    seconds = {"runs": 100.0, "also": 10.0, "short": 60.0, "long": 150.0}
    trials = [gang("runs", 4), gang("also", 4), *(gang(f"large{n}", 8) for n in range(9))]
    trials += [gang("long", 1), gang("short", 1)]
    scheduler = Scheduler(trials[:2], EIGHT, lambda trial: seconds.get(trial.trial_id, 50.0))
    assert started(scheduler) == ["runs", "also"]
    scheduler.ended("also")
    for waiting in trials[2:]:
        scheduler.retry(waiting)
    assert started(scheduler, now_s=10.0) == ["short"]  # until 90; the long one would keep the large one waiting
    scheduler.ended("short")
    assert started(scheduler, now_s=90.0) == []
    scheduler.ended("runs")
    assert started(scheduler, now_s=100.0) == ["large8"]


def test_unknown_durations_never_overtake_a_waiting_gang():
    scheduler = Scheduler([gang("runs", 4)], EIGHT, unknown)
    assert started(scheduler) == ["runs"]
    scheduler.retry(gang("large", 8))
    scheduler.retry(gang("small", 1))
    assert started(scheduler) == []
    scheduler.ended("runs")
    assert started(scheduler) == ["large"]


def test_long_trial_starts_early():
    seconds = {"long": 500.0} | {f"pair{n}": 100.0 for n in range(8)}
    trials = [gang("long", 1), *(gang(f"pair{n}", 2) for n in range(8))]
    stays = simulate(
        trials, (Node(name="a", cpus=8, gpus=4),), lambda t: seconds[t.trial_id], lambda t: seconds[t.trial_id]
    )
    assert stays[0].trial.trial_id == "long"
    assert makespan_s(stays) <= 800


def test_short_trials_start_in_their_turn_while_gpus_are_free():
    # Two H100 with README's sweep: leaving the order for a trial of seconds started five further gangs of 15 s each.
    cells = [(gpus, cell) for gpus in (2, 1) for cell in range(7)]
    trials = [gang(f"{gpus}-{cell}-{seed}", gpus, seed=seed) for seed in range(3) for gpus, cell in cells]
    node = Node(name="a", cpus=32, gpus=2)
    for long_s in (1.0, 17.0, 40.0):
        stays = simulate(
            trials, (node,), lambda t, long_s=long_s: 0.2 if t.trial_id[2] > "1" else long_s, lambda t: 3.0
        )
        gangs = groupby((stay.trial.gpus, stay.trial.seed) for stay in stays)
        assert [key for key, _ in gangs] == [(2, 0), (1, 0), (1, 1), (2, 1), (2, 2), (1, 2)]


def test_exclusive_order_turns_around_at_every_seed():
    trials = [
        cores(f"{cell}{seed}", ranks, seed=seed) for cell, ranks in (("a", 1), ("b", 2), ("c", 2)) for seed in (0, 1)
    ]
    nodes = (Node(name="a", cpus=2, gpus=0),)
    assert [stay.trial.trial_id for stay in simulate(trials, nodes, unknown, lambda t: 1.0)] == [
        *("b0", "c0", "a0"),
        *("a1", "c1", "b1"),
    ]
    seconds = {"a": 1.0, "b": 1.0, "c": 9.0}
    known = simulate(trials, nodes, lambda t: seconds[t.cell_id[0]], lambda t: seconds[t.cell_id[0]])
    assert [stay.trial.trial_id for stay in known] == ["c0", "b0", "a0", "a1", "b1", "c1"]


def test_a_mixed_pair_has_one_gpu_of_each_type():
    nodes = (Node(name="a", cpus=8, gpus=2, gpu_type="H100"), Node(name="b", cpus=8, gpus=2, gpu_type="A100"))
    start = Scheduler([gang("pair", 2, types=("A100", "H100"))], nodes, unknown).next(0.0)
    assert [node.name for node in start.nodes] == ["b", "a"]
    only = Scheduler([gang("only", 2, types=("a100",))], nodes, unknown).next(0.0)
    assert {node.name for node in only.nodes} == {"b"}
    assert "there is room for 0" in why_infeasible(gang("none", 2, types=("H200",)).gang, nodes)


def test_node_that_lost_a_gpu_keeps_its_running_trial():
    node = Node(name="a", cpus=8, gpus=2)
    scheduler = Scheduler([gang("first", 1), gang("second", 1), gang("third", 1)], (node,), unknown)
    assert started(scheduler) == ["first", "second"]
    scheduler.ended("first")
    scheduler.set_nodes([dataclasses.replace(node, gpus=1)])
    assert started(scheduler) == []
    scheduler.ended("second")
    assert started(scheduler) == ["third"]


def test_trial_of_a_lost_node_starts_elsewhere():
    trials = [gang("left", 4), gang("right", 4), gang("later", 4)]
    scheduler = Scheduler(trials, PAIR, unknown)
    first, second = scheduler.next(0.0), scheduler.next(0.0)
    survivor = next(node for node in PAIR if node is not first.nodes[0])
    scheduler.set_nodes([survivor])
    scheduler.ended(first.trial.trial_id)
    scheduler.retry(first.trial)
    assert started(scheduler) == []
    scheduler.ended(second.trial.trial_id)
    assert started(scheduler) == [first.trial.trial_id]


CLUSTERS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 16)), min_size=1, max_size=4)
TRIALS = st.lists(
    st.tuples(
        st.sampled_from([0.25, 0.5, 1, 2, 3, 4, 8]),
        st.sampled_from(["device", "shared", "exclusive"]),
        st.one_of(st.none(), st.floats(1, 100)),
        st.floats(1, 100),
        st.integers(0, 2),
        st.sampled_from([None, None, 1, 2, 4]),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(CLUSTERS, TRIALS)
def test_every_trial_runs_once_and_nothing_is_held_twice(sizes, asked):
    nodes = [Node(name=f"n{index}", cpus=cpus, gpus=gpus) for index, (gpus, cpus) in enumerate(sizes)]
    given = [
        (gang(str(n), gpus, timing=timing, seed=seed, nodes=spread), known, takes)
        for n, (gpus, timing, known, takes, seed, spread) in enumerate(asked)
    ]
    possible = [timed_trial for timed_trial in given if not why_infeasible(timed_trial[0].gang, nodes)]
    known = {trial.trial_id: seconds for trial, seconds, _ in possible}
    takes = {trial.trial_id: seconds for trial, _, seconds in possible}
    trials = [trial for trial, _, _ in possible]
    stays = simulate(trials, nodes, lambda t: known[t.trial_id], lambda t: takes[t.trial_id])
    assert sorted(stay.trial.trial_id for stay in stays) == sorted(takes)
    for stay in stays:
        per_node = Counter(stay.placement.nodes)
        if stay.trial.gang.nodes:
            assert len(per_node) == stay.trial.gang.nodes and len(set(per_node.values())) == 1
        at = [other for other in stays if other.start_s <= stay.start_s < other.end_s]
        check_held(at, nodes)


def check_held(stays, nodes):
    for number, node in enumerate(nodes):
        there = [stay.placement for stay in stays if number in stay.placement.nodes]
        held = [held for placement in there for held in placement.held if held.node == number]
        assert sum(share.cpus for share in held) <= node.cpus * 10_000
        gpus = Counter()
        for held_share in held:
            for gpu, units in held_share.gpus:
                gpus[gpu] += units
        assert all(units <= 10_000 and gpu < node.gpus for gpu, units in gpus.items())
        modes = {placement.footprint.timing for placement in there}
        assert len(modes) <= 1 and ("exclusive" not in modes or len(there) == 1)
        for placement in there:
            if placement.footprint.timing == "device":
                mine = {gpu for share in placement.held if share.node == number for gpu, _ in share.gpus}
                others = {
                    gpu
                    for o in there
                    if o is not placement
                    for share in o.held
                    if share.node == number
                    for gpu, _ in share.gpus
                }
                assert mine.isdisjoint(others)


def test_makespan_is_near_the_lower_bound():
    rng = random.Random(8)
    trials = [gang(str(n), rng.choice([1, 1, 2, 4, 8]), seed=n % 3, cpus=8) for n in range(1000)]
    takes = {trial.trial_id: rng.lognormvariate(0, 1) for trial in trials}
    thought = {key: seconds * rng.uniform(0.7, 1.3) for key, seconds in takes.items()}
    stays = simulate(trials, EIGHT, lambda t: thought[t.trial_id], lambda t: takes[t.trial_id])
    bound_s = lower_bound_s(trials, EIGHT, lambda t: takes[t.trial_id])
    assert bound_s <= makespan_s(stays) <= 1.05 * bound_s


def grid(counts, cells, seeds):
    """Return the trials of a grid on GPUs, with durations that fall with the number of GPUs."""
    trials = [
        dataclasses.replace(gang(f"{gpus} {cell} {seed}", gpus, seed=seed), cell_id=f"{gpus} {cell}")
        for gpus in counts
        for cell in range(cells)
        for seed in range(seeds)
    ]
    rng = random.Random(cells)
    takes = {trial.cell_id: rng.lognormvariate(4, 0.5) / trial.gpus**0.5 for trial in trials if not trial.seed}
    return trials, lambda trial: takes[trial.cell_id]


def test_order_on_gpus_turns_around_at_every_seed():
    trials, takes = grid((1, 2, 4), 2, 3)
    stays = simulate(trials, (Node(name="a", cpus=64, gpus=4),), unknown, takes)
    groups = [(key, len(list(same))) for key, same in groupby((stay.trial.seed, stay.trial.gpus) for stay in stays)]
    sizes = [(0, 4), (0, 2), (0, 1), (1, 1), (1, 2), (1, 4), (2, 4), (2, 2), (2, 1)]
    assert groups == [(size, 2) for size in sizes]
