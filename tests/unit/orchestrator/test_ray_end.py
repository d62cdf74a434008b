"""What became of a rank that did not answer: its node, the host's memory, a crash, or somebody's SIGKILL."""

from pathlib import Path

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError, RayError

from orchestrator import memory, ray_end
from orchestrator.cause import Cause
from orchestrator.ray_end import end_by
from sweeps.status import Status

GONE = RayActorError(error_msg="The actor died. Worker exit detail: Worker unexpectedly exits. End of file")
CRASHED = "this is rank 1\nFatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"


@pytest.mark.parametrize(
    ("error", "log", "oom_killed", "status", "cause", "note"),
    [
        (OutOfMemoryError("killed due to the node running low on memory"), "", False, "oom", "host_memory", "memory"),
        (GONE, "", True, "oom", "host_memory", "ran out of memory: killed by the kernel"),
        (GONE, "", False, "failed", "crash", "killed from outside"),
        (GONE, CRASHED, True, "failed", "crash", "Segmentation fault"),
        (RayActorError(error_msg="The actor died because its node has died."), "", True, "failed", "node", "its node"),
        (RayActorError(error_msg="The actor was preempted."), "", False, "failed", "node", "its node was lost"),
    ],
)
def test_the_end_says_what_was_at_its_root(
    tmp_path: Path, error: RayError, log: str, oom_killed: bool, status: str, cause: str, note: str
) -> None:
    (tmp_path / "rank1.log").write_text(log)
    end = end_by(error, 1, tmp_path, "a node", oom_killed=oom_killed)
    assert (end.rank, end.status, end.cause, end.answered) == (1, Status(status), Cause(cause), False)
    assert note in end.note


def test_a_rank_that_cannot_be_reached_may_have_lost_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"NodeID": "a node", "Alive": True}]
    monkeypatch.setattr(ray_end, "NODE_S", 0.1)
    monkeypatch.setattr(ray_end.ray, "nodes", lambda: nodes)
    unreachable = ray_end.ActorUnavailableError("The actor is unavailable", None)
    assert end_by(unreachable, 0, tmp_path, "a node", oom_killed=False).cause is Cause.CRASH
    nodes[0]["Alive"] = False
    assert end_by(unreachable, 0, tmp_path, "a node", oom_killed=False).cause is Cause.NODE


def test_the_kernels_count_of_those_it_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, vmstat = tmp_path / "memory.events", tmp_path / "vmstat"
    events.write_text("low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 0\n")
    monkeypatch.setattr(memory, "_COUNTS", (events, vmstat))
    assert memory.oom_kills() == 2
    vmstat.write_text("nr_free_pages 9\noom_kill 3\n")
    assert memory.oom_kills() == 5
