from orchestrator.ray_gang import bundles
from sweeps.feasibility import Node
from sweeps.trial import Gang


def test_a_gang_is_reserved_as_a_whole_with_rank_i_in_bundle_i() -> None:
    request = bundles(Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=4))
    assert request.head_bundle_is_empty and request.strategy == "PACK"
    assert request.bundles == [{"CPU": 4.0, "GPU": 1.0}] * 2
    assert bundles(Gang(ranks=1, gpus_per_rank=0.25, cpus_per_rank=1)).bundles == [{"CPU": 1.0, "GPU": 0.25}]


def test_gangs_of_one_shape_make_equal_requests() -> None:
    shape = Gang(ranks=2, gpus_per_rank=0, cpus_per_rank=1)
    assert bundles(shape) == bundles(Gang(ranks=2, gpus_per_rank=0, cpus_per_rank=1))
    assert bundles(shape) != bundles(Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=2))


def test_on_several_nodes_each_rank_is_told_its_node() -> None:
    pair = Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=1)
    nodes = [Node(name="a", cpus=2, gpus=1, node_id="01"), Node(name="b", cpus=2, gpus=1, node_id="02")]
    told = bundles(pair, nodes)._bound.arguments["bundle_label_selector"]
    assert told == [{"ray.io/node-id": "01"}, {"ray.io/node-id": "02"}]
    assert bundles(pair, nodes) == bundles(pair, list(nodes)) != bundles(pair, nodes[::-1])
