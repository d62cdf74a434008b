"""What became of a trial."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The end of a trial; ordered from worst to best, which is how a cell's status follows from its seeds'."""

    FAILED = "failed"
    INFEASIBLE = "infeasible"
    OOM = "oom"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    OK = "ok"

    def is_result(self) -> bool:
        """Whether this end is an answer about the cell, and not an accident or a choice not to look."""
        return self not in (Status.FAILED, Status.SKIPPED)

    def is_final(self) -> bool:
        """Whether continuing the sweep leaves such a trial alone; a larger cluster tries an infeasible one again."""
        return self is not Status.INFEASIBLE

    def stands(self, rerun: str) -> bool:
        """Whether such an end is left alone when the sweep is taken up again with `rerun` none, failed or all."""
        if rerun == "all" or not self.is_final():
            return False
        return rerun == "none" or self.is_result()

    @staticmethod
    def worst(statuses: list[Status]) -> Status:
        """The status of a cell whose trials ended so."""
        order = list(Status)
        return min(statuses, key=order.index)
