"""Derives how a trial ended from how its ranks ended: the root cause, not its consequences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.backends.backend import Overdue
from orchestrator.store.record import Cause, TrialOutcome
from sweeps.status import Status


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How one rank of one attempt ended."""

    rank: int
    status: Status
    cause: Cause = Cause.NONE
    note: str = ""
    trace: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    reusable: bool = False
    """Whether the rank's process may take another trial."""
    devices: Sequence[str] = ()
    """The GPUs that it used, if one of them was lost."""
    answered: bool = True
    """False if the process died, or was abandoned, before it could report."""

    @staticmethod
    def of(answer: Mapping[str, Any]) -> RankExit:
        """Read the answer of the rank itself."""
        return RankExit(
            rank=answer["rank"],
            status=Status(answer["status"]),
            cause=Cause(answer["cause"]),
            note=answer["note"],
            trace=answer["trace"],
            metrics=answer["metrics"],
            provenance=answer["provenance"],
            reusable=answer["reusable"],
            devices=answer.get("devices", ()),
        )

    @staticmethod
    def lost(rank: int, why: str, trace: str, *, cause: Cause = Cause.CRASH) -> RankExit:
        """Return the exit of a rank whose process died; `why` is one line, `trace` all that is known."""
        status = Status.OOM if cause is Cause.HOST_MEMORY else Status.FAILED
        note = f"the process died: {why}"
        return RankExit(rank=rank, status=status, cause=cause, note=note, trace=trace, answered=False)

    @staticmethod
    def moved(rank: int, why: str) -> RankExit:
        """Return the exit of a rank that was asked to stop here, so that the trial continues elsewhere."""
        return RankExit(rank=rank, status=Status.FAILED, cause=Cause.NODE, note=why, answered=False)

    @staticmethod
    def overdue(rank: int, why: Overdue, trace: str) -> RankExit:
        """Return the exit of a rank that was abandoned because the trial exceeded a time limit."""
        return RankExit(rank=rank, status=Status.TIMEOUT, cause=why.cause, note=why.note, trace=trace, answered=False)


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
        lost_devices=tuple(device for end in ends for device in end.devices),
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
