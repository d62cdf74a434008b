"""The status of a trial, and the budget of a sweep: once it is used up, no further trial starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


def cost_of(gpu_hours: Any, price_per_gpu_hour: float | None) -> Any:
    """Return the cost of GPU-hours, a number or an array; NaN without a price."""
    return gpu_hours * (math.nan if price_per_gpu_hour is None else price_per_gpu_hour)


@dataclass(frozen=True, kw_only=True)
class SweepBudget:
    """The limits of the section `sweep.budget`, where None means no limit, and what was used of them before."""

    gpu_hours: float | None = None
    """GPU-hours of all trials, including earlier runs; hours of worker processes if there are no GPUs."""
    wall_s: float | None = None  # seconds since this run began
    cost: float | None = None
    price_per_gpu_hour: float | None = None
    used_gpu_s: float = 0.0  # GPU-seconds of earlier runs
    used_wall_s: float = 0.0  # seconds of this run before its first trial

    def reached(self, *, gpu_s: float, wall_s: float) -> str:
        """Return a message about the first limit that this usage reaches; empty if there is none."""
        hours = gpu_s / 3600
        cost = cost_of(hours, self.price_per_gpu_hour)
        usage = (("gpu_hours", hours, self.gpu_hours), ("wall_s", wall_s, self.wall_s), ("cost", cost, self.cost))
        for name, used, limit in usage:
            if limit is not None and used >= limit:
                return f"sweep.budget.{name}={limit:g} was used up"
        return ""
