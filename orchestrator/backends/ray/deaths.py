"""Explains a rank whose process died, from Ray's error, the rank's log and the kernel's counters on its node."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from ray.exceptions import ActorUnavailableError, GetTimeoutError, OutOfMemoryError, RayError, RayTaskError

from orchestrator.backends.backend import died
from sweeps.rank_exit import NOTE_LENGTH, Cause, RankExit

NODE_S = 40.0
"""How long to wait for Ray to find out what happened to an unreachable rank; it notices a lost node after some 15 s."""

REPORT_BYTES = 1 << 20
"""How much of the end of a log is searched for Python's report; a log may be larger than the memory that is left."""

_COUNTS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


def final_errors(errors: Mapping[int, RayError], ask: Callable[[int, float], object]) -> dict[int, RayError]:
    """Call `final_error` for several ranks at the same time, so that all are known within NODE_S.

    `ask(rank, timeout_s)` calls a rank once more.
    """
    if not errors:
        return {}
    with ThreadPoolExecutor(max_workers=len(errors)) as threads:
        waiting = {rank: threads.submit(final_error, error, partial(ask, rank)) for rank, error in errors.items()}
    return {rank: waited.result() for rank, waited in waiting.items()}


def final_error(error: RayError, ask: Callable[[float], object]) -> RayError:
    """Return Ray's final error for a rank that it could not reach at first; `ask(timeout_s)` calls the rank again."""
    until = time.monotonic() + NODE_S
    while isinstance(error, ActorUnavailableError) and (left_s := until - time.monotonic()) > 0:
        try:
            ask(left_s)
        except GetTimeoutError:
            break
        except RayError as later_error:
            error = later_error
            time.sleep(0.2)
        else:  # it is alive, but the original call is lost
            break
    return error


def death_of(error: RayError, rank: int, log: Path, *, began_at: int, oom_killed: bool) -> RankExit:
    """Return the exit of a rank of which Ray has only this error.

    Its log starts at byte `began_at`; anything before belongs to an earlier attempt. `oom_killed`: the kernel's
    out-of-memory killer has killed a process on this node in the meantime.
    """
    account = str(error)
    if isinstance(error, RayTaskError):
        return RankExit(rank=rank, cause=Cause.ERROR, note=_last_line(account), trace=account)
    if isinstance(error, OutOfMemoryError):
        return died(rank, "the node ran out of memory", account, cause=Cause.HOST_MEMORY)
    if _is_of_the_node(account):
        return died(rank, in_short(account), account, cause=Cause.NODE)
    crash = _crash(log, began_at)
    if crash:
        return died(rank, crash.splitlines()[0], crash)
    if oom_killed:
        return died(rank, "the node ran out of memory: killed by the kernel", account, cause=Cause.HOST_MEMORY)
    return died(rank, in_short(account), account)


def in_short(account: str) -> str:
    """Return Ray's message about a lost process in one line, without its list of possible reasons."""
    if _is_of_the_node(account):
        return "its node was lost"
    last = _last_line(account)
    if "End of file" in last:  # all that Ray knows of a process that was killed
        return "killed from outside, as by SIGKILL or the kernel's out-of-memory killer"
    return last.rpartition("Worker exit detail: ")[2][:NOTE_LENGTH]


def _last_line(account: str) -> str:
    return account.strip().splitlines()[-1] if account.strip() else "no reason known"


def _is_of_the_node(account: str) -> bool:
    return any(words in account for words in ("node has died", "node has crashed", "preempted"))


def _crash(log: Path, began_at: int) -> str:
    """Return Python's report of a fatal signal at the end of the log; empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(began_at, log.stat().st_size - REPORT_BYTES))
        text = file.read().decode(errors="replace")
    _, title, report = text.rpartition("Fatal Python error: ")
    return report.strip() if title else ""


def oom_kills() -> int:
    """Return how many processes the kernel's out-of-memory killer has ended on this node; 0 if unknown."""
    kills = 0
    for file in _COUNTS:
        with suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            kills += int(match[1]) if match else 0
    return kills
