"""The training loop: epochs until the budget is spent, and further steps to time.

How long a trial trains.

How far a training has come: plain figures, the same on all ranks.

What is laid down for a training before it begins: how long, at which rates, in which batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Protocol

from trainables.clock import Clock
from trainables.context import Context, DivergedError, LearningRate
from trainables.gradient_noise import Pace
from trainables.inputs.inputs import Feed, Inputs, Minibatch
from trainables.inputs.pause import paused
from trainables.optimizers import schedules
from trainables.optimizers.schedules import Growth, Rates
from trainables.process_group import Gang
from trainables.step.stopwatch import Parts, Stopwatch
from trainables.step.training_step import Step

KINDS = ("epochs", "samples", "steps", "seconds")
ROUNDING = 1e-6
"""Of a step: what the sum of many parts of steps may be off by."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A number of steps, or of seconds of training; exactly one of them."""

    steps: int | None = None
    seconds: float | None = None
    steps_per_epoch: int | None = None
    """Where it was given in epochs."""

    @staticmethod
    def of(config: Mapping[str, Any], *, steps_per_epoch: int, global_batch_size: int) -> Budget:
        """From the one of epochs, samples, steps and seconds that is set; at least one step. Raises ValueError."""
        given = {kind: config[kind] for kind in KINDS if config.get(kind) is not None}
        if len(given) != 1:
            raise ValueError(f"budget: exactly one of {', '.join(KINDS)} must be set, not {given or 'none'}")
        [(kind, amount)] = given.items()
        if not amount > 0:
            raise ValueError(f"budget.{kind}={amount} is not above 0")
        if kind == "seconds":
            return Budget(seconds=float(amount))
        steps = {"epochs": amount * steps_per_epoch, "samples": amount / global_batch_size, "steps": amount}[kind]
        return Budget(steps=max(1, round(steps)), steps_per_epoch=steps_per_epoch if kind == "epochs" else None)

    def room(self, steps: float, train_s: float, *, worth: int = 1) -> int:
        """How many steps may be taken, after `steps` in `train_s`, before it must be asked again; 0 at the end.

        Each may count for less than `worth` steps, never for more. Of the time left it grants half at the speed so far,
        so that the end is met to within a step; of larger steps the last is taken if at least half of it is left.
        """
        if self.steps is not None:
            left = (self.steps - steps) / worth
            return math.floor(left + 0.5) if worth > 1 else math.ceil(left - ROUNDING)
        if self._left_s(train_s) <= 0:
            return 0
        return max(1, math.floor(self._left_s(train_s) * steps / train_s / worth / 2)) if steps else 1

    def length(self, steps: float, train_s: float) -> float:
        """The whole length in steps: exact, or as the speed so far foretells it; infinite before the first step."""
        if self.seconds is None:
            return float(self.steps or 0)
        return steps * self.seconds / train_s if steps else math.inf

    def _left_s(self, train_s: float) -> float:
        return (self.seconds or 0.0) - train_s


@dataclass(kw_only=True)
class Progress:
    """Counted up by the loop; what a continued training begins with."""

    epoch: int = 1
    """The number of the epoch that is under way, or comes next."""
    epoch_steps: int = 0
    """Optimizer steps of it so far …"""
    epoch_samples: int = 0
    """… their samples, of all ranks …"""
    epoch_s: float = 0.0
    """… and their seconds, the slowest rank's."""
    steps: int = 0
    samples: int = 0
    position: float = 0.0
    """How far budget and schedule are, in steps of the trial's own batch: not every step need count for one."""
    train_s: float = 0.0
    """Seconds of training, without whatever came between epochs."""
    lr: float = math.nan
    """Of the last step."""
    times: int = 1
    """How many times the trial's own batch a step now takes."""

    def count_step(self, samples: int, advance: float, lr: float) -> None:
        """A step more, which counts for `advance` steps of the trial's own batch."""
        self.steps += 1
        self.epoch_steps += 1
        self.samples += samples
        self.epoch_samples += samples
        self.position += advance
        self.lr = lr

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch += 1
        self.epoch_steps = self.epoch_samples = 0
        self.epoch_s = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Answers for any `Progress`; all ranks are given the same answers."""

    budget: Budget
    rates: Rates
    growth: Growth = Growth()
    batch_size: int
    """Samples of a step, as long as no batch grows."""

    @staticmethod
    def of(config: Mapping[str, Any], lr: LearningRate, feed: Feed) -> TrainingPlan:
        """From the sections `budget` and `schedule`. Raises ValueError for what they cannot be."""
        per_epoch, batch_size = feed.steps_per_epoch, feed.batch.global_batch_size
        growth = Growth.of(config["schedule"])
        if message := growth.why_not(config["budget"]):
            raise ValueError(message)
        return TrainingPlan(
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
        course: TrainingPlan,
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
