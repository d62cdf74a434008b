"""What is laid down for a training before it begins: how long, at which rates, in which batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainables.optimizers.growth import Growth
from trainables.optimizers.learning_rate import Rates
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
        position = min(at.position, length)
        falls = self.growth.rate(self._share(at), self.batch_size)
        return falls * self.rates.at(position * self.batch_size, length * self.batch_size)

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
