"""The training loop: epochs of optimizer steps until the budget is spent, and further steps for timing.

`TrainingPlan` says how long to train, at which rates and with which batches; `Progress` counts how far the training
has come; `Loop` takes the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.lr_rule import LearningRate
from sweeps.trial import BUDGET_UNITS, samples_in
from trainables.context import Context, DivergedError
from trainables.inputs.feed import Feed
from trainables.inputs.sequences import Sequences
from trainables.optimizers import schedules
from trainables.optimizers.schedules import Growth, Schedule
from trainables.process_group import RankGroup
from trainables.step.stopwatch import Parts
from trainables.supervised.replica import Replica
from trainables.timed_window import Clock

STEP_ROUNDING = 1e-6  # the rounding error, in steps, that a sum of many parts of steps may have


@dataclass(frozen=True, kw_only=True)
class TrainingLength:
    """The length of a training: a number of samples, or of seconds; exactly one of them is set.

    The training ends with the step that completes the samples, so that it trains less than a batch more.
    """

    samples: float | None = None
    seconds: float | None = None
    end: float = math.inf  # the sample after which the training ends although the schedule goes on

    @staticmethod
    def of(
        config: Mapping[str, Any],
        *,
        epoch_samples: int,
        global_batch_size: int,
        sequence_length: int | None = None,
        end_tokens: int | None = None,
    ) -> TrainingLength:
        """Return the budget of the config's `budget` section, at least one sample. Raises ValueError.

        The training of a language model ends after `end_tokens`, also if the budget and with it the schedule are
        longer.
        """
        given = {kind: config[kind] for kind in BUDGET_UNITS if config.get(kind) is not None}
        if len(given) != 1:
            raise ValueError(f"budget: exactly one of {', '.join(BUDGET_UNITS)} must be set, not {given or 'none'}")
        [(kind, amount)] = given.items()
        if not amount > 0:
            raise ValueError(f"budget.{kind}={amount} is not above 0")
        if kind == "seconds":
            return TrainingLength(seconds=float(amount))
        if kind == "tokens" and sequence_length is None:
            raise ValueError(f"budget.tokens={amount} is a length for language models; images count as samples")
        samples = samples_in(
            kind, epoch_samples=epoch_samples, batch_size=global_batch_size, sequence_length=sequence_length
        )
        end = math.inf if end_tokens is None else end_tokens / (sequence_length or 1)
        return TrainingLength(samples=max(1.0, amount * samples), end=end)

    def room(self, position: float, train_s: float, *, step_samples: int) -> int:
        """Return how many steps may be taken before the next call, after `position` samples in `train_s`; 0 at the end.

        A step advances the position by at most `step_samples`.
        """
        if self.samples is not None:
            # The position is a sum of parts of steps with AdaScale, and rounding must not add a step.
            left = min(self.samples, self.end) - position
            return max(0, math.ceil(left / step_samples - STEP_ROUNDING))
        left_s = (self.seconds or 0.0) - train_s
        if left_s <= 0:
            return 0
        # No speed is known yet: one step shows it.
        if not position:
            return 1
        # Half of the time left at the speed so far, so that the training ends within a step of the budget.
        samples_left = left_s * position / train_s
        return max(1, math.floor(samples_left / step_samples / 2))

    def in_samples(self, position: float, train_s: float) -> float:
        """Return the whole length in samples; of seconds it is predicted from the speed, and infinite at the start."""
        if self.samples is not None:
            return self.samples
        return position * (self.seconds or 0.0) / train_s if position else math.inf


@dataclass(kw_only=True)
class Progress:
    """How far a training has come, as plain numbers that are the same on all ranks; a checkpoint holds them."""

    epoch: int = 1  # the number of the current epoch, or of the next one
    epoch_steps: int = 0  # optimizer steps in this epoch so far
    epoch_samples: int = 0  # samples of all ranks in this epoch so far
    epoch_s: float = 0.0  # seconds in this epoch so far, on the slowest rank
    steps: int = 0
    samples: int = 0
    position: float = 0.0
    """Position in budget and schedule, in samples; with AdaScale a step may count for fewer samples than it has."""
    train_s: float = 0.0  # seconds of training, without the time between epochs
    lr: float = math.nan  # the learning rate of the last step
    times: int = 1  # size of the current batch as a multiple of the initial batch

    def count_step(self, samples: int, advance: float, lr: float) -> None:
        """Count a step that advances the position by the share `advance` of its samples."""
        self.steps += 1
        self.epoch_steps += 1
        self.samples += samples
        self.epoch_samples += samples
        self.position += advance * samples
        self.lr = lr


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Length, learning rates and batch sizes of a training, as functions of the progress that all ranks share."""

    length: TrainingLength
    lr: LearningRate
    schedule: Schedule
    growth: Growth = Growth()
    batch_size: int  # the initial global batch size, in samples
    epoch_samples: int

    @staticmethod
    def of(config: Mapping[str, Any], lr: LearningRate, feed: Feed, *, end_tokens: int | None = None) -> TrainingPlan:
        """Return the plan of the sections `budget` and `schedule`; see `TrainingLength.of`. Raises ValueError."""
        batch_size = feed.batch.global_batch_size
        growth = Growth.of(config["schedule"])
        if messages := list(growth.errors(config, [lr.rule])):
            raise ValueError("; ".join(messages))
        return TrainingPlan(
            length=TrainingLength.of(
                config["budget"],
                epoch_samples=feed.epoch_samples,
                global_batch_size=batch_size,
                sequence_length=feed.part.length if isinstance(feed.part, Sequences) else None,
                end_tokens=end_tokens,
            ),
            lr=lr,
            schedule=schedules.resolve(config["schedule"]),
            growth=growth,
            batch_size=batch_size,
            epoch_samples=feed.epoch_samples,
        )

    def room(self, at: Progress) -> int:
        """Return how many steps may be taken before the next call; 0 at the end."""
        room = self.length.room(at.position, at.train_s, step_samples=self.step_samples(at))
        length = self.length.in_samples(at.position, at.train_s)
        for milestone in self.growth.milestones:
            if room and math.isfinite(length) and at.position < milestone * length:
                # Never past a milestone in one go: the batch changes exactly there.
                steps = math.ceil((milestone * length - at.position) / self.step_samples(at))
                return min(room, max(1, steps))
        return room

    def steps_to_epoch_end(self, at: Progress) -> int:
        """Return the number of steps up to the one that completes the epoch; it may begin the next epoch, too."""
        return math.ceil((at.epoch * self.epoch_samples - at.samples) / self.step_samples(at))

    def step_samples(self, at: Progress) -> int:
        """Return the samples of the next step."""
        return self.batch_size * at.times

    def rate(self, at: Progress) -> float:
        """Return the learning rate of the next step."""
        length = self.length.in_samples(at.position, at.train_s)
        # Steps for timing follow after the end, at the last rate of the schedule.
        position = min(at.position, length)
        rate = self.lr.at(position, self.epoch_samples) * self.schedule(position, length)
        return rate * self.growth.rate(self._share(at), self.batch_size) if self.growth.milestones else rate

    def times(self, at: Progress) -> int:
        """Return the size of the next step's batch as a multiple of the initial batch."""
        return self.growth.times(self._share(at), self.batch_size)

    def _share(self, at: Progress) -> float:
        length = self.length.in_samples(at.position, at.train_s)
        return min(1.0, at.position / length) if length else 1.0


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The training part of an epoch, without evaluation: the steps up to the one that completes the epoch's samples.

    If the batch does not divide an epoch, epochs differ by one step.
    """

    number: int
    seconds: float  # seconds on the slowest rank
    steps: int
    samples: int
    loss: float  # the mean over the samples of these steps, each computed with the weights of its step
    lr: float  # the learning rate of the last step
    parts: Parts = Parts()  # what this rank's time was spent on; see `trainables.step.stopwatch`


LOOK_EVERY_S = 1.0
LOOK_EVERY_STEPS = 512
"""The host reads the loss and checks for stop requests about once a second, after this many steps at most."""


class Loop:
    """Takes the steps of a training; all ranks take the same ones."""

    def __init__(
        self,
        replica: Replica,
        plan: TrainingPlan,
        *,
        clock: Clock,
        rank_group: RankGroup,
        context: Context,
        at: Progress | None = None,
    ) -> None:
        """With `at` the training continues from there, with the replica in its state at that point."""
        self.replica, self._step, self._plan = replica, replica.step, plan
        self.clock, self.rank_group, self.context = clock, rank_group, context
        self.at = at or Progress()
        self._stride = 1
        # From the sample where a checkpoint was written, so that no sample is seen twice.
        self._batches = replica.batches(self.at.samples)
        self.stopped = False  # whether any rank was asked to stop early

    def epochs(self) -> Iterator[Epoch]:
        """Train, and yield each epoch; time between epochs is not counted. Raises DivergedError.

        `at` is then at the beginning of the next epoch, or where the training stopped within this one.
        """
        while not self.stopped and (self._room() or self.at.epoch_steps):
            with self.context.phase("training"):
                # Ranks come from evaluating at different times; waiting for one another must not count as training.
                self.rank_group.meet()
                epoch = self._train_epoch()
            yield epoch

    def step(self) -> None:
        """Take one optimizer step on the next global batch, whether or not the budget is spent."""
        # With AdaScale a step counts for fewer samples than it has, and its rate is larger.
        pace = self.replica.noise.pace()
        lr = pace.gain * self._plan.rate(self.at)
        self.replica.stopwatch.step(lambda: self._step(self._batches, lr))
        self.at.count_step(self._plan.step_samples(self.at), pace.advance, lr)

    def _train_epoch(self) -> Epoch:
        """Take steps to the end of the epoch, of the budget, or until a stop is requested."""
        at, before_s = self.at, self.at.train_s - self.at.epoch_s
        started = self.clock.read() - at.epoch_s
        parts = self.replica.stopwatch.parts()
        # Continued within an epoch: the loss of its first part came back with the checkpoint.
        if at.epoch_steps:
            total = self._look()
        else:
            total = 0.0
            self._step.loss.zero_()
        # `_room` comes first: it may change the batch, and so the number of steps that are left of the epoch.
        while not self.stopped and (room := min(self._room(), self._plan.steps_to_epoch_end(at))):
            # Between two looks the host runs ahead of the device, which otherwise would wait for it.
            looked_s = at.train_s
            for _ in range(min(room, self._stride)):
                self.step()
            total = self._look()
            (at.epoch_s,) = self.rank_group.largest(self.clock.read() - started)
            at.train_s = before_s + at.epoch_s
            # Look more or less often, so that looks are about `LOOK_EVERY_S` apart.
            if at.train_s - looked_s < LOOK_EVERY_S / 2:
                self._stride = min(2 * self._stride, LOOK_EVERY_STEPS)
            elif at.train_s - looked_s > LOOK_EVERY_S:
                self._stride = max(1, self._stride // 2)
        epoch = Epoch(
            number=at.epoch,
            seconds=at.epoch_s,
            steps=at.epoch_steps,
            samples=at.epoch_samples,
            loss=total / (at.epoch_samples / self._plan.batch_size) / self.rank_group.world_size,
            lr=at.lr,
            parts=self.replica.stopwatch.parts() - parts,
        )
        if not self.stopped:
            at.epoch, at.epoch_steps, at.epoch_samples, at.epoch_s = at.epoch + 1, 0, 0, 0.0
        return epoch

    def _room(self) -> int:
        """Enlarge the batch if it is time, and return how many steps may be taken before the next call."""
        times = self._plan.times(self.at)
        if times != self.at.times:
            self.at.times = times
            self.replica.enlarge(times)
            self._batches = self.replica.batches(self.at.samples)
        return self._plan.room(self.at)

    def _look(self) -> float:
        """Wait for the device, and return the epoch's loss summed over steps and ranks; note a stop request."""
        # All ranks must see the same, so that all of them raise DivergedError or stop together.
        seen = self._step.loss.new_tensor([0.0, float(self.context.should_stop())])
        seen[0] = self._step.loss
        total, stops = self.rank_group.sum(seen).tolist()
        self.stopped = stops > 0
        if not math.isfinite(total):
            raise DivergedError(f"the loss is {total} after {self.at.steps} steps, at learning rate {self.at.lr:g}")
        return float(total)
