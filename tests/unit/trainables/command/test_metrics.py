import json

import pytest

from trainables.command.metrics import CommandMetrics
from trainables.command.settings import CommandSettings
from trainables.context import DivergedError


def read(lines, metrics, **settings):
    reader = CommandMetrics(CommandSettings(argv="x", metrics=metrics, **settings))
    rows = [row for line in lines for row in reader.line(line)]
    return rows + reader.last_row(), reader.figures()


def test_json_lines_with_an_epoch_are_rows_and_only_what_is_declared_is_read():
    rows, figures = read(
        ['{"epoch": 1, "loss": 2.0, "other": 5}', "not json", '{"epoch": 2, "loss": 1.0}', '{"accuracy": 0.9}', "{}"],
        {"loss": None, "accuracy": None},
    )
    assert rows == [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    assert figures == {"loss": 1.0, "accuracy": 0.9}


def test_dictionaries_as_python_prints_them_are_rows_too():
    """Word for word what transformers 5 prints, and 4 for the last."""
    rows, figures = read(
        [
            "{'loss': '0.4064', 'grad_norm': '0.3372', 'learning_rate': '0.000672', 'epoch': '1'}",
            "{'eval_loss': '0.04653', 'eval_accuracy': '0.75', 'eval_runtime': '0.418', 'epoch': '1'}",
            "{'loss': 0.25, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 2.0}",
            "{'a': open('x')}",
            "{1, 2}",
        ],
        {"loss": None, "val_accuracy": {"json": "eval_accuracy"}},
    )
    assert rows == [{"epoch": 1, "loss": 0.4064}, {"epoch": 1, "val_accuracy": 0.75}, {"epoch": 2.0, "loss": 0.25}]
    assert figures == {"loss": 0.25, "val_accuracy": 0.75}
    with pytest.raises(DivergedError):
        read(["{'loss': nan, 'epoch': 2.0}"], {"loss": None})


def test_patterns_make_a_row_an_epoch():
    rows, figures = read(
        ["Epoch time: 4.0", "loss 0.5", "Epoch time: 2.0", "loss 0.25", "Epoch time: 3.0", "loss 1e-1", "Top1 93.5%"],
        {
            "epoch_s": "Epoch time: ([0-9.]+)",
            "loss": "loss (.+)",
            "accuracy": {"regex": "Top1 ([0-9.]+)%", "scale": 0.01},
        },
        samples_per_epoch=100,
    )
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[0] == {"epoch": 1, "epoch_s": 4.0, "loss": 0.5}
    assert figures["first_epoch_s"] == 4.0 and figures["epoch_s"] == 2.5 and figures["train_s"] == 9.0
    assert figures["window_s"] == 5.0
    assert figures["samples_per_s"] == 40.0 and figures["samples"] == 300
    assert figures["accuracy"] == pytest.approx(0.935)


def test_what_the_command_says_itself_stands_before_what_follows():
    lines = [json.dumps({"epoch": 1, "epoch_s": 2.0, "train_s": 5.0, "samples_per_s": 7})]
    _, figures = read(lines, {"epoch_s": None, "train_s": None, "samples_per_s": None}, samples_per_epoch=100)
    assert (figures["train_s"], figures["samples_per_s"]) == (5.0, 7)


def test_lines_of_one_epoch_make_one_row_where_a_pattern_tells_the_epoch():
    lines = [f"Epoch: [{epoch}] [{i}/3] loss: {9 - epoch - i}" for epoch in range(2) for i in range(3)] + ["Acc@1 50"]
    metrics = {"loss": "loss: (.+)", "accuracy": {"regex": "Acc@1 (.+)", "scale": 0.01}}
    rows, _ = read(lines, metrics, epoch_pattern=r"Epoch: \[(\d+)\]")
    assert rows == [{"epoch": 1, "loss": 7}, {"epoch": 2, "loss": 6, "accuracy": 0.5}]


def test_seconds_of_a_step_make_the_throughput():
    reader = CommandMetrics(CommandSettings(argv="x", metrics={"step_s": {"regex": "time (.+)ms", "scale": 1e-3}}), 64)
    for ms in (900, 20, 40, 30):
        reader.line(f"iter 1: time {ms}ms")
    figures = reader.figures()
    assert figures["samples_per_s"] == pytest.approx(64 / 0.03) and figures["step_s"] == pytest.approx(0.03)
    assert (figures["window_s"], figures["window_steps"]) == (pytest.approx(0.09), 3)


@pytest.mark.parametrize(
    ("line", "settings", "samples"),
    [
        ("epoch {} iter {}: {} images/s", {"epoch_pattern": r"epoch (\d+)"}, 300),
        ('{{"epoch": {}, "step": {}, "samples_per_s": {}}}', {}, 300),
        ("epoch {} iter {}: {} images/s", {}, None),  # a line may be of anything
    ],
)
def test_epochs_and_their_size_tell_how_many_samples_were_trained_on_at_a_speed(line, settings, samples):
    lines = [line.format(epoch, 10 * i, 50) for epoch in range(3) for i in range(4)]
    metrics = {"samples_per_s": {"regex": "(\\S+) images/s"} if "images" in line else None}
    figures = read(lines, metrics, samples_per_epoch=100, **settings)[1]
    assert (figures["samples_per_s"], figures.get("samples")) == (50, samples)
    assert "samples" not in read(lines, metrics, **settings)[1]


@pytest.mark.parametrize(
    ("line", "how", "seconds"),
    [
        ("Total time: 1:02:03", {"regex": "time: (.+)"}, 3723),
        ("[00:41<00:00]", {"regex": r"\[([0-9:]+)<"}, 41),
        ("time: 2:03.5", {"regex": "time: (.+)"}, 123.5),
        ("9/9 4.0it/s", {"regex": "([0-9.]+)it/s", "invert": True}, 0.25),
        ("9/9 0.0it/s", {"regex": "([0-9.]+)it/s", "invert": True}, None),
    ],
)
def test_times_as_people_print_them(line, how, seconds):
    _, figures = read([line], {"step_s": how})
    assert figures.get("step_s") == seconds


def test_one_epoch_is_no_window():
    _, figures = read(["epoch 3.0"], {"epoch_s": "epoch (.+)"})
    assert "window_s" not in figures and figures["epoch_s"] == figures["first_epoch_s"] == 3.0


def test_a_figure_under_another_name_and_the_largest_of_them():
    _, figures = read(
        ['{"eval/top1": 40.0}', '{"eval/top1": 90.0}', '{"eval/top1": 80.0}'],
        {"val_accuracy": {"json": "eval/top1", "scale": 0.01, "take": "max"}},
    )
    assert figures == {"val_accuracy": pytest.approx(0.9)}


@pytest.mark.parametrize(("target", "seconds"), [(0.5, 1.0), (0.8, 3.0), (0.95, None), (None, None)])
def test_time_to_target_is_the_time_of_the_epochs_up_to_it(target, seconds):
    lines = [f'{{"epoch": {n}, "epoch_s": {n}, "val_accuracy": {acc}}}' for n, acc in [(1, 0.6), (2, 0.9), (3, 0.7)]]
    _, figures = read(lines, {"epoch_s": None, "val_accuracy": None}, target_accuracy=target)
    assert figures.get("time_to_target_s") == seconds


@pytest.mark.parametrize("line", ['{"epoch": 1, "loss": NaN}', "loss nan", "loss inf"])
def test_a_loss_that_is_not_finite_is_divergence(line):
    with pytest.raises(DivergedError, match="a loss of"):
        read([line], {"loss": {"regex": "loss (.+)"} if "{" not in line else None})


@pytest.mark.parametrize("line", ["loss about three", '{"loss": "high"}', '{"loss": true}', '{"loss": [1]}', '{"lo'])
def test_what_is_no_number_is_passed_over(line):
    assert read([line], {"loss": "loss (.+)"}) == ([], {}) == read([line], {"loss": None})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("loss (", "is not a regular expression"),
        ({"regex": "x", "json": "y"}, "takes null, a regular expression"),
        ({"rgx": "x"}, "takes null, a regular expression"),
        ({"take": "best"}, "'best' is not one of last, first, max"),
        ({"scale": 0}, "scale must be a number other than 0"),
        (3, "takes null, a regular expression"),
    ],
)
def test_what_says_nothing_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        read([], {"loss": given})


@pytest.mark.parametrize(("ending", "epoch_s", "between_lines"), [("", 2.0, True), (" took 1.5 s", 1.5, False)])
def test_where_no_line_has_a_time_that_between_the_epochs_lines_counts(ending, epoch_s, between_lines):
    metrics = {"loss": r"loss (\S+)", "epoch_s": r"took (\S+) s"}
    settings = CommandSettings(argv="x", metrics=metrics, epoch_pattern=r"epoch (\d+)", samples_per_epoch=100)
    ticks = iter((10.0, 12.0, 14.0))
    reader = CommandMetrics(settings, clock=lambda: next(ticks))
    for epoch in (1, 2, 3):
        reader.line(f"epoch {epoch} loss 0.5{ending}")
    figures = reader.figures()
    assert reader.between_lines is between_lines
    assert (figures["epoch_s"], figures["samples_per_s"], figures["samples"]) == (epoch_s, 100 / epoch_s, 300)
