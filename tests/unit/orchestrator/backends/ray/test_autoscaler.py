from dataclasses import replace

from orchestrator.backends.ray.autoscaler import room
from orchestrator.schedule.cluster import Node, Shape
from sweeps.trial import Gang

HEAD = Node(name="head", cpus=0, gpus=0, node_id="h")
SMALL = Node(name="small", cpus=4, gpus=1, node_id="s")
LARGE = Node(name="large", cpus=16, gpus=4, node_id="l")
PAIR = Shape(gang=Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=2), timing="device")
RANK = {"CPU": 2, "GPU": 1}
ELSEWHERE = {"ray.io/node-id": "!in(h,l,s)"}


def test_a_gang_that_fits_no_nodes_counts_on_those_that_there_are():
    asked = room(PAIR, [HEAD, SMALL], {"market-type": "spot"})
    assert asked == {
        "bundles": [RANK, RANK],
        "strategy": "PACK",
        "bundle_label_selector": [{"market-type": "spot"}] * 2,
    }


def test_a_node_with_a_lost_gpu_is_not_counted_on_by_whom_it_is_too_small_for_now():
    asked = room(PAIR, [HEAD, SMALL], {"market-type": "spot"}, {"s"})
    assert asked["bundle_label_selector"] == [{"market-type": "spot", "ray.io/node-id": "!in(s)"}] * 2


def test_a_gang_that_waits_for_others_asks_for_another_node():
    asked = room(PAIR, [HEAD, LARGE, SMALL], {})
    assert asked == {"bundles": [RANK, RANK], "strategy": "STRICT_PACK", "bundle_label_selector": [ELSEWHERE] * 2}


def test_a_gang_over_several_nodes_asks_for_several():
    wide = replace(PAIR, gang=replace(PAIR.gang, ranks=5))
    asked = room(wide, [LARGE, SMALL], {})
    assert asked["bundles"] == [RANK] * 5 and asked["strategy"] == "PACK"
    assert asked["bundle_label_selector"] == [{"ray.io/node-id": "!in(l,s)"}] * 5


def test_an_exclusive_gang_asks_for_a_whole_node_like_the_least_that_could_hold_it():
    alone = Shape(gang=Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=1), timing="exclusive")
    assert room(alone, [HEAD, LARGE, SMALL], {})["bundles"] == [{"CPU": 4, "GPU": 1}]
    assert room(alone, [HEAD], {})["bundles"] == [{"CPU": 1}]


def test_types_of_gpus_are_asked_for_by_the_name_that_ray_gives_them():
    mixed = Shape(gang=replace(PAIR.gang, gpu_types=("H100", "A100")), timing="device")
    first, second = room(mixed, [SMALL], {})["bundles"]
    assert first == RANK | {"accelerator_type:H100": 0.001} and second == RANK | {"accelerator_type:A100": 0.001}
