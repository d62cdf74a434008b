import pytest

from trainables.clock import Clock, Lap, Window, measure_window, timings, window_of_laps
from trainables.process_group import Gang

ALONE = Gang(rank=0, world_size=1, device="cpu", gang_id="")


class Stage:
    """A clock that only goes on when steps are taken."""

    def __init__(self, *step_s: float) -> None:
        """Seconds of the first steps; the last of them for all further ones."""
        self.now, self.steps, self.reads = 100.0, 0, 0
        self._step_s = step_s

    def step(self) -> None:
        self.now += self._step_s[min(self.steps, len(self._step_s) - 1)]
        self.steps += 1

    def read(self) -> float:
        self.reads += 1
        return self.now


def measure(stage: Stage, *, least_s: float = 2.0, least_steps: int = 50) -> Window:
    return measure_window(
        stage.step,
        clock=Clock("cpu", stage.read),
        gang=ALONE,
        least_s=least_s,
        least_steps=least_steps,
        warmup_steps=10,
    )


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 210), (0.001, 2100), (1.0, 50), (0.05, 50)])
def test_a_window_has_both_its_seconds_and_its_steps(step_s: float, steps: int) -> None:
    stage = Stage(step_s)
    window = measure(stage)
    assert window.steps in (steps, steps + 1) and window.seconds == pytest.approx(window.steps * step_s)
    assert stage.steps == window.steps + 10
    assert stage.reads == 4  # at the ends of the warm-up and of the window


def test_the_warm_up_is_not_counted_and_a_wrong_guess_is_made_good() -> None:
    stage = Stage(*[0.5] * 10, 0.01)
    window = measure(stage)
    assert window.seconds == pytest.approx(window.steps * 0.01) and window.seconds >= 2


def test_a_clock_too_coarse_for_the_warm_up_still_ends() -> None:
    window = measure(Stage(*[0.0] * 10, 0.01))
    assert window.seconds >= 2


LONG = [Lap(seconds=9, steps=100), Lap(seconds=4, steps=100), Lap(seconds=2, steps=100), Lap(seconds=3, steps=100)]


def test_long_epochs_are_windows_themselves() -> None:
    assert window_of_laps(LONG, least_s=2, least_steps=50) == Window(seconds=3, steps=100)
    cut_short = [*LONG, Lap(seconds=0.1, steps=7)]
    assert window_of_laps(cut_short, least_s=2, least_steps=50) == Window(seconds=3, steps=100)


@pytest.mark.parametrize("laps", [LONG[:1], [*LONG, Lap(seconds=1.9, steps=100)]])
def test_short_epochs_are_not(laps: list[Lap]) -> None:
    assert window_of_laps(laps, least_s=2, least_steps=50) is None
    assert window_of_laps(LONG, least_s=2, least_steps=101) is None


def test_times_count_training_alone_and_distinct_samples() -> None:
    laps = [
        Lap(seconds=5, steps=10, val_accuracy=0.2),
        Lap(seconds=1, steps=10, val_accuracy=0.8),
        Lap(seconds=1, steps=10, val_accuracy=0.7),
    ]
    window = Window(seconds=2, steps=50)
    figures = timings(laps, window, steps_per_epoch=10, global_batch_size=64, target=0.8)
    assert figures == {
        "first_epoch_s": 5,
        "epoch_s": pytest.approx(0.4),
        "train_s": 7,
        "samples_per_s": 1600,
        "window_s": 2,
        "window_steps": 50,
        "time_to_target_s": 6,
    }
    assert "time_to_target_s" not in timings(laps, window, steps_per_epoch=10, global_batch_size=64, target=0.9)
