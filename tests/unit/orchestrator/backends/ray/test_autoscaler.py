from dataclasses import replace

from orchestrator.backends.ray.autoscaler import room
from orchestrator.schedule.cluster import Footprint, Node
from sweeps.layout import Gang

HEAD = Node(name="head", cpus=0, gpus=0, node_id="h")
SMALL = Node(name="small", cpus=4, gpus=1, node_id="s")
LARGE = Node(name="large", cpus=16, gpus=4, node_id="l")
PAIR = Footprint(gang=Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=2), timing="device")
RANK = {"CPU": 2, "GPU": 1}
ELSEWHERE = {"ray.io/node-id": "!in(h,l,s)"}


def test_gang_that_fits_no_nodes_may_use_existing_ones():
    asked = room(PAIR, [HEAD, SMALL], {"market-type": "spot"})
    assert asked == {
        "bundles": [RANK, RANK],
        "strategy": "PACK",
        "bundle_label_selector": [{"market-type": "spot"}] * 2,
    }


def test_node_with_a_lost_gpu_is_excluded():
    asked = room(PAIR, [HEAD, SMALL], {"market-type": "spot"}, {"s"})
    assert asked["bundle_label_selector"] == [{"market-type": "spot", "ray.io/node-id": "!in(s)"}] * 2


def test_waiting_gang_requests_another_node():
    asked = room(PAIR, [HEAD, LARGE, SMALL], {})
    assert asked == {"bundles": [RANK, RANK], "strategy": "STRICT_PACK", "bundle_label_selector": [ELSEWHERE] * 2}


def test_wide_gang_requests_several_nodes():
    wide = replace(PAIR, gang=replace(PAIR.gang, ranks=5))
    asked = room(wide, [LARGE, SMALL], {})
    assert asked["bundles"] == [RANK] * 5 and asked["strategy"] == "PACK"
    assert asked["bundle_label_selector"] == [{"ray.io/node-id": "!in(l,s)"}] * 5


def test_gang_of_given_nodes_requests_a_part_of_each():
    spread = replace(PAIR, gang=replace(PAIR.gang, ranks=4, nodes=2))
    asked = room(spread, [LARGE], {})
    assert asked["strategy"] == "STRICT_SPREAD"
    assert asked["bundles"] == [{name: 2 * amount for name, amount in RANK.items()}] * 2


def test_exclusive_gang_requests_a_whole_node():
    alone = Footprint(gang=Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=1), timing="exclusive")
    assert room(alone, [HEAD, LARGE, SMALL], {})["bundles"] == [{"CPU": 4, "GPU": 1}]
    assert room(alone, [HEAD], {})["bundles"] == [{"CPU": 1}]


def test_gpu_types_are_requested_by_rays_names():
    mixed = Footprint(gang=replace(PAIR.gang, gpu_types=("H100", "A100")), timing="device")
    first, second = room(mixed, [SMALL], {})["bundles"]
    assert first == RANK | {"accelerator_type:H100": 0.001} and second == RANK | {"accelerator_type:A100": 0.001}
