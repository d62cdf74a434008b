"""A command that prints no times is timed by when its lines come."""

import pytest

from trainables.command.metrics import CommandMetrics
from trainables.command.settings import CommandSettings


def read(timed, metrics, *, epochs=None, samples_per_epoch=100, **settings):
    """The figures of lines that come at (second, line)."""
    now = iter(second for second, _ in timed)
    told = CommandSettings(argv="x", metrics=metrics, samples_per_epoch=samples_per_epoch, **settings)
    reader = CommandMetrics(told, 64, epochs, clock=lambda: now_at[0])
    now_at = [0.0]
    for (_, line), now_at[0] in zip(timed, now, strict=True):
        reader.line(line)
    return reader.figures()


ACCURACY = {"val_accuracy": "acc ([0-9.]+)"}
PLAIN = [(9.0, "epoch 0 acc 0.5"), (11.0, "epoch 1 acc 0.7"), (13.5, "epoch 2 acc 0.9"), (20.0, "done")]


def test_the_lines_of_epochs_are_its_clock_where_they_are_as_many_as_the_budget():
    found = read(PLAIN, ACCURACY, epochs=3)
    assert found == {
        **{"val_accuracy": 0.9, "epoch_s": 2.25, "window_s": 4.5},
        **{"samples_per_s": pytest.approx(100 / 2.25), "samples": 300},
    }


def test_lines_that_may_be_no_epochs_are_no_clock():
    assert read(PLAIN, ACCURACY, epochs=2) == read(PLAIN, ACCURACY) == {"val_accuracy": 0.9}


def test_a_pattern_that_names_the_epoch_makes_it_sure_and_the_last_evaluation_is_left_out():
    timed = [(5.0, "epoch 2: loss 3"), (6.0, "epoch 2: loss 2"), (10.0, "epoch 4: loss 1"), (60.0, "acc 0.9")]
    found = read(timed, {"loss": "loss (.+)", **ACCURACY}, epoch_pattern="epoch ([0-9]+)")
    assert (found["epoch_s"], found["window_s"], found["samples"]) == (2.0, 4.0, 400)


def test_json_lines_name_theirs():
    timed = [(float(2 * epoch), f'{{"epoch": {epoch}, "loss": 1}}') for epoch in (1, 2, 3)] + [(50.0, "done")]
    found = read(timed, {"loss": None}, samples_per_epoch=None)
    assert found == {"loss": 1, "epoch_s": 2.0, "window_s": 4.0}


@pytest.mark.parametrize("column", ["epoch_s", "step_s", "samples_per_s", "train_s"])
def test_a_time_that_the_command_tells_stands_alone(column):
    assert "window_s" not in read([*PLAIN, (21.0, "took 7")], {**ACCURACY, column: "took (.+)"}, epochs=3)


def test_lines_that_come_all_at_once_tell_no_time():
    assert read([(1.0 + second / 100, line) for second, line in PLAIN], ACCURACY, epochs=3) == {"val_accuracy": 0.9}


def test_lines_that_a_buffer_lets_go_in_heaps_tell_no_time():
    heaps = [(40.0 + epoch // 40 * 40, f"epoch {epoch} acc 0.5") for epoch in range(100)]
    assert read(heaps, ACCURACY, epochs=100) == {"val_accuracy": 0.5}
    quick = [(5.0 + epoch // 4 / 10, f"epoch {epoch} acc 0.5") for epoch in range(100)]  # as they are read, in turns
    assert read(quick, ACCURACY, epochs=100)["epoch_s"] == pytest.approx(2.4 / 99)


def test_one_epoch_tells_no_time():
    assert read(PLAIN[:1], ACCURACY, epochs=1) == {"val_accuracy": 0.5}
