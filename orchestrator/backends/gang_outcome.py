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


def outcome_of(exits: Sequence[RankExit], *, world_size: int, wall_s: float) -> TrialOutcome:
    """Return the trial's outcome from the exits of its ranks, at least one; if a rank failed, others may be missing.

    Figures are those of the lowest rank that answered.
    """
    root = min(exits, key=_order)
    # A rank that failed has no figures; another rank's say at least where the trial ran.
    answering = min(
        (rank_exit for rank_exit in exits if rank_exit.answered), key=lambda known: known.rank, default=root
    )
    # A time limit is the whole gang's, so it names no rank.
    is_failure = root.status not in (Status.OK, Status.SKIPPED) and root.cause is not Cause.TIME_LIMIT
    is_named = is_failure and (world_size > 1 or not root.answered)
    return TrialOutcome(
        status=root.status,
        cause=root.cause,
        note=f"rank {root.rank}: {root.note}" if is_named else root.note,
        trace=root.trace,
        metrics=answering.metrics,
        provenance=answering.provenance,
        lost_devices=[device for rank_exit in exits for device in rank_exit.lost_devices],
        wall_s=wall_s,
        skipped_by="early_stop" if root.status is Status.SKIPPED else "",
    )


_CONNECTION_ERROR = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket timeout|NCCL|gloo|ProcessGroup|TCPStore|DistBackendError"
    r"|DistNetworkError",
    re.IGNORECASE,
)
"""Errors of torch.distributed in a rank that has lost the connection to another rank."""


def _order(rank_exit: RankExit) -> tuple[int, int]:
    """Return a sort key that puts the root cause first; among equals the lowest rank.

    The first failure that is seen is often not the first that happened: ranks that wait for a dead rank see a closed
    connection. So a lack of memory explains more than a lost process, a lost process more than an error, and any other
    error more than an error of the connection.
    """
    status = rank_exit.status
    order = (
        status is Status.TIMEOUT,
        status is Status.OOM,
        rank_exit.cause in (Cause.NODE, Cause.DEVICE),
        not rank_exit.answered,
        status is Status.DIVERGED,
        status is not Status.OK and not _CONNECTION_ERROR.search(rank_exit.note),
        status is not Status.OK,
        True,
    )
    return order.index(True), rank_exit.rank
