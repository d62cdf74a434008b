"""The window of throughput, and the split of a step: delays put into one part of real steps are found there."""

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.trainables.ranks import CONFIG, fields_of, rendezvous, request, run
from trainables import rank
from trainables.inputs.inputs import ResidentInputs
from trainables.process_group import RankGroup
from trainables.step import strategies, training_step
from trainables.step.stopwatch import Parts, Stopwatch
from trainables.supervised import loop, timing
from trainables.supervised.loop import Epoch, Progress
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.timing import StepSplit, Timing, epoch_split, mean_parts
from trainables.timed_window import Clock, Lap, Window

ALONE = RankGroup(rank=0, world_size=1, device="cpu", gang_id="")


def phases_and_figures(**settings):
    """Run a trial of three epochs with 20 steps each."""
    seen: list[str] = []
    config = {
        "trainable": CONFIG["trainable"] | {"val_fraction": 0.0} | settings,
        "data": {"name": "digits", "subset": {"train": 20 * 64, "test": 100}},
        "budget": {"epochs": 3},
    }
    answer = fields_of(rank.run(request(config=config), lambda row: None, lambda: False, seen.append))
    assert answer["status"] == "ok", answer["trace"]
    return seen, answer["metrics"]


def test_long_epoch_is_the_window():
    phases, figures = phases_and_figures(window_s=0.0, window_steps=20)
    assert not {"warmup", "window"} & set(phases) and figures["window_steps"] == 20
    assert figures["window_s"] == pytest.approx(figures["epoch_s"])


def test_short_epochs_need_further_steps_for_a_window():
    phases, figures = phases_and_figures(window_s=0.0, window_steps=21)
    assert phases.index("warmup") < phases.index("window") and figures["window_steps"] == 21
    assert figures["epoch_s"] == pytest.approx(figures["window_s"] / 21 * 20)


def test_trial_timed_with_another_takes_no_steps_for_its_window():
    phases, figures = phases_and_figures(window_s=0.0, window_steps=21, timed_with="abc")
    assert not {"warmup", "window", "measurement"} & set(phases)
    assert figures["train_s"] > 0 and figures["first_epoch_s"] > 0 and "accuracy" in figures
    assert not {"samples_per_s", "epoch_s", "window_s", "step_s", "mfu"} & set(figures)
    _, whole_epochs = phases_and_figures(window_s=0.0, window_steps=20, timed_with="abc")
    assert whole_epochs["samples_per_s"] > 0  # long epochs are a window at no cost


@pytest.mark.parametrize(("window_steps", "window_s", "epochs"), [(20, 0.0, 2), (21, 0.0, 1), (20, 60.0, 1)])
def test_repetition_trains_until_its_window_without_evaluation(monkeypatch, window_steps, window_s, epochs):
    if window_s:  # a second epoch of 60 s there is not; a window of so many would take as long
        monkeypatch.setattr("trainables.supervised.timing.measure_window", lambda *_, **__: Window(seconds=1, steps=9))
    phases, figures = phases_and_figures(window_s=window_s, window_steps=window_steps, only_timed=True)
    assert phases.count("training") == epochs and figures["epochs"] == epochs
    assert ("window" in phases) is (epochs == 1) and figures["samples_per_s"] > 0 and "step_s" in figures
    assert "accuracy" not in figures


def test_repetition_with_growing_batches_trains_to_the_end():
    grows = {"name": "increase_batch", "milestones": [0.5], "gamma": 0.5}
    settings = CONFIG["trainable"] | {"only_timed": True}
    answer = run(request(config={"trainable": settings, "budget": {"epochs": 3}, "schedule": grows}))
    assert answer["metrics"]["epochs"] == 3 and answer["metrics"]["samples_per_s"] > 0


@pytest.mark.parametrize(
    ("epochs", "samples_per_s", "epoch_s"),
    [([(9.0, 10, 640)], 640 / 9, 9.0), ([(9.0, 10, 640), (4.0, 5, 640), (6.0, 4, 512)], 1152 / 10, 640 / 115.2)],
)
@pytest.mark.parametrize("models", [1, 3])
def test_growing_batches_are_timed_over_later_epochs(epochs, samples_per_s, epoch_s, models):
    feed = SimpleNamespace(epoch_samples=640, batch=SimpleNamespace(global_batch_size=64))
    replica: Any = SimpleNamespace(inputs=SimpleNamespace(feed=feed))
    loop: Any = SimpleNamespace(at=Progress(times=2), replica=replica)
    timing = Timing(loop, TrainingSettings())
    taken = [Epoch(number=1, seconds=s, steps=n, samples=m, loss=1.0, lr=0.1) for s, n, m in epochs]
    figures = timing.figures([Lap(seconds=s, steps=n) for s, n, _ in epochs], taken, models)
    assert figures["samples_per_s"] == pytest.approx(models * samples_per_s)
    assert figures["epoch_s"] == pytest.approx(epoch_s) and "step_s" not in figures


DELAY_S = 0.04
TIMED = CONFIG | {
    "trainable": {"window_s": 0.5, "window_steps": 10, "warmup_steps": 3, "warmup_s": 0.0, "val_fraction": 0.0},
    "budget": {"steps": 5},
}
PARTS = ("data", "host", "compute", "communication", "imbalance")


def delayed(asked, place):
    """A trial whose step is DELAY_S longer in this place."""

    def slow(function):
        def slowed(*given, **named):
            time.sleep(DELAY_S)
            return function(*given, **named)

        return slowed

    places: dict[str, tuple[Any, str]] = {
        "data": (ResidentInputs, "_block"),
        "host": (loop.Loop, "step"),
        "compute": (training_step.TrainingStep, "loss_of"),
        "communication": (strategies, "all_reduce_mean"),
        "imbalance": (training_step.TrainingStep, "loss_of"),
    }
    patch = pytest.MonkeyPatch()
    patch.setattr(timing, "SPLIT_STEPS", 12)
    if place and (place != "imbalance" or asked.rank == 1):
        owner, name = places[place]
        patch.setattr(owner, name, slow(getattr(owner, name)))
    if place == "data":
        patch.setattr(ResidentInputs, "_block_steps", 1)
    try:
        metrics: dict[str, float] = run(asked)["metrics"]
    finally:
        patch.undo()
    return metrics


def of_two(pair, place):
    meeting = {"rendezvous": rendezvous(), "gang_id": f"scaling {place}"}
    asked = [(request(rank=rank, shares=(32, 32), config=TIMED, **meeting), place) for rank in range(2)]
    metrics: dict[str, float] = pair.call(delayed, *asked)[0]
    return metrics


@pytest.fixture(scope="module")
def undelayed(pair):
    return of_two(pair, "")


@pytest.mark.parametrize(
    "place", [place if place == "communication" else pytest.param(place, marks=pytest.mark.slow) for place in PARTS]
)
def test_delay_is_found_in_its_part(pair, undelayed, place):
    metrics = of_two(pair, place)
    grew = {part: metrics[f"step_{part}_s"] - undelayed[f"step_{part}_s"] for part in PARTS}
    assert metrics[f"step_{place}_s"] >= 0.8 * DELAY_S and max(grew, key=lambda part: grew[part]) == place, grew
    assert place != "imbalance" or metrics["slowest_rank"] == 1
    rest = metrics["step_s"] - sum(metrics[f"step_{part}_s"] for part in PARTS)
    assert abs(rest) <= 0.1 * metrics["step_s"], (metrics, rest)


@pytest.mark.slow
def test_single_rank_has_no_communication():
    metrics = delayed(request(config=TIMED), "host")
    assert metrics["step_host_s"] >= DELAY_S and metrics["step_communication_s"] == 0
    parts = sum(metrics[f"step_{part}_s"] for part in PARTS)
    assert parts == pytest.approx(metrics["step_s"], rel=0.02)


def test_parts_of_an_epoch_sum_up():
    (*_, row) = run(request(config=TIMED | {"budget": {"epochs": 2}}))["rows"]
    told = [row[name] for name in ("data_s", "compute_s", "communication_s", "rest_s")]
    assert sum(told) == pytest.approx(row["epoch_s"]) and min(told[:2]) > 0 and told[2] == 0


class Ranks:
    """A gang of which each rank has waited so long; of several questions, each rank's answers one after the other."""

    def __init__(self, *answers_s):
        self._answers_s = list(answers_s)
        self.own_s: list[float] = []

    def each(self, own_s):
        self.own_s.append(own_s)
        return list(self._answers_s.pop(0))

    def meet(self):
        pass


class Steps:
    """Steps of known length, the first two of which take a second; their clock and stopwatch."""

    on_gpu = False

    def __init__(self, step_s, data_s=0.0, host_s=0.0):
        self._each = step_s, data_s, host_s
        self.taken, self.now_s, self._data_s, self._step_s = 0, 100.0, 50.0, 50.0

    def take(self):
        step_s, data_s, host_s = (1.0, 0.5, 0.2) if self.taken < 2 else self._each
        self.taken += 1
        self.now_s += step_s
        self._data_s += data_s
        self._step_s += step_s - host_s

    def read(self):
        return self.now_s

    def parts(self):
        return Parts(data_s=self._data_s, step_s=self._step_s)

    def split(self, rank_group):
        return StepSplit(self.take, self, clock=self, rank_group=rank_group)  # type: ignore[arg-type]


def test_captured_steps_show_only_the_wait_for_data():
    rank_group = Ranks((0.03, 0.01, 0.02, 0.04))
    split = StepSplit(pytest.fail, Stopwatch("cpu"), clock=Clock("cpu"), rank_group=rank_group)  # type: ignore[arg-type]
    parts = Parts(data_s=1.0, exchange_s=0.0, step_s=2.0)
    assert split.captured(Window(seconds=5.0, steps=50), parts) == {"step_s": 0.1, "step_data_s": 0.02}
    assert rank_group.own_s == [0.02]
    five = StepSplit(
        pytest.fail, Stopwatch("cpu"), clock=Clock("cpu"), rank_group=Ranks((0.05, 0.03, 0.01, 0.02, 0.04))
    )  # type: ignore[arg-type]
    assert five.captured(Window(seconds=5.0, steps=50), parts)["step_data_s"] == 0.03


def test_split_of_four_ranks_by_hand():
    """By pace the ranks are the first, the third, the second and the fourth; each step of the window takes .25 s."""
    rank_group = Ranks((0.10, 0.12, 0.11, 0.20), (0.02, 0.05, 0.03, 0.02), (0.01, 0.01, 0.02, 0.04))
    steps = Steps(0.10, data_s=0.02, host_s=0.01)
    parts = steps.split(rank_group).several(Window(seconds=2.5, steps=10), nullcontext())
    expected = {"step_s": 0.25, "step_data_s": 0.03, "step_host_s": 0.02, "step_compute_s": 0.06}
    expected |= {"step_communication_s": 0.05, "step_imbalance_s": 0.09, "slowest_rank": 3}
    assert parts == pytest.approx(expected)
    assert rank_group.own_s == pytest.approx([0.10, 0.02, 0.01])  # without the first two, nor what was before


def test_split_of_five_ranks_shows_the_median():
    paces = (0.14, 0.10, 0.12, 0.11, 0.13)
    parts = Steps(0.1).split(Ranks(paces, paces, (0.0,) * 5)).several(Window(seconds=1.5, steps=10), nullcontext())
    assert parts["step_data_s"] == pytest.approx(0.12) and parts["step_imbalance_s"] == pytest.approx(0.02)
    assert parts["slowest_rank"] == 0


def test_slower_steps_without_exchange_show_no_communication():
    rank_group = Ranks((0.10, 0.12), (0.09, 0.01), (0.03, 0.01))
    parts = Steps(0.1).split(rank_group).several(Window(seconds=1.1, steps=10), nullcontext())
    assert parts["step_communication_s"] == 0 and parts["step_imbalance_s"] == pytest.approx(0.02)
    assert parts["step_compute_s"] == 0, "never negative"


@pytest.mark.parametrize(("step_s", "taken"), [(0.25, 10), (0.025, 12), (0.005, 60), (0.0005, 300)])
def test_number_of_steps_in_a_split(step_s, taken):
    steps = Steps(step_s)
    steps.split(Ranks(*[(step_s, step_s)] * 3)).several(Window(seconds=100 * step_s, steps=100), nullcontext())
    assert steps.taken == 2 + taken


def test_split_of_a_single_rank_by_hand():
    steps = Steps(0.1)
    window, parts = Window(seconds=5.0, steps=50), Parts(data_s=1.0, step_s=4.0)
    expected = {"step_s": 0.1, "step_data_s": 0.02, "step_host_s": 0.02, "step_compute_s": 0.06}
    expected |= {"step_communication_s": 0.0, "step_imbalance_s": 0.0}
    assert steps.split(Ranks()).single(window, parts) == pytest.approx(expected) and steps.taken == 0
    longer = steps.split(Ranks()).single(
        window, Parts(data_s=1.0, step_s=5.1)
    )  # clocks differ by what reading them takes
    assert longer["step_host_s"] == 0 and longer["step_compute_s"] == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("step_s", "pauses_s", "kernels_s"),
    [(0.05, [0.1] * 5, (0.04, 0.035, 0.03, 0.05, 0.06)), (0.8, [1.0] * 2, (0.04, 0.03))],
)
def test_gpu_host_time_is_measured_by_a_step_launched_ahead(monkeypatch, step_s, pauses_s, kernels_s):
    """The fastest try takes the device .03 s; .01 s are of data, and the rest is the host's."""
    steps, paused, tries_s = Steps(step_s), list[float](), iter(kernels_s)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.taken = steps.taken

        def elapsed_time(self, end):
            assert end.taken == self.taken + 1, "without the pause"
            return 1e3 * next(tries_s)

    def pause(device, seconds):
        assert device == "cuda"
        return lambda: paused.append(seconds)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(timing, "device_pause", pause)
    monkeypatch.setattr(steps, "on_gpu", True)
    split = steps.split(Ranks()).single(Window(seconds=50 * step_s, steps=50), Parts(data_s=0.5))
    assert split["step_host_s"] == pytest.approx(step_s - 0.01 - 0.03)
    assert split["step_compute_s"] == pytest.approx(0.03)
    assert paused == pytest.approx(pauses_s)


def test_gpu_host_time_is_never_negative(monkeypatch):
    steps = Steps(0.1)
    monkeypatch.setattr(steps, "on_gpu", True)
    split = steps.split(Ranks())
    monkeypatch.setattr(timing, "device_step_s", lambda take, step_s, clock: 0.12)
    assert split.single(Window(seconds=5.0, steps=50), Parts(data_s=0.5))["step_host_s"] == 0


def epoch(parts, steps=10):
    return Epoch(number=1, seconds=4.0, steps=steps, samples=80, loss=1.0, lr=0.1, parts=parts)


def test_epoch_split_by_hand():
    parts = Parts(data_s=0.5, exchange_s=0.25, step_s=3.0)
    split = epoch_split(epoch(parts), on_gpu=False)
    assert split == {"data_s": 0.5, "compute_s": 2.25, "communication_s": 0.25, "rest_s": 1.0}
    assert epoch_split(epoch(parts), on_gpu=True) == {"data_s": 0.5, "rest_s": 3.5}


def test_epoch_split_is_empty_for_too_few_steps():
    assert epoch_split(epoch(Parts(untimed=2)), on_gpu=True) == {}


def test_mean_parts_weigh_epochs_by_steps():
    epochs = [epoch(Parts(data_s=1.0, exchange_s=2.0, step_s=10.0)), epoch(Parts(data_s=5.0, step_s=20.0), steps=20)]
    assert mean_parts(epochs, 15) == Parts(data_s=3.0, exchange_s=1.0, step_s=15.0)
    assert mean_parts([], 15) == Parts()
