"""The training loop: epochs until the budget is spent, and further steps to time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Protocol

from trainables.clock import Clock
from trainables.context import Context, DivergedError
from trainables.inputs.inputs import Inputs, Minibatch
from trainables.inputs.pause import paused
from trainables.noise.adascale import Pace
from trainables.process_group import Gang
from trainables.step.stopwatch import Parts, Stopwatch
from trainables.step.training_step import Step
from trainables.supervised.course import Course
from trainables.supervised.progress import Progress

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
    samples: int
    loss: float
    """Mean over the epoch's samples, each under the weights of its own step."""
    lr: float
    """Of the last step."""
    parts: Parts = Parts()
    """This rank's own; see `trainables.step.stopwatch`."""


class Trained(Protocol):
    """What a loop drives."""

    step: Step
    inputs: Inputs
    stopwatch: Stopwatch
    pause: Callable[[], None] | None
    """Before every pass, of a rank that is slowed down."""

    def pace(self) -> Pace:
        """What the next step is worth."""

    def enlarge(self, times: int) -> None:
        """Take steps of so many times the trial's own batch from now on; inputs asked again give such batches."""


class Loop:
    """Takes steps; all ranks the same ones."""

    def __init__(
        self,
        replica: Trained,
        course: Course,
        *,
        clock: Clock,
        gang: Gang,
        context: Context,
        at: Progress | None = None,
    ) -> None:
        """`at` is where the training goes on from, with the replica as it was there; None: it begins."""
        self._replica, self._step, self._course = replica, replica.step, course
        self._clock, self._gang, self._context = clock, gang, context
        self.at = at or Progress()
        self._stride = 1
        self._batches = self._batches_from(self.at)
        self.stopped = False
        """Whether any rank was asked to end early."""

    def epochs(self) -> Iterator[Epoch]:
        """Train; between the epochs the time stands still. Raises DivergedError.

        `at` is then at the beginning of the next epoch, or where the training stopped within this one.
        """
        while not self.stopped and (self._room() or self.at.epoch_steps):
            with self._context.phase("training"):
                self._gang.meet()
                epoch = self._epoch()
            yield epoch

    def step(self) -> None:
        """One optimizer step on the next global batch, whatever the budget says."""
        pace = self._replica.pace()
        lr = pace.gain * self._course.rate(self.at)
        self._replica.stopwatch.step(lambda: self._step(self._batches, lr))
        self.at.count_step(self._replica.inputs.feed.batch.global_batch_size, pace.advance * self.at.times, lr)

    def _epoch(self) -> Epoch:
        at, before_s = self.at, self.at.train_s - self.at.epoch_s
        started = self._clock.read() - at.epoch_s
        parts = self._replica.stopwatch.parts()
        if at.epoch_steps:
            total = self._look()
        else:
            total = 0.0
            self._step.loss.zero_()
        while not self.stopped and (room := min(self._room(), self._left())):
            looked_s = at.train_s
            for _ in range(min(room, self._stride)):
                self.step()
            total = self._look()
            (at.epoch_s,) = self._gang.largest(self._clock.read() - started)
            at.train_s = before_s + at.epoch_s
            self._pace(at.train_s - looked_s)
        epoch = Epoch(
            number=at.epoch,
            seconds=at.epoch_s,
            steps=at.epoch_steps,
            samples=at.epoch_samples,
            loss=total / (at.epoch_samples / self._course.batch_size) / self._gang.world_size,
            lr=at.lr,
            parts=self._replica.stopwatch.parts() - parts,
        )
        if not self.stopped:
            self._course.end_epoch(at)
        return epoch

    def _room(self) -> int:
        """Steps until it must be asked again, after batches have grown where it is time."""
        times = self._course.times(self.at)
        if times != self.at.times:
            self.at.times = times
            self._replica.enlarge(times)
            self._batches = self._batches_from(self.at)
        return self._course.room(self.at)

    def _left(self) -> int:
        """Whole steps of the epoch that are left."""
        return self._replica.inputs.feed.steps_from(self.at.epoch_samples)

    def _batches_from(self, at: Progress) -> Iterator[Minibatch]:
        epoch = self._replica.inputs.epoch
        batches = chain(epoch(at.epoch, at.epoch_samples), chain.from_iterable(map(epoch, count(at.epoch + 1))))
        fetched = self._replica.stopwatch.fetching(batches)
        return paused(fetched, self._replica.pause) if self._replica.pause else fetched

    def _look(self) -> float:
        """The epoch's losses summed over its steps; all ranks see the same, so that all raise or stop together."""
        seen = self._step.loss.new_tensor([0.0, float(self._context.should_stop())])
        seen[0] = self._step.loss
        total, stops = self._gang.sum(seen).tolist()
        self.stopped = stops > 0
        if not math.isfinite(total):
            raise DivergedError(f"the loss is {total} after {self.at.steps} steps, at learning rate {self.at.lr:g}")
        return float(total)

    def _pace(self, seconds: float) -> None:
        if seconds < LOOK_EVERY_S / 2:
            self._stride = min(2 * self._stride, LOOK_EVERY_STEPS)
        elif seconds > LOOK_EVERY_S:
            self._stride = max(1, self._stride // 2)
