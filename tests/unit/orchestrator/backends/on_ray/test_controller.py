"""What a gang's start does without: Tune's imports in the supervisor, and a process in each group of bundles."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from orchestrator.backends.on_ray import controller
from orchestrator.backends.on_ray.attempt import Bundles
from orchestrator.backends.on_ray.controller import KeptGangs, PolledPlacementGroups
from orchestrator.scheduling.node import Node
from sweeps.trial import Gang


def test_a_supervisor_imports_nothing_that_takes_long() -> None:
    slow = {"ray.tune", "ray.train", "ray.data", "pandas", "pyarrow", "torch"}
    code = f"import sys, orchestrator.backends.on_ray.supervisor; print(sorted({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Request:
    """Asks for a group that is the next of these."""

    def __init__(self, *groups: str) -> None:
        self._groups = iter(groups)

    def to_placement_group(self) -> str:
        return next(self._groups)


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of the groups; one that was removed has none."""
    known: dict[str, str] = {}
    monkeypatch.setattr(controller, "placement_group_table", lambda group: {"state": known[group]})
    monkeypatch.setattr(controller.ray, "util", SimpleNamespace(remove_placement_group=known.pop))
    return known


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> PolledPlacementGroups:
    monkeypatch.setattr(PolledPlacementGroups, "__del__", lambda self: None, raising=False)
    return PolledPlacementGroups(update_interval_s=-1)


def test_a_gang_has_its_bundles_when_ray_says_so(groups: PolledPlacementGroups, states: dict[str, str]) -> None:
    request = Request("one")
    states["one"] = "PENDING"
    groups.request_resources(request)
    assert not groups.has_resources_ready(request) and groups.get_resource_futures() == []
    states["one"] = "CREATED"
    assert groups.has_resources_ready(request)
    assert groups.acquire_resources(request).placement_group == "one"
    assert not groups.has_resources_ready(request)


def test_of_two_groups_the_one_that_waits_is_given_up_first(
    groups: PolledPlacementGroups, states: dict[str, str]
) -> None:
    request = Request("here", "pending")
    states.update({"here": "CREATED", "pending": "PENDING"})
    groups.request_resources(request)
    groups.request_resources(request)
    assert groups.has_resources_ready(request)
    groups.cancel_resource_request(request)
    assert set(states) == {"here"}
    groups.cancel_resource_request(request)
    assert not states and not groups.has_resources_ready(request)


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
