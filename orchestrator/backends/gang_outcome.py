"""Derives how a trial ended from how its ranks ended: the root cause, not its consequences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.backends.backend import Overdue
from orchestrator.store.record import TrialOutcome
from sweeps.rank_exit import Cause, RankExit
from sweeps.status import Status


def died(rank: int, why: str, trace: str, *, cause: Cause = Cause.CRASH) -> RankExit:
    """Return the exit of a rank whose process died; `why` is one line, `trace` all that is known."""
    status = Status.OOM if cause is Cause.HOST_MEMORY else Status.FAILED
    return RankExit(rank=rank, status=status, cause=cause, note=f"the process died: {why}", trace=trace, answered=False)


def moved(rank: int, why: str) -> RankExit:
    """Return the exit of a rank that was asked to stop here, so that the trial continues elsewhere."""
    return RankExit(rank=rank, status=Status.FAILED, cause=Cause.NODE, note=why, answered=False)


def abandoned(rank: int, overdue: Overdue, trace: str) -> RankExit:
    """Return the exit of a rank that was abandoned because the trial exceeded a time limit."""
    return RankExit(
        rank=rank, status=Status.TIMEOUT, cause=overdue.cause, note=overdue.note, trace=trace, answered=False
    )


def outcome_of(ends: Sequence[RankExit], *, world_size: int, wall_s: float) -> TrialOutcome:
    """Return the trial's outcome from the exits of its ranks, at least one; if a rank failed, others may be missing.

    The first failure that is seen is often not the first that happened: ranks that wait for a dead rank see a closed
    connection. So running out of memory explains more than a lost process, a lost process more than an error, and any
    other error more than an error of the connection; among equals the lowest rank counts. Figures are those of the
    lowest rank that answered.
    """
    root = min(ends, key=_explains)
    answering = min((end for end in ends if end.answered), key=lambda end: end.rank, default=root)
    named = (
        root.status not in (Status.OK, Status.SKIPPED)
        and (world_size > 1 or not root.answered)
        and root.cause is not Cause.TIME_LIMIT
    )
    return TrialOutcome(
        status=root.status,
        cause=root.cause,
        note=f"rank {root.rank}: {root.note}" if named and root.status is not Status.OK else root.note,
        trace=root.trace,
        wall_s=wall_s,
        metrics=answering.metrics,
        provenance=answering.provenance,
        skipped_by="early_stop" if root.status is Status.SKIPPED else "",
        lost_devices=tuple(device for end in ends for device in end.lost_devices),
    )


_CONNECTION_ERROR = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket timeout|NCCL|gloo|ProcessGroup|TCPStore|DistBackendError"
    r"|DistNetworkError",
    re.IGNORECASE,
)
"""Errors of torch.distributed in a rank that has lost the connection to another rank."""


def _explains(end: RankExit) -> tuple[int, int]:
    """Return a sort key that puts the exit that explains the others first."""
    order = (
        end.status is Status.TIMEOUT,
        end.status is Status.OOM,
        end.cause in (Cause.NODE, Cause.DEVICE),
        not end.answered,
        end.status is Status.DIVERGED,
        end.status is not Status.OK and not _CONNECTION_ERROR.search(end.note),
        end.status is not Status.OK,
        True,
    )
    return order.index(True), end.rank
