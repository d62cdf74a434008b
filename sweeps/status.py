"""How a trial ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The end of a trial, ordered from worst to best: a cell has the worst status of its seeds."""

    FAILED = "failed"
    INFEASIBLE = "infeasible"
    OOM = "oom"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    OK = "ok"

    def is_result(self) -> bool:
        """Whether this end says something about the cell, rather than being an accident or a skipped trial."""
        return self not in (Status.FAILED, Status.SKIPPED)

    def is_final(self) -> bool:
        """Whether a continued sweep leaves such a trial alone; an infeasible one is tried again on a larger cluster."""
        return self is not Status.INFEASIBLE

    def stands(self, rerun: str) -> bool:
        """Whether a continued sweep leaves such an end alone, with `rerun` being none, failed or all."""
        if rerun == "all" or not self.is_final():
            return False
        return rerun == "none" or self.is_result()
