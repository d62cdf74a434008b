import json
import math
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from sweeps.metric import Target
from tests.unit.trainables.command.outputs import reading
from trainables.command.check import errors
from trainables.command.hook.sweep_files import ENDED_S
from trainables.command.output_parser import OutputParser
from trainables.command.settings import CommandSettings
from trainables.command.training import ended_early
from trainables.context import DivergedError


def read(lines, columns, target=None, **settings):
    reader, metrics = reading(CommandSettings(argv="x", metrics=columns, **settings), target=target)
    rows = [row for line in lines for row in reader.line(line)]
    return rows + reader.last_row(), metrics.figures()


def top1(pattern):
    return {"regex": pattern, "scale": 0.01}


TRANSFORMERS = [
    "{'loss': '0.4064', 'grad_norm': '0.3372', 'learning_rate': '0.000672', 'epoch': '1'}",
    "{'eval_loss': '0.04653', 'eval_accuracy': '0.75', 'eval_runtime': '0.418', 'epoch': '1'}",
    "{'loss': 0.25, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 2.0}",  # of version 4
    "{'a': open('x')}",
    "{1, 2}",
]
EPOCHS = ["Epoch time: 4.0", "loss 0.5", "Epoch time: 2.0", "loss 0.25", "Epoch time: 3.0", "loss 1e-1", "Top1 93.5%"]
RATES = [f"epoch {epoch} iter {10 * i}: 50 images/s" for epoch in range(3) for i in range(4)]
JSON_RATES = [f'{{"epoch": {epoch}, "step": {10 * i}, "samples_per_s": 50}}' for epoch in range(3) for i in range(4)]
ABSENT = object()


@pytest.mark.parametrize(
    ("lines", "metrics", "settings", "rows", "figures"),
    [
        pytest.param(
            ['{"epoch": 1, "loss": 2.0, "other": 5}', "no", '{"epoch": 2, "loss": 1.0}', '{"accuracy": 0.9}', "{}"],
            {"loss": None, "accuracy": None},
            {},
            [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}],
            {"loss": 1.0, "accuracy": 0.9, "other": ABSENT},
            id="declared keys of JSON lines",
        ),
        pytest.param(
            TRANSFORMERS,
            {"loss": None, "val_accuracy": {"json": "eval_accuracy"}},
            {},
            [{"epoch": 1, "loss": 0.4064}, {"epoch": 1, "val_accuracy": 0.75}, {"epoch": 2.0, "loss": 0.25}],
            {"loss": 0.25, "val_accuracy": 0.75},
            id="printed Python dictionaries",
        ),
        pytest.param(
            EPOCHS,
            {"epoch_s": "Epoch time: ([0-9.]+)", "loss": "loss (.+)", "accuracy": top1("Top1 ([0-9.]+)%")},
            {"samples_per_epoch": 100},
            [
                {"epoch": 1, "epoch_s": 4.0, "loss": 0.5},
                {"epoch": 2, "epoch_s": 2.0, "loss": 0.25},
                {"epoch": 3, "epoch_s": 3.0, "loss": 0.1, "accuracy": 0.935},
            ],
            {"first_epoch_s": 4.0, "epoch_s": 2.5, "train_s": 9.0, "window_s": 5.0}
            | {"samples_per_s": 40.0, "samples": 300, "accuracy": 0.935},
            id="a row for each epoch",
        ),
        pytest.param(
            ["epoch 0"],
            {"epoch_s": "epoch (.+)"},
            {"samples_per_epoch": 100},
            None,
            {"epoch_s": 0.0, "samples": 100, "samples_per_s": ABSENT},
            id="an epoch of less than a second, in whole seconds",
        ),
        pytest.param(
            ["epoch 3.0"],
            {"epoch_s": "epoch (.+)"},
            {},
            [{"epoch": 1, "epoch_s": 3.0}],
            {"epoch_s": 3.0, "first_epoch_s": 3.0, "window_s": ABSENT},
            id="one epoch has no window",
        ),
        pytest.param(
            [json.dumps({"epoch": 1, "epoch_s": 2.0, "train_s": 5.0, "samples_per_s": 7})],
            {"epoch_s": None, "train_s": None, "samples_per_s": None},
            {"samples_per_epoch": 100},
            [{"epoch": 1, "epoch_s": 2.0, "train_s": 5.0, "samples_per_s": 7}],
            {"train_s": 5.0, "samples_per_s": 7},
            id="reported metrics precede derived ones",
        ),
        pytest.param(
            [f"Epoch: [{epoch}] [{i}/3] loss: {9 - epoch - i}" for epoch in range(2) for i in range(3)] + ["Acc@1 50"],
            {"loss": "loss: (.+)", "accuracy": top1("Acc@1 (.+)")},
            {"epoch_pattern": r"Epoch: \[(\d+)\]"},
            [{"epoch": 1, "loss": 7}, {"epoch": 2, "loss": 6, "accuracy": 0.5}],
            {"accuracy": 0.5},
            id="the pattern of epochs joins lines",
        ),
        pytest.param(
            [f"iter {i}: time {ms}ms" for i, ms in enumerate((900, 20, 40, 30))],
            {"step_s": {"regex": "time (.+)ms", "scale": 1e-3}},
            {},
            None,
            {"step_s": 0.03, "window_s": 0.09, "window_steps": 3},
            id="seconds of steps",
        ),
        pytest.param(
            ['{"eval/top1": 40.0}', '{"eval/top1": 90.0}', '{"eval/top1": 80.0}'],
            {"val_accuracy": {"json": "eval/top1", "scale": 0.01, "take": "max"}},
            {},
            [],
            {"val_accuracy": 0.9},
            id="key, scale and take",
        ),
        *(
            pytest.param(
                lines,
                {"samples_per_s": {"regex": "(\\S+) images/s"} if lines is not JSON_RATES else None},
                settings,
                None,
                {"samples_per_s": 50, "samples": samples},
                id=name,
            )
            for name, lines, settings, samples in (
                ("samples of named epochs", RATES, {"epoch_pattern": r"epoch (\d+)", "samples_per_epoch": 100}, 300),
                ("samples of JSON epochs", JSON_RATES, {"samples_per_epoch": 100}, 300),
                ("lines that name epochs", RATES, {"samples_per_epoch": 100}, 300),
                ("lines about anything", [line[8:] for line in RATES], {"samples_per_epoch": 100}, ABSENT),
                ("epochs of unknown size", JSON_RATES, {}, ABSENT),
            )
        ),
        *(
            pytest.param([line], {"step_s": how}, {}, None, {"step_s": seconds}, id=line)
            for line, how, seconds in (
                ("Total time: 1:02:03", {"regex": "time: (.+)"}, 3723),
                ("[00:41<00:00]", {"regex": r"\[([0-9:]+)<"}, 41),
                ("time: 2:03.5", {"regex": "time: (.+)"}, 123.5),
                ("9/9 4.0it/s", {"regex": "([0-9.]+)it/s", "invert": True}, 0.25),
                ("9/9 0.0it/s", {"regex": "([0-9.]+)it/s", "invert": True}, ABSENT),
            )
        ),
    ],
)
def test_lines_become_rows_and_figures(lines, metrics, settings, rows, figures):
    rows_read, figures_read = read(lines, metrics, **settings)
    assert rows is None or [pytest.approx(row) for row in rows] == rows_read
    assert {name: figures_read.get(name, ABSENT) for name in figures} == pytest.approx(figures)


@pytest.mark.parametrize(("target", "seconds"), [(0.5, 1.0), (0.8, 3.0), (0.95, None), (None, None)])
def test_time_to_target_sums_epochs_until_it(target, seconds):
    lines = [f'{{"epoch": {n}, "epoch_s": {n}, "val_accuracy": {acc}}}' for n, acc in [(1, 0.6), (2, 0.9), (3, 0.7)]]
    goal = None if target is None else Target(metric="val_accuracy", value=target, higher_is_better=True)
    _, figures = read(lines, {"epoch_s": None, "val_accuracy": None}, target=goal)
    assert figures.get("time_to_target_s") == seconds


@pytest.mark.parametrize("line", ['{"epoch": 1, "loss": NaN}', "{'loss': nan, 'epoch': 2.0}", "loss nan", "loss inf"])
def test_two_losses_that_are_not_finite_are_divergence(line):
    declared = {"loss": {"regex": "loss ([0-9.]+)"} if "{" not in line else None}
    with pytest.raises(DivergedError, match="a loss of"):
        read([line, line], declared)
    _, figures = read([line], declared)
    assert not math.isfinite(figures["loss"])
    finite = line.replace("NaN", "0.5").replace("nan", "0.5").replace("inf", "0.5")
    assert read([line, finite], declared)[1]["loss"] == 0.5


@pytest.mark.parametrize("name", ["val_loss", "val_accuracy", "val_bpb"])
def test_the_last_value_of_a_metric_may_be_no_number(name):
    lines = [f"{name} 0.5", f"{name} nan"]
    assert math.isnan(read(lines, {name: {"regex": f"{name} ([0-9.]+)", "take": "max"}})[1][name])
    assert read(lines, {"grad_norm": f"{name} ([0-9.]+)"})[1]["grad_norm"] == 0.5


@pytest.mark.parametrize("word", ["tensor(nan)", "null", "--", "1.#QNAN", "n/a"])
@pytest.mark.parametrize("line", ["epoch {epoch} loss {loss}", "epoch {epoch} - loss: {loss} - acc: 0.1"])
def test_a_word_instead_of_the_last_losses_is_noticed(line, word):
    settings = CommandSettings(argv="x", metrics={"loss": "loss:? ([0-9.]+)", "val_accuracy": "acc: ([0-9.]+)"})
    reader = OutputParser(settings)
    rows = []
    for epoch in range(1, 7):
        rows += reader.line(line.format(epoch=epoch, loss=1 / epoch if epoch < 4 else word))
    rows += reader.last_row()
    assert reader.output.unread_epoch == 6 or reader.output.unclear or ended_early(rows) == ["loss"]


def test_metrics_of_some_epochs_end_with_the_training():
    rows = [{"epoch": epoch, "loss": 0.5} | ({} if epoch % 2 else {"val_loss": 0.5}) for epoch in range(1, 6)]
    assert ended_early(rows) == [] == ended_early([])
    assert ended_early([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.4}, {"epoch": 2, "accuracy": 0.9}]) == []


@pytest.mark.parametrize("line", ["loss about three", '{"loss": "high"}', '{"loss": true}', '{"loss": [1]}', '{"lo'])
def test_text_that_is_not_a_number_is_skipped(line):
    assert read([line], {"loss": "loss (.+)"}) == ([], {}) == read([line], {"loss": None})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("loss (", "regular expression"),
        ({"regex": "x", "json": "y"}, "regex.*json"),
        ({"rgx": "x"}, "rgx"),
        ({"take": "best"}, "take='best'"),
        ({"scale": 0}, "scale must be"),
        (3, "not 3"),
    ],
)
def test_an_invalid_declaration_is_refused(given, match):
    with pytest.raises(ValueError, match=match):
        read([], {"loss": given})


@pytest.mark.parametrize(("ending", "epoch_s", "between_lines"), [("", 2.0, True), (" took 1.5 s", 1.5, False)])
def test_without_times_the_interval_between_epoch_lines_counts(ending, epoch_s, between_lines):
    metrics = {"loss": r"loss (\S+)", "epoch_s": r"took (\S+) s"}
    settings = CommandSettings(argv="x", metrics=metrics, epoch_pattern=r"epoch (\d+)", samples_per_epoch=100)
    ticks = iter((10.0, 12.0, 14.0))
    reader, metrics = reading(settings, clock=lambda: next(ticks))
    for epoch in (1, 2, 3):
        reader.line(f"epoch {epoch} loss 0.5{ending}")
    figures = metrics.figures()
    assert metrics.between_lines is between_lines
    assert (figures["epoch_s"], figures["samples_per_s"], figures["samples"]) == (epoch_s, 100 / epoch_s, 300)


def test_epochs_without_marked_steps_are_timed_by_their_own_clock():
    reader, metrics = reading(CommandSettings(argv="x", metrics={"val_loss": None}), epochs=4, clock=lambda: 0.0)
    rows = [reader.row({"epoch": epoch, "val_loss": 0.5, ENDED_S: 10.0 + 2 * epoch}) for epoch in (1, 2, 3, 4)]
    figures = metrics.figures()
    assert rows[3] == [{"epoch": 4, "val_loss": 0.5}] and metrics.between_lines
    assert (figures["epoch_s"], figures["train_s"], metrics.work()["epochs"]) == (2.0, 8.0, 4)


STEP = {"step_s": r"took ([0-9.]+) s"}


def read_step_times(timed, **settings):
    """Read lines given as (second, line)."""
    now = [0.0]
    reader, metrics = reading(CommandSettings(argv="x", metrics=STEP, **settings), 64, clock=lambda: now[0])
    for now[0], line in timed:
        reader.line(line)
    return metrics


def every_tenth(first=0, count=31, step_s=0.1, start_s=5.0):
    """Return a line for every tenth step of 0.1 s; the first step takes longer."""
    return [
        (start_s + 10 * step_s * i, f"iter {first + 10 * i}: took {9.0 if first + i == 0 else step_s} s")
        for i in range(count)
    ]


def test_numbered_steps_count_between_lines():
    metrics = read_step_times(every_tenth(), step_pattern=r"iter (\d+):")
    figures = metrics.figures()
    assert (figures["window_steps"], figures["window_s"]) == (300, pytest.approx(30.0))
    assert figures["samples_per_s"] == pytest.approx(640) and list(metrics.output.steps.remarks()) == []


def test_step_numbers_may_restart_with_an_epoch():
    """0, 10, 20, then 10, 20 of the next epoch: the steps after 20 are not reported."""
    lines = [*every_tenth(count=3), *every_tenth(first=10, count=2, start_s=9.0)]
    assert read_step_times(lines, step_pattern=r"iter (\d+):").figures()["window_steps"] == 10 + 10 + 10 + 10


@pytest.mark.parametrize("key", ["step", "steps"])
def test_json_rows_have_step_numbers(key):
    reader, metrics = reading(CommandSettings(argv="x", metrics={"step_s": None}), 64)
    for number in (50, 100, 200):
        reader.line(f'{{"epoch": 1, "{key}": {number}, "step_s": 0.25}}')
    assert (metrics.figures()["window_steps"], metrics.figures()["window_s"]) == (150, 37.5)


def test_without_step_numbers_a_line_is_one_step():
    metrics = read_step_times([(second, line.partition(": ")[2]) for second, line in every_tenth()])
    figures = metrics.figures()
    assert (figures["window_steps"], figures["window_s"]) == (30, pytest.approx(3.0))
    remark = "".join(metrics.output.steps.remarks())
    assert all(part in remark for part in ("31 times", "30.0 s", "3 s of training", "trainable.step_pattern="))


@pytest.mark.parametrize(
    "timed",
    [
        [(5.0 + i / 10, "took 0.1 s") for i in range(50)],  # every step
        [(5.0, "took 0.1 s") for _ in range(50)],  # all at once, from a buffer
        [(5.0, "took 0.1 s")],
        [],
    ],
)
def test_lines_as_fast_as_steps_need_no_remark(timed):
    assert list(read_step_times(timed).output.steps.remarks()) == []


def test_an_invalid_step_pattern_is_an_error():
    config = {"trainable": {"argv": "true", "step_pattern": "iter ("}}
    assert any("trainable.step_pattern" in error for error in errors(config))


def read_epoch_clock(timed, metrics, *, epochs=None, samples_per_epoch=100, **settings):
    """Return the metrics of lines given as (second, line)."""
    now = iter(second for second, _ in timed)
    command = CommandSettings(argv="x", metrics=metrics, samples_per_epoch=samples_per_epoch, **settings)
    reader, metrics = reading(command, 64, epochs, clock=lambda: now_at[0])
    now_at = [0.0]
    for (_, line), now_at[0] in zip(timed, now, strict=True):
        reader.line(line)
    return metrics.figures()


ACCURACY = {"val_accuracy": "acc ([0-9.]+)"}
PLAIN = [(9.0, "epoch 0 acc 0.5"), (11.0, "epoch 1 acc 0.7"), (13.5, "epoch 2 acc 0.9"), (20.0, "done")]


UNNAMED = [(second, line.partition("acc")[1] + line.partition("acc")[2]) for second, line in PLAIN]
TWO_TO_FOUR = [(5.0, "epoch 2: loss 3"), (6.0, "epoch 2: loss 2"), (10.0, "epoch 4: loss 1"), (60.0, "acc 0.9")]
JSON = [(float(2 * epoch), f'{{"epoch": {epoch}, "loss": 1}}') for epoch in (1, 2, 3)] + [(50.0, "done")]
HEAPS = [(40.0 + epoch // 40 * 40, f"epoch {epoch} acc 0.5") for epoch in range(100)]
QUICK = [(5.0 + epoch // 4 / 10, f"epoch {epoch} acc 0.5") for epoch in range(100)]
TOOK = [*PLAIN, (21.0, "took 7")]


@pytest.mark.parametrize(
    ("timed", "metrics", "settings", "figures"),
    [
        # As many lines as the budget has epochs.
        (PLAIN, ACCURACY, {"epochs": 3}, {"epoch_s": 2.25, "window_s": 4.5, "samples": 300, "window_steps": 4}),
        # Lines that may not be epochs, and lines that name them.
        (UNNAMED, ACCURACY, {"epochs": 2}, {"val_accuracy": 0.9, "epoch_s": ABSENT}),
        (UNNAMED, ACCURACY, {"epochs": 3}, {"epoch_s": 2.25, "samples": 300}),
        (UNNAMED, ACCURACY, {}, {"val_accuracy": 0.9, "epoch_s": ABSENT}),
        (PLAIN, ACCURACY, {}, {"epoch_s": 2.25, "samples": 300}),
        # Named epochs, without the last evaluation.
        (
            *(TWO_TO_FOUR, {"loss": "loss (.+)", **ACCURACY}, {"epoch_pattern": "epoch ([0-9]+)"}),
            {"epoch_s": 2.0, "window_s": 4.0, "samples": 400},
        ),
        (JSON, {"loss": None}, {"samples_per_epoch": None}, {"epoch_s": 2.0, "window_s": 4.0, "samples": ABSENT}),
        # Reported times replace the clock.
        *(
            (TOOK, {**ACCURACY, column: "took (.+)"}, {"epochs": 3}, {"window_s": ABSENT})
            for column in ("epoch_s", "step_s", "samples_per_s", "train_s")
        ),
        # Lines that arrive together, or from a buffer, have no time; lines that are read in turns have one.
        ([(1.0 + second / 100, line) for second, line in PLAIN], ACCURACY, {"epochs": 3}, {"epoch_s": ABSENT}),
        (HEAPS, ACCURACY, {"epochs": 100}, {"epoch_s": ABSENT}),
        (QUICK, ACCURACY, {"epochs": 100}, {"epoch_s": 2.4 / 99}),
        (PLAIN[:1], ACCURACY, {"epochs": 1}, {"epoch_s": ABSENT}),
    ],
)
def test_the_arrival_of_epoch_lines_gives_their_time(timed, metrics, settings, figures):
    figures_read = read_epoch_clock(timed, metrics, **settings)
    assert {name: figures_read.get(name, ABSENT) for name in figures} == pytest.approx(figures)


NAMED = {"epoch_pattern": "epoch ([0-9]+)"}


@pytest.mark.parametrize(
    ("numbers", "settings", "epochs"),
    [
        (range(1, 9), NAMED, 8),
        (range(8), NAMED, 8),  # counted from 0
        (range(2, 9, 2), NAMED, 8),  # every second epoch
        (range(1, 5), NAMED, 4),  # it ended early
        (range(5, 9), NAMED, 4),  # it resumed another trial's checkpoint
        (range(3, 7, 3), NAMED, 8),  # the next line is due after the budget's end
        ([8], NAMED, 8),
        ([], NAMED, None),
        (range(1, 5), {}, 4),
        ([*range(1, 3), *range(1, 7)], {}, 8),  # phases that count anew
        ([*range(1, 9), 3], NAMED, 8),  # the best epoch at the end
        ([1, 1, 2, 2, 3, 3], {}, 3),  # each of two processes prints it
    ],
)
def test_epochs_done_follow_from_the_lines(numbers, settings, epochs):
    reader, metrics = reading(CommandSettings(argv="x", metrics=ACCURACY, **settings), epochs=8)
    for number in numbers:
        reader.line(f"epoch {number} acc 0.5")
    reader.last_row()
    assert metrics.work().get("epochs") == epochs
    assert metrics.work().get("work_source") == (None if not numbers else "declared" if epochs else "assumed")


@pytest.mark.parametrize(("count", "epochs"), [(1, None), (4, 4), (8, 8)])
def test_timed_epochs_are_epochs(count, epochs):
    reader, metrics = reading(CommandSettings(argv="x", metrics={"epoch_s": "time (.+)"}), epochs=8)
    for _ in range(count):
        reader.line("time 0.3")
    assert metrics.work().get("epochs") == epochs


@pytest.mark.parametrize(
    "line",
    [
        '{"epoch": 3, "val": {"acc": 0.75}}',
        '2026-01-01 10:00:00,123 INFO {"Epoch": 3, "val_acc": 0.75}',
        "INFO:root:{'epoch': 3, 'eval_accuracy': np.float64(0.75)}",
        "{'epoch': tensor(3), 'val/acc': tensor(0.7500, device='cuda:0')}",
        "OrderedDict([('epoch', 3), ('val_acc', 0.75)])",
        '{"epoch": 3, "val": {"top-1": 0.75, "loss": null}} (1.3s)',
        "{'epoch': 3, 'val_acc': 0.75, 'model': <Model object at 0x1>}",
        'epoch 3: {"val_acc": 0.75}',
        'logger {train} {"epoch": 3, "val_acc": 0.75}',
        '{"epoch": 3, "eval": [{"acc": 0.75}]}',
        '{"epoch": 3, "results": {"val_accuracy": {"mean": 0.75, "std": 0.1}}}',
        '{"event": "end", "payload": {"epoch": 3, "metrics": {"val_acc": 0.75}}}',
        '{"level": "info", "msg": "{\\"epoch\\": 3, \\"val_acc\\": 0.75}"}',
        '{"level": "info", "message": {"epoch": 3, "train": {"acc": 0.99}, "val": {"acc": 0.75}}}',
    ],
)
def test_objects_are_read_wherever_they_are(line):
    assert read([line], {"val_accuracy": None})[1]["val_accuracy"] == 0.75


BARS = {
    "keras": "{i}/9 [====>....] - loss: {loss}",
    "keras 3": "{i}/9 ━━━━━━━━━━ 0s 4ms/step - loss: {loss}",
    "tqdm": "{i}0%|##| {i}/9 [00:01<00:01, 9.0it/s, loss: {loss}]",
    "ascii": "[##---] {i}/9 loss: {loss}",
    "percent": " {i}0% loss: {loss}",
}


@pytest.mark.parametrize("bar", BARS.values(), ids=BARS)
@pytest.mark.parametrize("name", ["", "Epoch {epoch}/3"])
def test_redraws_of_a_bar_are_one_row(bar, name):
    lines = []
    for epoch in (1, 2, 3):
        lines += [name.format(epoch=epoch), *(bar.format(i=i, loss=1 / epoch) for i in range(1, 10))]
    rows, figures = read(lines, {"loss": "loss: ([0-9.]+)"})
    assert [row["loss"] for row in rows] == [1, 1 / 2, 1 / 3]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch [{epoch}/3] time: 0.5",
        "[rank{rank}]: epoch {epoch} time: 0.5",
        "Rank {rank} | time: 0.5",
        "time: 0.5",
        '{{"epoch": {epoch}, "epoch_s": 0.5, "rank": {rank}}}',
        "{rank}: epoch {epoch} time: 0.5",
        "GPU {rank} | Epoch {epoch} | time: 0.5",
        "[1,{rank}]<stdout>: epoch {epoch} time: 0.5",
        "worker-{rank} | epoch {epoch} time: 0.5",
        "node0-rank{rank}: Epoch {epoch}: time: 0.5",
    ],
)
@pytest.mark.parametrize("in_turns", [True, False])
def test_lines_of_every_process_count_once(line, in_turns):
    metrics = {"epoch_s": None if line.startswith("{{") else "time: ([0-9.]+)"}
    settings = CommandSettings(argv="x", metrics=metrics, samples_per_epoch=100)
    reader, metrics = reading(settings, epochs=3, processes=2)
    lines = [(epoch, rank) for epoch in (1, 2, 3) for rank in (0, 1)]
    # A process may hold its lines back until it ends.
    for epoch, rank in lines if in_turns else sorted(lines, key=lambda numbers: numbers[1]):
        reader.line(line.format(epoch=epoch, rank=rank))
    figures = metrics.figures()
    assert (figures["train_s"], figures["samples"], metrics.work()["epochs"]) == (1.5, 300, 3)


def test_one_process_that_trains_too_long_is_not_two():
    settings = CommandSettings(argv="x", metrics={"epoch_s": "time: ([0-9.]+)"})
    reader, metrics = reading(settings, epochs=2, processes=2)
    for epoch in (1, 2, 3, 4):
        reader.line(f"epoch {epoch} time: 0.5")
    assert (metrics.figures()["train_s"], metrics.work()["epochs"]) == (2.0, 4)


def test_a_column_may_have_another_usual_name():
    settings = CommandSettings.of({"argv": "x", "metrics": {"val_accuracy": None, "val_acc": "acc (.+)", "f1": None}})
    assert settings.metrics == {"val_accuracy": "acc (.+)", "f1": None}


_DIGITS = "9" * 400
_ODD = (_DIGITS, f'"{_DIGITS * 12}"', '"1,234"', '"x"')


@pytest.mark.parametrize(
    "line",
    [
        *("{[1]: 2}", "OrderedDict([(1)])", "OrderedDict([(1, 2, 3)])", "{'a': {[1]}}"),
        *(f'{{"{name}": {number}, "epoch": 1}}' for name in ("val_loss", "eval_runtime") for number in _ODD),
        *(f'{{"epoch": {number}, "val_loss": 1}}' for number in (*_ODD, "NaN", "Infinity")),
        *(f"{name} {number}" for name in ("acc", "time", "rate") for number in (_DIGITS, "0", "0.00", "1e-320", "inf")),
        f'{{"epoch": 1, "{ENDED_S}": "x", "val_loss": 1}}',
    ],
    ids=lambda line: line[:30],
)
def test_no_line_is_an_error(line):
    metrics = {"val_loss": None, "epoch_s": "time (.+)", "samples_per_s": {"regex": "rate (.+)", "invert": True}}
    metrics["val_accuracy"] = top1("acc (.+)")
    _, figures = read([line, "epoch 1 time 2.0", line, "epoch 2 time 2.0"], metrics, samples_per_epoch=100)
    assert "train_s" in figures


@pytest.mark.parametrize(
    ("line", "column", "number"),
    [
        ("epoch 1/4  loss 1.2345  val_acc 61.20%  3.1s", "val_accuracy", 0.612),
        ("Epoch 1: train acc 0.9 | val acc:  0.612", "val_accuracy", 0.612),
        ("[3/90] Valid/Acc=61.2 valid/loss=1.1", "val_accuracy", 0.612),
        ("val_top1 | 71.2", "val_accuracy", 0.712),
        ("* Acc@1 69.7 Acc@5 90.0", "val_accuracy", 0.697),
        ("test acc 0.8, val loss 1.3", "val_loss", 1.3),
        ("test acc 0.8", "val_accuracy", 0.8),
        ("train loss 0.4, Validation loss: 12.5", "val_loss", 12.5),
        ('{"epoch": 1, "val_acc": 0.6}', "val_accuracy", 0.6),
        ("{'eval_accuracy': 0.8, 'eval_loss': 0.3}", "val_accuracy", 0.8),
        ("loss 0.4 train_acc 0.3 training acc 0.5 test loss 0.1", "", None),
        ("Train Epoch: 1 Loss: 0.3 Acc: 0.9", "", None),
        ("train: loss 0.3, acc 0.91 | val: loss 0.4, acc 0.85", "", None),
        ("Accuracy: 9822/10000 (98%), of the first 10", "", None),
    ],
)
def test_the_metric_that_is_not_declared_is_named(line, column, number):
    reader, metrics = reading(CommandSettings(argv="x", metrics={"val_accuracy": None, "val_loss": None}))
    reader.line(line)
    assert bool(reader.output.likely.declaration) is bool(column)
    for words in shlex.split(reader.output.likely.declaration):
        override = OverridesParser.create().parse_override(words)
        assert override.key_or_group == f"trainable.metrics.{column}"
        _, figures = read([line], {column: override.value()})
        assert figures[column] == pytest.approx(number)
