from dataclasses import replace

from orchestrator.scheduling.kept_gang import kept_gang
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from sweeps.trial import Gang

NODE = Node(name="a", cpus=4, gpus=0)
ONE = Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=1)
TWO, FOUR, EIGHT = (replace(ONE, ranks=ranks) for ranks in (2, 4, 8))
WIDE = replace(ONE, cpus_per_rank=2)


def alone(gang):
    return Shape(gang=gang, timing="exclusive")


ALL = [alone(gang) for gang in (ONE, TWO, FOUR, EIGHT, WIDE)]


def test_whoever_has_the_node_alone_sits_in_the_largest_gang_that_fits_it():
    assert kept_gang(alone(ONE), ALL, [NODE]) == kept_gang(alone(TWO), ALL, [NODE] * 2) == FOUR
    assert kept_gang(alone(FOUR), ALL, [NODE] * 4) == FOUR


def test_ranks_have_to_be_like_the_trials():
    assert kept_gang(alone(WIDE), ALL, [NODE]) == WIDE
    mixed = replace(TWO, gpu_types=("H100", "A100"))
    assert kept_gang(alone(mixed), [alone(mixed), alone(replace(mixed, ranks=4))], [NODE] * 2) == mixed


def test_a_trial_on_several_nodes_has_its_own_place():
    other = Node(name="b", cpus=4, gpus=0)
    assert kept_gang(alone(TWO), ALL, [NODE, other]) == TWO


def test_where_devices_are_shared_out_processes_of_others_would_hold_them():
    shapes = [Shape(gang=gang, timing="device") for gang in (ONE, TWO)]
    assert kept_gang(shapes[0], [*shapes, *ALL], [NODE]) == ONE
