"""The learning rate all along a training: what the trial's rule gives, warmed up, times the schedule's factor."""

from __future__ import annotations

from dataclasses import dataclass

from trainables.context import LearningRate
from trainables.optimizers.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Positions are in samples seen, so that trials with different batches follow the same curve."""

    lr: LearningRate
    schedule: Schedule
    warmup_samples: float

    def at(self, position: float, length: float) -> float:
        """The rate for the step after `position` samples of a training of `length` samples.

        The warm-up is linear in samples (Goyal et al. 2017, section 2.2) and the schedule counts from sample 0 with or
        without it, so that its milestones stay where they are.
        """
        return self._warm(position) * self.schedule(position, length)

    def _warm(self, position: float) -> float:
        if position >= self.warmup_samples:
            return self.lr.value
        return self.lr.warmup_from + (self.lr.value - self.lr.warmup_from) * position / self.warmup_samples
