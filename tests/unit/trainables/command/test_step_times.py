"""A command that tells the seconds of every tenth step is timed over all of them."""

import pytest

from trainables.command.check import mistakes
from trainables.command.metrics import CommandMetrics
from trainables.command.settings import CommandSettings

STEP = {"step_s": r"took ([0-9.]+) s"}


def read(timed, **settings):
    """What lines that come at (second, line) tell."""
    now = [0.0]
    reader = CommandMetrics(CommandSettings(argv="x", metrics=STEP, **settings), 64, clock=lambda: now[0])
    for now[0], line in timed:
        reader.line(line)
    return reader


def every_tenth(first=0, count=31, step_s=0.1, start_s=5.0):
    """A line for every tenth step, of a tenth of a second each; the first of all takes longer."""
    return [
        (start_s + 10 * step_s * i, f"iter {first + 10 * i}: took {9.0 if first + i == 0 else step_s} s")
        for i in range(count)
    ]


def test_steps_between_two_lines_count_where_their_numbers_are_told():
    reader = read(every_tenth(), step_pattern=r"iter (\d+):")
    found = reader.figures()
    assert (found["window_steps"], found["window_s"]) == (300, pytest.approx(30.0))
    assert found["samples_per_s"] == pytest.approx(640) and reader.remark_on_steps == ""


def test_numbers_that_begin_again_with_an_epoch_go_on():
    """0, 10, 20, then 10, 20 of the next epoch: of the steps between 20 and its end nobody tells."""
    lines = [*every_tenth(count=3), *every_tenth(first=10, count=2, start_s=9.0)]
    assert read(lines, step_pattern=r"iter (\d+):").figures()["window_steps"] == 10 + 10 + 10 + 10


@pytest.mark.parametrize("key", ["step", "steps"])
def test_json_rows_name_theirs(key):
    reader = CommandMetrics(CommandSettings(argv="x", metrics={"step_s": None}), 64)
    for number in (50, 100, 200):
        reader.line(f'{{"epoch": 1, "{key}": {number}, "step_s": 0.25}}')
    assert (reader.figures()["window_steps"], reader.figures()["window_s"]) == (150, 37.5)


def test_where_no_number_is_told_a_line_is_a_step_and_what_would_tell_is_said():
    reader = read(every_tenth())
    found = reader.figures()
    assert (found["window_steps"], found["window_s"]) == (30, pytest.approx(3.0))
    assert reader.remark_on_steps == (
        "step_s was reported 31 times in 30.0 s, and counts as 3 s of training: if only some steps are reported,"
        " trainable.step_pattern='step ([0-9]+)' reads which; all between then count"
    )


@pytest.mark.parametrize(
    "timed",
    [
        [(5.0 + i / 10, "took 0.1 s") for i in range(50)],  # every step
        [(5.0, "took 0.1 s") for _ in range(50)],  # all at once, from a buffer
        [(5.0, "took 0.1 s")],
        [],
    ],
)
def test_lines_that_come_as_fast_as_their_steps_are_all_steps(timed):
    assert read(timed).remark_on_steps == ""


def test_a_pattern_that_is_none_is_a_mistake():
    config = {"trainable": {"argv": "true", "step_pattern": "iter ("}}
    assert any("trainable.step_pattern" in each for each in mistakes(config))
