"""What is laid down for a training before it begins: how long, at which rates, in which batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.context import LearningRate
from trainables.inputs.inputs import Feed
from trainables.optimizers import schedules
from trainables.optimizers.growth import Growth
from trainables.optimizers.schedules import Rates
from trainables.supervised.budget import Budget
from trainables.supervised.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Course:
    """Answers for any `Progress`; all ranks are given the same answers."""

    budget: Budget
    rates: Rates
    growth: Growth = Growth()
    batch_size: int
    """Samples of a step, as long as no batch grows."""

    @staticmethod
    def of(config: Mapping[str, Any], lr: LearningRate, feed: Feed) -> Course:
        """From the sections `budget` and `schedule`. Raises ValueError for what they cannot be."""
        per_epoch, batch_size = feed.steps_per_epoch, feed.batch.global_batch_size
        growth = Growth.of(config["schedule"])
        if mistake := growth.why_not(config["budget"]):
            raise ValueError(mistake)
        return Course(
            budget=Budget.of(config["budget"], steps_per_epoch=per_epoch, global_batch_size=batch_size),
            rates=Rates(
                lr=lr,
                schedule=schedules.resolve(config["schedule"]),
                warmup_samples=lr.warmup_epochs * per_epoch * batch_size,
            ),
            growth=growth,
            batch_size=batch_size,
        )

    def room(self, at: Progress) -> int:
        """How many steps may be taken before it must be asked again; 0 at the end."""
        room = self.budget.room(at.position, at.train_s, worth=at.times)
        length = self.budget.length(at.position, at.train_s)
        for milestone in self.growth.milestones:
            if room and math.isfinite(length) and at.position < milestone * length:
                return min(room, max(1, math.ceil((milestone * length - at.position) / at.times)))
        return room

    def rate(self, at: Progress) -> float:
        """The learning rate of the next step."""
        length = self.budget.length(at.position, at.train_s)
        rate = self.rates.at(min(at.position, length) * self.batch_size, length * self.batch_size)
        return rate * self.growth.rate(self._share(at), self.batch_size) if self.growth.milestones else rate

    def times(self, at: Progress) -> int:
        """How many times as large as at first the next step's batch is."""
        return self.growth.times(self._share(at), self.batch_size)

    def end_epoch(self, at: Progress) -> None:
        """Go on to the next epoch. A budget in epochs counts whole ones, whatever a larger batch has left out."""
        if self.growth.milestones and self.budget.steps_per_epoch:
            at.position = float(at.epoch * self.budget.steps_per_epoch)
        at.next_epoch()

    def _share(self, at: Progress) -> float:
        length = self.budget.length(at.position, at.train_s)
        return min(1.0, at.position / length) if length else 1.0
