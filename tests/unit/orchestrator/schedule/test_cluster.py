import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.schedule.cluster import Footprint, Node, kept_gang, ranks_that_fit, why_infeasible
from sweeps.layout import Gang


def gang(ranks, gpus=0.0, cpus=1, nodes=None):
    return Gang(ranks=ranks, gpus_per_rank=gpus, cpus_per_rank=cpus, nodes=nodes)


def node(cpus, gpus=0.0, name="n"):
    return Node(name=name, cpus=cpus, gpus=gpus)


def test_fractions_fill_a_gpu():
    assert ranks_that_fit(gang(20, gpus=0.1), node(100, 1)) == 10
    assert ranks_that_fit(gang(20, gpus=0.4), node(100, 2)) == 4  # a rank has its part of one GPU


def test_a_gang_may_span_nodes_but_a_rank_may_not():
    two = [node(4, 1, "a"), node(4, 1, "b")]
    assert not why_infeasible(gang(2, gpus=1), two)
    assert why_infeasible(gang(1, gpus=2), two)


def test_infeasible_reason_names_need_and_nodes():
    reason = why_infeasible(gang(4, gpus=1, cpus=2), [node(8, 2, "host")])
    assert all(part in reason for part in ("4 ranks", "2 CPUs and 1 GPU", "room for 2", "(host: 8 CPUs, 2 GPUs)"))
    reason = why_infeasible(gang(1), [])
    assert all(part in reason for part in ("1 rank ", "1 CPU;", "room for 0", "(no nodes)"))
    typed = Gang(ranks=1, gpus_per_rank=1, cpus_per_rank=1, gpu_types=("H100",))
    reason = why_infeasible(typed, [node(2)])
    assert all(part in reason for part in ("1 H100 GPU (cluster.gpu_type)", "room for 0", "(n: 2 CPUs, 0 GPUs)"))


def is_even(placed, wanted):
    """Return whether a placement has the number of nodes that the gang wants, with equally many ranks."""
    return wanted is None or (len(set(placed)) == wanted and len({placed.count(place) for place in placed}) == 1)


SIZES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=3)
NODES = st.one_of(st.none(), st.integers(1, 3))


@given(SIZES, st.integers(1, 4), st.integers(1, 2), NODES)
def test_feasibility_equals_that_of_trying_every_placement(sizes, ranks, cpus, spread):
    nodes = [node(cores, gpus, f"n{index}") for index, (cores, gpus) in enumerate(sizes)]
    wanted = gang(ranks, gpus=1, cpus=cpus, nodes=spread)
    possible = any(
        is_even(placed, spread)
        and all(placed.count(i) * cpus <= n.cpus and placed.count(i) <= n.gpus for i, n in enumerate(nodes))
        for placed in itertools.product(range(len(nodes)), repeat=ranks)
    )
    assert possible == (why_infeasible(wanted, nodes) == "")


NODE = Node(name="a", cpus=4, gpus=0)
ONE = Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=1)
TWO, FOUR, EIGHT = (replace(ONE, ranks=ranks) for ranks in (2, 4, 8))
WIDE = replace(ONE, cpus_per_rank=2)


def alone(gang):
    return Footprint(gang=gang, timing="exclusive")


ALL = [alone(gang) for gang in (ONE, TWO, FOUR, EIGHT, WIDE)]


def test_exclusive_trial_uses_the_largest_gang_that_fits_its_node():
    assert kept_gang(alone(ONE), ALL, [NODE]) == kept_gang(alone(TWO), ALL, [NODE] * 2) == FOUR
    assert kept_gang(alone(FOUR), ALL, [NODE] * 4) == FOUR


def test_kept_gang_has_the_trials_kind_of_ranks():
    assert kept_gang(alone(WIDE), ALL, [NODE]) == WIDE
    mixed = replace(TWO, gpu_types=("H100", "A100"))
    assert kept_gang(alone(mixed), [alone(mixed), alone(replace(mixed, ranks=4))], [NODE] * 2) == mixed


def test_a_trial_on_several_nodes_has_its_own_place():
    other = Node(name="b", cpus=4, gpus=0)
    assert kept_gang(alone(TWO), ALL, [NODE, other]) == TWO


def test_device_timing_keeps_no_larger_gang():
    footprints = [Footprint(gang=gang, timing="device") for gang in (ONE, TWO)]
    assert kept_gang(footprints[0], [*footprints, *ALL], [NODE]) == ONE
