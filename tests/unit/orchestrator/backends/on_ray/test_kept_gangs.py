import pytest

from orchestrator.backends.on_ray.bundles import Bundles
from orchestrator.backends.on_ray.kept_gangs import KeptGangs
from sweeps.feasibility import Node
from sweeps.trial import Gang

A, B = (Node(name="host", cpus=4, gpus=2, node_id=name) for name in "ab")
ONE, TWO = (Bundles(Gang(ranks=ranks, gpus_per_rank=1, cpus_per_rank=1)) for ranks in (1, 2))


@pytest.fixture
def kept() -> KeptGangs:
    return KeptGangs()


def turn(kept: KeptGangs, *, force_all: bool = False) -> list[str]:
    return list(kept.flush_cached_objects(force_all=force_all))


def test_a_gang_is_kept_until_the_queue_has_had_its_turn_although_another_shape_starts(kept: KeptGangs) -> None:
    kept.increase_max(TWO)
    assert kept.cache_object(ONE, "a") and kept.cache_object(ONE, "b")
    assert turn(kept) == []
    kept.increase_max(ONE)
    assert kept.pop_cached_object(ONE) == "a"
    kept.decrease_max(ONE)
    assert turn(kept) == ["b"] and not kept.has_cached_object(ONE) and kept.num_cached_objects == 0


def test_a_gang_that_ends_in_the_meantime_has_a_turn_of_its_own(kept: KeptGangs) -> None:
    kept.increase_max(TWO)
    kept.cache_object(ONE, "a")
    assert turn(kept) == []
    kept.cache_object(ONE, "b")
    assert turn(kept) == ["a"] and turn(kept) == ["b"]


def test_gangs_that_somebody_waits_for_stay(kept: KeptGangs) -> None:
    kept.increase_max(ONE)
    kept.cache_object(ONE, "a")
    kept.cache_object(TWO, "b")
    assert turn(kept) == []
    assert turn(kept) == ["b"] and turn(kept) == []


def test_where_nothing_waits_all_stay_until_the_end(kept: KeptGangs) -> None:
    for name in "ab":
        kept.cache_object(ONE, name)
    assert turn(kept) == [] and turn(kept) == []
    assert turn(kept, force_all=True) == ["a", "b"] and kept.num_cached_objects == 0


def test_what_waits_for_another_node_has_no_use_for_its_room(kept: KeptGangs) -> None:
    gang = Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=1)
    kept.increase_max(Bundles(gang, [B, B]))
    kept.cache_object(Bundles(gang, [A, A]), "a")
    assert turn(kept) == [] and turn(kept) == []
    kept.increase_max(Bundles(gang, [A, B]))
    assert turn(kept) == ["a"]


def test_where_nothing_could_take_them_none_is_kept_beyond_its_turn() -> None:
    needed = True
    kept = KeptGangs(lambda: needed)
    kept.cache_object(ONE, "a")
    assert turn(kept) == [] and turn(kept) == []
    needed = False
    kept.cache_object(ONE, "b")
    assert turn(kept) == ["a"] and turn(kept) == ["b"] and kept.num_cached_objects == 0
