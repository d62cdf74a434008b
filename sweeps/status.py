"""The status of a trial: how it ended, and whether a continued sweep keeps that."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The end of a trial, ordered from worst to best: a cell has the worst status of its seeds that ran."""

    FAILED = "failed"
    INFEASIBLE = "infeasible"
    OOM = "oom"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    OK = "ok"

    def is_result(self) -> bool:
        """Return whether this status says something about the cell; a failed or skipped trial does not."""
        return self not in (Status.FAILED, Status.SKIPPED)

    def is_final(self) -> bool:
        """Return whether a continued sweep keeps this status; an infeasible trial may fit a larger cluster."""
        return self is not Status.INFEASIBLE

    def stands(self, rerun: str) -> bool:
        """Return whether a continued sweep keeps this status, with `rerun` being none, failed or all."""
        if rerun == "all" or not self.is_final():
            return False
        return rerun == "none" or self.is_result()
