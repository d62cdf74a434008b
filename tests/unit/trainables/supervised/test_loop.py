"""Steps and times that a loop counts, by a clock that only advances with steps and evaluations."""

import math
from dataclasses import asdict
from itertools import count, pairwise
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sweeps.lr_rule import LearningRate
from trainables.context import Context, DivergedError
from trainables.gradient_noise import Pace
from trainables.optimizers.schedules import Growth
from trainables.process_group import RankGroup
from trainables.step.stopwatch import Stopwatch
from trainables.supervised.loop import LOOK_EVERY_STEPS, Loop, Progress, TrainingLength, TrainingPlan
from trainables.supervised.replica import Replica
from trainables.timed_window import Clock

BATCH, STEPS = 8, 5
"""Samples of a step, and steps of an epoch."""


class Stage:
    """A replica of which each step takes so long, and whose loss is the step's number in its epoch, from 1."""

    def __init__(self, step_s=0.5, *, steps=STEPS, advance=1.0):
        self.now_s, self.step_s, self._advance = 100.0, step_s, advance
        self.taken: list[tuple[int, int]] = []
        """Epoch and first sample of each step."""
        self.loss = torch.zeros((), dtype=torch.float64)
        self.stopwatch = Stopwatch("cpu", self.read)
        self.epoch_samples, self.size = steps * BATCH, BATCH

    @property
    def step(self):
        return self

    @property
    def noise(self):
        return self

    def __call__(self, batches, lr):
        self.taken.append(next(batches))
        self.now_s += self.step_s
        self.loss += 1 + self.taken[-1][1] // BATCH

    def batches(self, start):
        for first in count(start, self.size):
            yield 1 + first // self.epoch_samples, first % self.epoch_samples

    def pace(self):
        return Pace(advance=self._advance)

    def read(self):
        return self.now_s


class TwoAlike(RankGroup):
    """A gang of two ranks that do the same."""

    def sum(self, values):
        return values.mul_(2)

    def largest(self, *values):
        return values


ALONE = RankGroup(rank=0, world_size=1, device="cpu", gang_id="")
NO_GROWTH = Growth()


def loop(stage, *, steps=15, at=None, rank_group=ALONE, growth=NO_GROWTH, **context):
    plan = TrainingPlan(
        length=TrainingLength(samples=steps * BATCH),
        lr=LearningRate(value=0.1, warmup_from=0.1),
        schedule=lambda position, length: 1.0,
        growth=growth,
        batch_size=BATCH,
        epoch_samples=stage.epoch_samples,
    )
    clock, place = Clock("cpu", stage.read), Context.alone(**context)
    return Loop(cast(Replica, stage), plan, clock=clock, rank_group=rank_group, context=place, at=at)


def trained(stage, running):
    """The epochs, between which an evaluation takes 7 s."""
    epochs = []
    for epoch in running.epochs():
        stage.now_s += 7.0
        epochs.append(epoch)
    return epochs


@pytest.mark.parametrize("rank_group", [ALONE, TwoAlike(rank=0, world_size=2, device="cpu", gang_id="two")])
def test_epochs_have_steps_seconds_and_mean_loss(rank_group):
    stage = Stage()
    running = loop(stage, steps=13, rank_group=rank_group)
    epochs = trained(stage, running)
    assert [(epoch.number, epoch.steps, epoch.samples, epoch.seconds, epoch.loss) for epoch in epochs] == [
        (1, 5, 40, 2.5, 3.0),
        (2, 5, 40, 2.5, 3.0),
        (3, 3, 24, 1.5, 2.0),
    ]
    assert stage.taken == [(1 + step // 5, step % 5 * BATCH) for step in range(13)]
    at = running.at
    assert (at.steps, at.samples, at.position, at.train_s) == (13, 104, 104.0, 6.5)
    assert [epoch.parts.step_s for epoch in epochs] == [2.5, 2.5, 1.5]


@pytest.mark.parametrize("after_s", [0.5, 1.5, 2.0, 3.0, 6.0])
def test_stop_within_an_epoch_changes_no_later_epoch(after_s):
    whole, first = Stage(), Stage()
    wanted = trained(whole, loop(whole))
    running = loop(first, stop_requested=lambda: first.now_s >= 100 + after_s)
    earlier = trained(first, running)
    assert running.stopped and len(first.taken) < 15
    second = Stage()
    second.now_s, second.loss = 5000.0, first.loss
    later = loop(second, at=Progress(**asdict(running.at)))
    epochs = trained(second, later)
    assert first.taken + second.taken == whole.taken
    told = [(epoch.number, epoch.steps, epoch.samples, epoch.seconds, epoch.loss) for epoch in (*earlier[:-1], *epochs)]
    assert told == [(epoch.number, epoch.steps, epoch.samples, epoch.seconds, epoch.loss) for epoch in wanted]
    assert later.at.train_s == 7.5


def test_steps_that_advance_less_make_training_longer():
    stage = Stage(advance=0.25)
    running = loop(stage, steps=2)
    assert [epoch.steps for epoch in trained(stage, running)] == [5, 3] and running.at.position == 2.0 * BATCH


class Growing(Stage):
    """Takes larger batches when it is told to."""

    def enlarge(self, times):
        self.size = BATCH * times


def test_larger_batches_advance_by_their_multiple():
    stage = Growing(steps=40)
    running = loop(stage, steps=20, growth=Growth(milestones=(0.5,), factor=2))
    (epoch,) = trained(stage, running)
    assert (epoch.steps, epoch.samples, running.at.position, running.at.times) == (15, 160, 160.0, 2)
    starts = [start for _, start in stage.taken]
    assert starts == [*range(0, 80, 8), *range(80, 160, 16)]


class Diverging(Stage):
    """Its loss is no number in the sixth step."""

    def __init__(self, loss):
        super().__init__(3.0)
        self._loss = loss

    def __call__(self, batches, lr):
        super().__call__(batches, lr)
        if len(self.taken) == 6:
            self.loss.fill_(self._loss)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_non_finite_loss_ends_the_training(loss):
    stage = Diverging(loss)
    with pytest.raises(DivergedError, match="6 steps.* 0.1$"):
        trained(stage, loop(stage))


@pytest.mark.parametrize(("step_s", "apart"), [(3.0, 1), (0.3, 2), (0.0001, LOOK_EVERY_STEPS)])
def test_host_checks_for_a_stop_once_a_second(step_s, apart):
    stage, looks = Stage(step_s, steps=5000), [0]

    def look():
        looks.append(len(stage.taken))
        return False

    trained(stage, loop(stage, steps=5000, stop_requested=look))
    between = [later - earlier for earlier, later in pairwise(looks)]
    assert max(between) == apart and between[0] == 1
    assert max(later / earlier for earlier, later in pairwise(between)) <= 2


def test_host_soon_looks_after_each_slow_step():
    stage, looks = Stage(0.0001, steps=5000), [0]

    def look():
        looks.append(len(stage.taken))
        stage.step_s = 0.0001 if len(stage.taken) < 2000 else 3.0
        return False

    trained(stage, loop(stage, steps=5000, stop_requested=look))
    between = [later - earlier for earlier, later in pairwise(looks)]
    slow = between[between.index(max(between)) :]
    assert slow[0] == LOOK_EVERY_STEPS and slow[-100:] == [1] * 100 and len([steps for steps in slow if steps > 1]) < 15


def budget(**config):
    return TrainingLength.of(config, epoch_samples=1300, global_batch_size=64, sequence_length=8)


@pytest.mark.parametrize(
    ("config", "samples", "steps"),
    [
        ({"epochs": 3, "samples": None}, 3900, 61),  # 60.9 steps
        ({"epochs": 0.5}, 650, 11),
        ({"samples": 6400}, 6400, 100),
        ({"samples": 6420}, 6420, 101),
        ({"samples": 1}, 1, 1),
        ({"tokens": 6400 * 8}, 6400, 100),
        ({"tokens": 1}, 1, 1),
        ({"steps": 7}, 448, 7),
    ],
)
def test_every_kind_of_budget_is_a_number_of_samples(config, samples, steps):
    given = budget(**config)
    assert given.samples == samples
    assert given.room(0, 0.0, step_samples=64) == steps
    assert (given.room(192, 1.0, step_samples=64), given.in_samples(192, 1.0)) == (max(0, steps - 3), samples)


@given(
    epoch_samples=st.integers(1, 3000),
    share=st.floats(0.001, 1),
    epochs=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 4), max_size=3),
)
def test_training_does_its_budget_within_a_batch(epoch_samples, share, epochs, sizes):
    batch_size = max(1, round(share * epoch_samples))
    length = TrainingLength.of({"epochs": epochs}, epoch_samples=epoch_samples, global_batch_size=batch_size)
    position = 0
    while room := length.room(position, 1.0, step_samples=batch_size):
        position += min(room, *sizes, room) * batch_size
    assert epochs * epoch_samples <= position < epochs * epoch_samples + batch_size


@pytest.mark.parametrize("config", [{}, {"epochs": None}, {"epochs": 1, "seconds": 2}, {"steps": 0}, {"seconds": -1}])
def test_budget_must_be_one_positive_number(config):
    with pytest.raises(ValueError, match="budget"):
        budget(**config)


@given(step_s=st.floats(1e-4, 10), first_s=st.floats(0, 100), seconds=st.floats(0.1, 50))
def test_budget_in_seconds_ends_within_a_step(step_s, first_s, seconds):
    length, steps, train_s, looks = budget(seconds=seconds), 0, 0.0, 0
    while room := length.room(64 * steps, train_s, step_samples=64):
        train_s += room * step_s + (first_s if steps == 0 else 0)
        steps, looks = steps + room, looks + 1
    assert seconds <= train_s <= max(seconds, first_s) + step_s * (1 + 1e-9)
    assert length.in_samples(64 * steps, train_s) <= 64 * steps
    assert looks <= 2 * math.log2(2 + seconds / step_s) + 2 + (first_s / step_s if first_s else 0)


def test_budget_in_seconds_holds_if_steps_slow_down():
    length, steps, train_s = budget(seconds=10.0), 0, 0.0
    while room := length.room(64 * steps, train_s, step_samples=64):
        train_s += sum(0.01 if step < 200 else 0.02 for step in range(steps, steps + room))
        steps += room
    assert 10.0 <= train_s <= 10.0 + 0.02 * (1 + 1e-9)


def test_length_of_seconds_is_predicted_from_speed():
    assert budget(seconds=10).in_samples(0, 0.0) == math.inf
    assert budget(seconds=10).in_samples(50, 2.0) == 250


def test_rounding_of_partial_steps_adds_no_step():
    ten = TrainingLength(samples=640)
    assert ten.room(640 - 1e-9, 1.0, step_samples=64) == 0 and ten.room(9.5 * 64, 1.0, step_samples=64) == 1
