"""The training loop: epochs until the budget is spent, and further steps to time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count

from trainables.adascale import Pace
from trainables.budget import Budget
from trainables.clock import Clock
from trainables.context import Context, DivergedError
from trainables.inputs import Inputs
from trainables.learning_rate import Rates
from trainables.process_group import Gang
from trainables.training_step import Step

LOOK_EVERY_S = 1.0
LOOK_EVERY_STEPS = 512
"""How far the host runs ahead, at most, before it looks whether the loss is finite and whether to stop."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The training part of an epoch."""

    number: int
    seconds: float
    """The slowest rank's."""
    steps: int
    loss: float
    """Mean over the epoch's samples, each under the weights of its own step."""
    lr: float
    """Of the last step."""


class Loop:
    """Takes steps; all ranks the same ones."""

    def __init__(
        self,
        step: Step,
        inputs: Inputs,
        *,
        budget: Budget,
        rates: Rates,
        clock: Clock,
        gang: Gang,
        context: Context,
        pace: Callable[[], Pace] = Pace,
    ) -> None:
        self._step, self._inputs, self._budget, self._rates = step, inputs, budget, rates
        self._clock, self._gang, self._context = clock, gang, context
        self._batches = chain.from_iterable(map(inputs.epoch, count(1)))
        self._lr, self._pace_now = math.nan, pace
        self._stride = 1
        self.steps = 0
        self.progress = 0.0
        """How far budget and schedule are, in steps: not every step need count whole."""
        self.train_s = 0.0
        """Seconds of training so far, the slowest rank's, without whatever came between epochs."""
        self.stopped = False
        """Whether any rank was asked to end early."""

    def epochs(self) -> Iterator[Epoch]:
        """Train; between the epochs the time stands still. Raises DivergedError."""
        for number in count(1):
            if self.stopped or not self._room():
                return
            yield self._epoch(number)

    def step(self) -> None:
        """One optimizer step on the next global batch, whatever the budget says."""
        batch_size = self._context.batch.global_batch_size
        length, pace = self._budget.length(self.progress, self.train_s), self._pace_now()
        self._lr = pace.gain * self._rates.at(min(self.progress, length) * batch_size, length * batch_size)
        self._step(self._batches, self._lr)
        self.steps += 1
        self.progress += pace.advance

    def _epoch(self, number: int) -> Epoch:
        first, before_s, started = self.steps, self.train_s, self._clock.read()
        self._step.loss.zero_()
        total = 0.0
        while not self.stopped and (room := min(self._room(), first + self._inputs.feed.steps_per_epoch - self.steps)):
            looked_s = self.train_s
            for _ in range(min(room, self._stride)):
                self.step()
            total = self._look()
            (elapsed_s,) = self._gang.largest(self._clock.read() - started)
            self.train_s = before_s + elapsed_s
            self._pace(self.train_s - looked_s)
        return Epoch(
            number=number,
            seconds=self.train_s - before_s,
            steps=self.steps - first,
            loss=total / (self.steps - first) / self._gang.world_size,
            lr=self._lr,
        )

    def _room(self) -> int:
        return self._budget.room(self.progress, self.train_s)

    def _look(self) -> float:
        """The epoch's losses summed over its steps; all ranks see the same, so that all raise or stop together."""
        seen = self._step.loss.new_tensor([0.0, float(self._context.should_stop())])
        seen[0] = self._step.loss
        total, stops = self._gang.sum(seen).tolist()
        self.stopped = stops > 0
        if not math.isfinite(total):
            raise DivergedError(f"the loss is {total} after {self.steps} steps, at learning rate {self._lr:g}")
        return float(total)

    def _pace(self, seconds: float) -> None:
        if seconds < LOOK_EVERY_S / 2:
            self._stride = min(2 * self._stride, LOOK_EVERY_STEPS)
        elif seconds > LOOK_EVERY_S:
            self._stride = max(1, self._stride // 2)
