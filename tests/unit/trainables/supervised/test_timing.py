"""Which steps of a trial its throughput is measured over."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.trainables.ranks import CONFIG, request, run
from trainables import rank
from trainables.clock import Clock, Lap, Window
from trainables.context import Context
from trainables.process_group import Gang
from trainables.supervised.loop import Epoch
from trainables.supervised.progress import Progress
from trainables.supervised.settings import Settings
from trainables.supervised.timing import Timing

ALONE = Gang(rank=0, world_size=1, device="cpu", gang_id="")


def phases_and_figures(**settings: Any) -> tuple[list[str], dict[str, Any]]:
    """Of a trial of three epochs with 20 steps each."""
    seen: list[str] = []
    config = {"trainable": CONFIG["trainable"] | settings, "budget": {"epochs": 3}}
    answer = rank.run(request(config=config), lambda row: None, lambda: False, seen.append)
    assert answer["status"] == "ok", answer["trace"]
    return seen, answer["metrics"]


def test_an_epoch_that_is_long_enough_is_the_window_and_no_step_is_taken_for_it() -> None:
    phases, figures = phases_and_figures(window_s=0.0, window_steps=20)
    assert not {"warmup", "window"} & set(phases) and figures["window_steps"] == 20
    assert figures["window_s"] == pytest.approx(figures["epoch_s"])


def test_where_epochs_are_too_short_further_steps_make_a_window() -> None:
    phases, figures = phases_and_figures(window_s=0.0, window_steps=21)
    assert phases.index("warmup") < phases.index("window") and figures["window_steps"] == 21
    assert figures["epoch_s"] == pytest.approx(figures["window_s"] / 21 * 20)


@pytest.mark.parametrize(("window_steps", "window_s", "epochs"), [(20, 0.0, 2), (21, 0.0, 1), (20, 60.0, 1)])
def test_a_repetition_trains_as_far_as_its_window_and_looks_at_nothing_else(
    monkeypatch: pytest.MonkeyPatch, window_steps: int, window_s: float, epochs: int
) -> None:
    if window_s:  # a second epoch of 60 s there is not; a window of so many would take as long
        monkeypatch.setattr("trainables.supervised.timing.measure_window", lambda *_, **__: Window(seconds=1, steps=9))
    phases, figures = phases_and_figures(window_s=window_s, window_steps=window_steps, only_timed=True)
    assert phases.count("training") == epochs and figures["epochs"] == epochs
    assert ("window" in phases) is (epochs == 1) and figures["samples_per_s"] > 0 and "step_s" in figures
    assert "accuracy" not in figures


def test_where_batches_grow_a_repetition_trains_to_the_end() -> None:
    grows = {"name": "increase_batch", "milestones": [0.5], "gamma": 0.5}
    settings = CONFIG["trainable"] | {"only_timed": True}
    answer = run(request(config={"trainable": settings, "budget": {"epochs": 3}, "schedule": grows}))
    assert answer["metrics"]["epochs"] == 3 and answer["metrics"]["samples_per_s"] > 0


@pytest.mark.parametrize(
    ("epochs", "samples_per_s", "epoch_s"),
    [([(9.0, 10, 640)], 640 / 9, 9.0), ([(9.0, 10, 640), (4.0, 5, 640), (6.0, 4, 512)], 1152 / 10, 5.0)],
)
@pytest.mark.parametrize("models", [1, 3])
def test_where_batches_grew_all_epochs_but_the_first_count(
    epochs: list[tuple[float, int, int]], samples_per_s: float, epoch_s: float, models: int
) -> None:
    feed = SimpleNamespace(steps_per_epoch=10, batch=SimpleNamespace(global_batch_size=64))
    replica: Any = SimpleNamespace(inputs=SimpleNamespace(feed=feed))
    loop: Any = SimpleNamespace(at=Progress(times=2))
    timing = Timing(loop, replica, Settings(), clock=Clock("cpu"), gang=ALONE, context=Context.alone())
    taken = [Epoch(number=1, seconds=s, steps=n, samples=m, loss=1.0, lr=0.1) for s, n, m in epochs]
    figures = timing.figures([Lap(seconds=s, steps=n) for s, n, _ in epochs], taken, models)
    assert figures["samples_per_s"] == pytest.approx(models * samples_per_s)
    assert figures["epoch_s"] == pytest.approx(epoch_s) and "step_s" not in figures
