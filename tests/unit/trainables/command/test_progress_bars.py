"""Progress bars: recorded outputs of real programs, which print the true time of their steps at the end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.trainables.command.outputs import reading
from trainables.command.file_tail import FileTail
from trainables.command.progress_bars import BarState, ProgressBars
from trainables.command.settings import CommandSettings

RECORDED = Path(__file__).parent / "recorded"
"""Lists of [second, text], as read every 0.1 s."""


def replayed(name, folder, **settings):
    """Return the figures from a recorded output, and the time of a step by the program's own clock."""
    now = [0.0]
    columns = {"step_s": "tqdm", "truth": {"json": "truth_step_s"}}
    reader, metrics = reading(CommandSettings(argv="x", metrics=columns, **settings), 64, clock=lambda: now[0])
    output = FileTail(folder / "stdout.log")
    for now[0], text in json.loads((RECORDED / f"{name}.json").read_text()):
        with output.path.open("a", newline="") as file:
            file.write(text)
        for line in output.new():
            reader.line(line)
        reader.open_line(output.open_line)
    figures = metrics.figures()
    return figures, figures.pop("truth")


def test_a_bar_of_passes_has_the_samples_of_a_pass():
    """Eight passes of 8 samples make an optimizer step, as in ultralytics with its nominal batch of 64."""
    now = [0.0]
    reader, metrics = reading(CommandSettings(argv="x", metrics={"step_s": "tqdm"}), 8, clock=lambda: now[0])
    for done in range(0, 49):
        now[0] = done * 0.5
        reader.line(f"train: {done * 100 // 48}%|#####| {done}/48 [00:{done // 2:02d}<00:10, 2.00it/s]")
    metrics = replace(metrics, samples_per_step=64.0, samples=384.0)
    assert metrics.figures()["steps"] == 48
    assert metrics.figures()["samples_per_s"] == pytest.approx(16, rel=0.1)


@pytest.mark.parametrize(
    ("name", "steps"), [("tqdm_nested", 120), ("tqdm_slow", 5), ("tqdm_evaluation", 120), ("rich", 100)]
)
def test_bars_give_the_time_of_a_step(name, steps, tmp_path):
    """Nested bars, seconds per step, an evaluation with its own bar within a training, Rich with colours."""
    figures, truth = replayed(name, tmp_path)
    assert figures["step_s"] == pytest.approx(truth, rel=0.02)
    assert figures["steps"] == steps and 0.8 * steps <= figures["window_steps"] < steps
    assert figures["window_s"] == pytest.approx(figures["window_steps"] * truth, rel=0.02)
    assert figures["samples_per_s"] == pytest.approx(64 / truth, rel=0.02)


def test_a_smaller_last_batch_counts_with_its_samples(tmp_path):
    figures, truth = replayed("tqdm_nested", tmp_path, samples_per_epoch=39 * 64 + 1)
    assert figures["samples_per_s"] == pytest.approx((39 * 64 + 1) / 40 / truth, rel=0.02)


def test_a_bar_may_count_samples(tmp_path):
    figures, truth = replayed("tqdm_nested", tmp_path, samples_per_epoch=40)
    assert figures["samples_per_s"] == pytest.approx(40 / 40 / truth, rel=0.02)


@pytest.mark.parametrize(
    ("line", "name", "done", "total", "elapsed_s"),
    [
        (" 45%|####5     | 45/100 [00:12<00:15,  3.60it/s, loss=0.5]", "", 45, 100, 12),
        ("Epoch 3:  45%|████▌     | 45/100 [1:00:12<00:15,  1.20s/it]", "Epoch", 45, 100, 3612),
        ("train: 45it [00:12,  3.60it/s]", "train:", 45, None, 12),
        ("  2%|▏         | 1.50k/75.0k [00:00<00:04, 17.2k samples/s]", "", 1500, 75000, 0),
        ("  1/100 [00:02<?, ?it/s]", "", 1, 100, 2),
        (
            "\x1b[34mEpoch 0/1\x1b[0m \x1b[35m━━━━╸━━━━\x1b[0m 45/100 0:00:12 • 0:00:15 3.60it/s v_num: 0",
            "Epoch",
            45,
            100,
            12,
        ),
    ],
)
def test_states_of_bars_are_read(line, name, done, total, elapsed_s):
    state = BarState.of(line)
    assert state.name.rstrip(":") == name.rstrip(":")
    assert (state.done, state.total, state.elapsed_s) == (done, total, elapsed_s)


@pytest.mark.parametrize("line", ["Epoch 3/100 loss 0.5", "12:30:45 step 45/100", "[1/5] building", "lr 3e-4/s"])
def test_other_lines_are_no_bars(line):
    assert BarState.of(line) is None


def test_bars_that_were_held_back_are_timed_by_their_own_clock():
    bars = ProgressBars(lambda: 7.0)
    for n in range(1, 101):
        bars.read(f"{n}/100 [00:{n // 2:02d}<00:01, 2.00it/s]")
    assert bars.figures()["step_s"] == pytest.approx(0.5, rel=0.02)
