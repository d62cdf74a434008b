import threading

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError, OutOfMemoryError, RayActorError, RayError

from orchestrator.backends.ray import deaths
from orchestrator.backends.ray.deaths import death_of, final_error, final_errors
from sweeps.rank_exit import Cause
from sweeps.status import Status

GONE = RayActorError(error_msg="The actor died. Worker exit detail: Worker unexpectedly exits. End of file")
CRASHED = "this is rank 1\nFatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"


@pytest.mark.parametrize(
    ("error", "log", "oom_killed", "status", "cause", "note"),
    [
        (OutOfMemoryError("low on memory"), "", False, "oom", "host_memory", "memory"),
        (GONE, "", True, "oom", "host_memory", "killed by the kernel"),
        (GONE, "", False, "failed", "crash", "killed from outside"),
        (GONE, CRASHED, True, "failed", "crash", "Segmentation fault"),
        (RayActorError(error_msg="its node has died."), "", True, "failed", "node", "its node"),
        (RayActorError(error_msg="preempted"), "", False, "failed", "node", "its node was lost"),
    ],
)
def test_exit_names_the_root_cause(tmp_path, error, log, oom_killed, status, cause, note):
    file = tmp_path / "rank1.log"
    file.write_text(log)
    end = death_of(error, 1, file, began_at=0, oom_killed=oom_killed)
    assert (end.rank, end.status, end.cause, end.answered) == (1, Status(status), Cause(cause), False)
    assert note in end.note


def test_crash_of_an_earlier_attempt_is_ignored(tmp_path):
    log = tmp_path / "rank1.log"
    log.write_text(f"é{CRASHED}")
    began_at = log.stat().st_size
    with log.open("a") as further:
        further.write("this is rank 1 once more\n")
    assert death_of(GONE, 1, log, began_at=began_at, oom_killed=True).cause is Cause.HOST_MEMORY
    with log.open("a") as further:
        further.write("Fatal Python error: Bus error\n")
    assert "Bus error" in death_of(GONE, 1, log, began_at=began_at, oom_killed=True).note
    absent = death_of(GONE, 1, tmp_path / "rank2.log", began_at=0, oom_killed=False)
    assert "killed from outside" in absent.note


def test_only_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(deaths, "REPORT_BYTES", 100)
    log = tmp_path / "rank1.log"
    log.write_text(f"{CRASHED}{'x' * 100}")
    assert "killed from outside" in death_of(GONE, 1, log, began_at=0, oom_killed=False).note
    log.write_text(f"{'x' * 100}Fatal Python error: Bus error\n")
    assert "Bus error" in death_of(GONE, 1, log, began_at=0, oom_killed=False).note


def test_unreachable_rank_is_asked_until_ray_knows(monkeypatch):
    unreachable, lost = ActorUnavailableError("unavailable", None), RayActorError(error_msg="its node has died.")
    answers: list[RayError | None] = [unreachable, lost]

    def ask(timeout_s):
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(deaths.time, "sleep", lambda seconds: None)
    assert final_error(unreachable, ask) is lost and not answers
    answers = [unreachable, None]
    assert final_error(unreachable, ask) is unreachable and not answers  # it was there
    answers = [GetTimeoutError("no answer")]
    assert final_error(unreachable, ask) is unreachable and not answers
    assert final_error(GONE, ask) is GONE
    monkeypatch.setattr(deaths, "NODE_S", 0.0)
    assert final_error(unreachable, ask) is unreachable


def test_unreachable_ranks_are_asked_at_the_same_time():
    lost = {rank: RayActorError(error_msg=f"its node has died, and rank {rank} with it.") for rank in (0, 2)}
    all_there = threading.Barrier(2, timeout=10)

    def ask(rank, timeout_s):
        all_there.wait()  # broken where one is asked after the other
        raise lost[rank]

    assert final_errors({rank: ActorUnavailableError("unavailable", None) for rank in lost}, ask) == lost
    assert final_errors({}, ask) == {}


def test_oom_kills_are_the_kernels_counts(tmp_path, monkeypatch):
    events, vmstat = tmp_path / "memory.events", tmp_path / "vmstat"
    events.write_text("low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 0\n")
    monkeypatch.setattr(deaths, "_COUNTS", (events, vmstat))
    assert deaths.oom_kills() == 2
    vmstat.write_text("nr_free_pages 9\noom_kill 3\n")
    assert deaths.oom_kills() == 5
