"""How many processes start ahead, and where none may."""

import os
import sys
from types import SimpleNamespace

import pytest

from orchestrator.backends.ray import preload, prestart
from orchestrator.backends.ray.prestart import BATCH_S, KEEP_S, StartAhead, at_once
from orchestrator.schedule.cluster import Node, Shape
from orchestrator.schedule.scheduler import Upcoming
from orchestrator.telemetry.timing_gate import FOREIGN_CPU
from sweeps.trial import Gang

NODE = Node(name="one", cpus=64, gpus=4, node_id="1")
SMALL = Node(name="small", cpus=16, gpus=1, node_id="2")


@pytest.mark.parametrize(
    ("cores", "beside", "count"),
    [
        (64, {"device"}, 3),
        (16, {"device"}, 0),
        (2, (), 0),
        (2, {"shared"}, 0),
        (64, {"shared"}, 64),
        (64, (), 64),
        (64, {"exclusive"}, 0),
        (64, {"device", "shared"}, 3),
    ],
)
def test_no_more_start_at_a_time_than_spoil_no_timing(cores: float, beside: set[str], count: int) -> None:
    assert at_once(cores, beside) == count
    assert "device" not in beside or at_once(cores, beside) <= FOREIGN_CPU * cores


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The node and the number of processes of each request."""
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(prestart, "start_processes", lambda node_id, count, failed: found.append((node_id, count)))
    monkeypatch.setattr(prestart, "ask_for", lambda modules, threads: found.append((" ".join(modules), threads)))
    return found


def foreseen(node: Node = NODE, *, ranks: int = 4, timing: str = "device") -> Upcoming:
    shape = Shape(gang=Gang(ranks=ranks, gpus_per_rank=1, cpus_per_rank=16), timing=timing)
    return Upcoming(shape=shape, gangs=1, nodes=(node,), beside=frozenset({timing}))


def test_a_gang_s_processes_and_its_supervisor_s_start_batch_by_batch(started: list[tuple[str, int]]) -> None:
    spare = StartAhead(wanted=True)
    for now_s in (0.0, 1.0, BATCH_S, 2 * BATCH_S, 3 * BATCH_S):
        spare.settle(foreseen, now_s)
    assert started == [("1", 3), ("1", 2)]
    spare.begins([NODE] * 4, 4 * BATCH_S)
    assert started == [("1", 3), ("1", 2)]
    spare.begins([NODE] * 2, 5 * BATCH_S)
    assert started[2:] == [("1", 3)]


def test_processes_that_waited_too_long_are_gone(started: list[tuple[str, int]]) -> None:
    spare = StartAhead(wanted=True)
    spare.settle(lambda: foreseen(ranks=2), 0.0)
    spare.settle(lambda: foreseen(ranks=2), KEEP_S)
    assert started == [("1", 3), ("1", 3)]


def test_nothing_starts_where_it_is_not_wanted_or_not_allowed(started: list[tuple[str, int]]) -> None:
    StartAhead(wanted=False).settle(foreseen, 0.0)
    StartAhead(wanted=False).begins([NODE], 0.0)
    spare = StartAhead(wanted=True)
    spare.settle(lambda: foreseen(SMALL, ranks=1), 0.0)
    spare.begins([SMALL], 0.0)
    spare.settle(lambda: foreseen(timing="exclusive"), 0.0)
    assert started == []


def test_only_own_trainables_are_imported_and_only_where_all_ranks_have_as_many_threads(
    started: list[tuple[str, int]],
) -> None:
    spare = StartAhead(wanted=True)
    spare.prepare_for("trainables.supervised.training:train", {16})
    spare.prepare_for("trainables.supervised.training:train", {16})
    StartAhead(wanted=True).prepare_for("mine.code:train", {4})
    assert started == [("trainables.supervised.training", 16), ("", 4)]
    spare.prepare_for("trainables.supervised.training:train", {16, 32})
    spare.settle(foreseen, 0.0)
    assert len(started) == 2


def test_what_leads_to_the_preloaded_module_is_gone_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ({}, {"PYTHONPATH": f"/mine{os.pathsep}/yours"}):
        added = preload.preloading(before, "/code")
        assert added["PYTHONPATH"].split(os.pathsep)[0] == "/code"
        monkeypatch.setattr(os, "environ", {**before, **added})
        preload._forget_added_path()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        assert kept == before


def test_a_ray_that_cannot_be_asked_is_told_of_once_and_gangs_start_their_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ray.core.generated.node_manager_pb2", SimpleNamespace())
    spare = StartAhead(wanted=True)
    spare.settle(foreseen, 0.0)
    spare.settle(foreseen, BATCH_S)
    spare.begins([NODE], BATCH_S)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("no processes are started ahead any more: Ray ") and "PrestartWorkersRequest" in line


@pytest.mark.parametrize(("free_gb", "imported"), [(63.9, []), (64.0, ["orchestrator.backends.ray.rank", "mine"])])
def test_nothing_is_imported_where_memory_is_short(
    free_gb: float, imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    told = b'{"modules": ["mine"], "threads": 2}'
    monkeypatch.setattr(preload.internal_kv, "_internal_kv_get", lambda key, namespace: told)
    monkeypatch.setattr(preload, "estimate_available_memory", lambda: free_gb * 2**30)
    monkeypatch.setattr(preload, "limit_threads", lambda threads: None)
    monkeypatch.setattr(preload, "import_module", found.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    preload.prepare()
    assert found == imported
