"""What a gang's start does without: Tune's imports in the supervisor, and a process in each group of bundles."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from orchestrator.backends.on_ray import controller
from orchestrator.backends.on_ray.controller import PolledPlacementGroups


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
