import time
from typing import cast

import pytest
import torch

from trainables.process_group import RankGroup
from trainables.timed_window import (
    Clock,
    Lap,
    Warmup,
    Window,
    device_pause,
    is_timed_by,
    measure_window,
    timings,
    warm_up,
    window_of_laps,
)

ALONE = RankGroup(rank=0, world_size=1, device="cpu", gang_id="")


class Stage:
    """A clock that only goes on when steps are taken."""

    def __init__(self, *step_s):
        """Seconds of the first steps; the last of them for all further ones."""
        self.now, self.steps, self.reads = 100.0, 0, 0
        self._step_s = step_s

    def step(self):
        self.now += self._step_s[min(self.steps, len(self._step_s) - 1)]
        self.steps += 1

    def read(self):
        self.reads += 1
        return self.now


def measure(stage, *, pace, least_s=2.0, least_steps=50):
    clock = Clock("cpu", stage.read)
    return measure_window(
        stage.step, clock=clock, rank_group=ALONE, least_s=least_s, least_steps=least_steps, pace=pace
    )


def warmed_up(stage, *, steps=10, seconds=0.4):
    clock = Clock("cpu", stage.read)
    return warm_up(stage.step, clock=clock, rank_group=ALONE, warmup=Warmup(steps=steps, seconds=seconds))


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 210), (0.001, 2100), (1.0, 50), (0.05, 50)])
def test_window_has_its_seconds_and_its_steps(step_s, steps):
    stage = Stage(step_s)
    window = measure(stage, pace=step_s)
    assert window.steps in (steps, steps + 1) and window.seconds == pytest.approx(window.steps * step_s)
    assert stage.steps == window.steps
    assert stage.reads == 2  # at its ends


@pytest.mark.parametrize(("pace", "steps"), [(0.5, 210), (0.011, 210), (0.0, 210), (0.0001, 21_000)])
def test_wrong_pace_is_corrected_by_the_missing_steps(pace, steps):
    stage = Stage(0.01)
    window = measure(stage, pace=pace)
    assert window.seconds == pytest.approx(window.steps * 0.01) and window.steps in (steps, steps + 1)
    assert stage.reads <= 3


class HalfAsFast:
    """A gang with a rank that takes twice as long as this one."""

    def largest(self, seconds):
        return [2 * seconds]


def test_slowest_rank_is_timed():
    stage, rank_group = Stage(0.01), cast(RankGroup, HalfAsFast())
    clock = Clock("cpu", stage.read)
    pace = warm_up(stage.step, clock=clock, rank_group=rank_group, warmup=Warmup(steps=10, seconds=0.4))
    assert pace == pytest.approx(0.02) and 20 <= stage.steps <= 26
    window = measure_window(stage.step, clock=clock, rank_group=rank_group, least_s=2.0, least_steps=50, pace=pace)
    assert window.seconds == pytest.approx(0.02 * window.steps) and window.steps in (105, 106)


@pytest.mark.parametrize(("step_s", "least"), [(0.001, 400), (0.01, 40), (0.5, 10)])
def test_steady_warm_up_has_its_minimal_length(step_s, least):
    stage = Stage(step_s)
    assert warmed_up(stage) == pytest.approx(step_s)
    assert least <= stage.steps <= 1.3 * least


def test_warm_up_lasts_until_the_pace_settles():
    """Steps get shorter by a tenth every 10 until number 60, within 0.5 s; then they stay."""
    slow = [0.01 * 0.9 ** (number // 10) for number in range(61)]
    stage = Stage(*slow)
    pace = warmed_up(stage)
    assert stage.steps > 70 and pace == pytest.approx(slow[-1])
    assert 0.4 < stage.now - 100 < 0.8


def test_slow_first_steps_do_not_settle():
    assert warmed_up(Stage(0.3, 0.02)) == pytest.approx(0.02)


def test_warm_up_ends_if_the_pace_never_settles():
    stage = Stage(*[0.01 * 0.99**number for number in range(1000)])
    warmed_up(stage)
    assert 0.8 <= stage.now - 100 < 0.95


@pytest.mark.parametrize(("asked", "taken"), [(7, 7), (0, 1)])
def test_warm_up_without_seconds(asked, taken):
    stage = Stage(0.001)
    assert warmed_up(stage, steps=asked, seconds=0.0) == pytest.approx(0.001)
    assert stage.steps == taken


def test_warm_up_ends_with_a_coarse_clock():
    assert warmed_up(Stage(*[0.0] * 25, 0.01)) == pytest.approx(0.01)


LONG = [Lap(seconds=9, steps=100), Lap(seconds=4, steps=100), Lap(seconds=2, steps=100), Lap(seconds=3, steps=100)]


def test_long_laps_are_windows():
    assert window_of_laps(LONG, least_s=2, least_steps=50) == Window(seconds=3, steps=100)
    cut_short = [*LONG, Lap(seconds=0.1, steps=7)]
    assert window_of_laps(cut_short, least_s=2, least_steps=100) == Window(seconds=3, steps=100)
    assert window_of_laps(LONG[:2], least_s=2, least_steps=50) == Window(seconds=4, steps=100)
    uneven = [*LONG[:3], Lap(seconds=3.03, steps=101), Lap(seconds=2.97, steps=99)]
    assert window_of_laps(uneven, least_s=2, least_steps=50) == Window(seconds=3, steps=100)


CUT_SHORT = Lap(seconds=3, steps=60)


@pytest.mark.parametrize("laps", [LONG[:1], [*LONG, Lap(seconds=1.9, steps=100)], [LONG[0], CUT_SHORT]])
def test_short_laps_are_no_windows(laps):
    assert window_of_laps(laps, least_s=2, least_steps=50) is None
    assert window_of_laps(LONG, least_s=2, least_steps=101) is None


@pytest.mark.parametrize(
    ("laps", "settled"),
    [(LONG[:1], False), (LONG[:2], True), ([Lap(seconds=1.9, steps=100)], True), ([Lap(seconds=3, steps=49)], True)],
)
def test_window_is_settled_by_two_laps_or_a_short_one(laps, settled):
    assert is_timed_by(laps, least_s=2, least_steps=50) is settled


def test_times_count_training_and_distinct_samples():
    laps = [Lap(seconds=5, steps=10), Lap(seconds=1, steps=10), Lap(seconds=1, steps=10)]
    figures = timings(laps, Window(seconds=2, steps=50), steps_per_epoch=10, global_batch_size=64)
    assert figures == {
        "first_epoch_s": 5,
        "epoch_s": pytest.approx(0.4),
        "train_s": 7,
        "samples_per_s": 1600,
        "window_s": 2,
        "window_steps": 50,
    }


@pytest.mark.parametrize(
    ("laps", "told"),
    [
        ([(9.0, 2)], False),
        ([(9.0, 10)], True),
        ([(9.0, 10), (1.0, 2)], True),
        ([(9.0, 6), (9.0, 5)], True),  # of larger batches there are fewer
    ],
)
def test_partial_first_epoch_has_no_first_epoch_s(laps, told):
    taken = [Lap(seconds=seconds, steps=steps) for seconds, steps in laps]
    window = Window(seconds=2, steps=50)
    figures = timings(taken, window, steps_per_epoch=10, global_batch_size=64)
    assert ("first_epoch_s" in figures) is told and figures["epoch_s"] == pytest.approx(0.4)


@pytest.mark.gpu
def test_gpu_pauses_while_its_host_continues():
    wait = device_pause("cuda", 0.2)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    begin.record()
    wait()
    end.record()
    assert time.perf_counter() - started < 0.1
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(200, rel=0.05)
