"""How a trial ended.

Budgets of a sweep; once one is used up, no further trial starts.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Bounds on a sweep; None means no bound."""

    gpu_hours: float | None = None
    """Of all its trials, including earlier runs; hours of worker processes if there are no GPUs."""
    wall_s: float | None = None
    """Since this run began."""
    cost: float | None = None
    price_per_gpu_hour: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether the sweep may end before all of its trials have started."""
        return any(bound is not None for bound in (self.gpu_hours, self.wall_s, self.cost))

    def reached(self, *, gpu_s: float, wall_s: float) -> str:
        """The bound that this usage reaches, in words; empty if none."""
        hours = gpu_s / 3600
        cost = hours * (self.price_per_gpu_hour or 0.0)
        found = (("gpu_hours", hours, self.gpu_hours), ("wall_s", wall_s, self.wall_s), ("cost", cost, self.cost))
        return next(
            (f"sweep.budget.{name}={bound:g} was used up" for name, used, bound in found if _at(used, bound)), ""
        )


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """A limit, and how much of it was used before this run."""

    limit: Limit = Limit()
    gpu_s: float = 0.0
    wall_s: float = 0.0


def _at(used: float, bound: float | None) -> bool:
    return bound is not None and used >= bound
