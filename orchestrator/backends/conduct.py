"""How attempts are run, independent of the trial."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.backends.watch import NO_LIMITS, Limits
from orchestrator.telemetry.sampler import Sampling

BEHIND = 3
"""A trial that, within its training, falls short by so many margins of the best one that is as fast ends there."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Which trials are stopped early as hopeless."""

    after: float
    """Share of its budget that every trial gets."""
    behind: float
    """By how much its validation accuracy has to fall short of the best one's that is as fast."""


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """Settings of a back end for all attempts."""

    workers: str = "per_seed"
    """Which trials a gang's processes serve, one after another. per_seed: those of one seed; warm: all; fresh: one."""
    start_ahead: bool = False
    """Whether processes may start before their gang's GPUs are free, where that spoils no timing."""
    limits: Limits = NO_LIMITS
    sampling: Sampling = field(default_factory=Sampling)
    early_stopping: EarlyStopping | None = None
    """None: every trial gets its whole budget."""
