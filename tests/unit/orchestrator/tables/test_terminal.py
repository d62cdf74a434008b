"""The end of a sweep on a terminal: golden files at three widths, and what must hold at any width."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.decision.recommendation import CLEAR, TIED
from orchestrator.store.results import Problem
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.tables.terminal import MOST_LINES, lines_of, show
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import decided_with_frames, measured, swayed
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
WIDTHS = (80, 120, 200)
LOOP = {"_target_": "trainables.supervised.training:train"}
TRAINED = {"config": {"trainable": LOOP, "model": {"name": "small_cnn"}, "data": {"name": "digits"}}}


def ended(records, terms=None, **fields):
    trials, cells, recommendation = decided_with_frames(records, **(terms or {}))
    given = {"folder": ResultsFolder(Path("results/demo")), "has_page": True, "took_s": 349.0, "fingerprint": TRAINED}
    return SweepEnd(recommendation=recommendation, trials=trials, cells=cells, **given | fields)


def rows(end, width=120):
    return [line.plain for line in lines_of(end, width)]


def on_cpu():
    """Two batches on one and two processes: the second process is slower, and two rules tie."""
    speeds = {(1, 32, "none"): 100, (1, 128, "none"): 200, (1, 128, "sqrt"): 196, (2, 32, "none"): 65}
    sway = (0, 0.03, -0.03)
    return [
        record_of(
            gpus,
            seed,
            batch=batch,
            lr_rule=rule,
            device="cpu",
            metrics=measured(rate * (1 + sway[(seed + gpus + batch + len(rule)) % 3]), 0.96 + sway[seed] / 10)
            | ({"foreign_cpu": 0.49, "foreign_cpu_by": "chrome"} if seed and (batch, rule) == (128, "none") else {}),
        )
        for (gpus, batch, rule), rate in speeds.items()
        for seed in range(3)
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_golden_end_of_a_sweep(width, golden):
    golden(f"terminal/end_{width}.txt", "".join(f"{line}\n" for line in rows(ended(on_cpu()), width)))


ON_GPUS = {"price_per_gpu_hour": 3.0, "currency": "EUR", "margin": 0.05}


@pytest.mark.parametrize("width", WIDTHS)
def test_golden_end_on_gpus_with_failures(width, golden):
    failed = (
        "1 of 108 trials failed (rerun=failed runs it again): RuntimeError: the disk is full"
        " (see results/demo/trials/x/error.txt)"
    )
    problems = [Problem(label="Failed", what=failed)]
    end = ended(demo.records(evil=demo.EVIL), ON_GPUS, problems=problems)
    golden(f"terminal/gpus_{width}.txt", "".join(f"{line}\n" for line in rows(end, width)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ["cpu", "gpus", "one", "short", "none_ok"])
def test_the_end_fits_on_a_terminal_of_24_lines(case, width):
    records = {
        "cpu": on_cpu(),
        "gpus": demo.records(evil=demo.EVIL),
        "one": [record_of(g, 0, metrics=measured(100 * g, 0.9)) for g in (1, 2)],
        "short": [record_of(g, s, metrics=measured(9 * g, 0.9) | {"window_s": 0.1}) for g in (1, 2) for s in range(3)],
        "none_ok": [record_of(1, s, Status.OOM, note="CUDA out of memory " * 20) for s in range(3)],
    }[case]
    given = (
        (ON_GPUS, [Problem(label="Failed", what="RuntimeError: " + "why " * 50)] * 9) if case == "gpus" else ({}, [])
    )
    lines = rows(ended(records, given[0], problems=given[1]), width)
    free = ("python -m orchestrator", "  report")
    assert max(len(line) for line in lines if not any(words in line for words in free)) <= width
    assert sum(max(1, math.ceil(len(line) / width)) for line in lines) <= MOST_LINES


@pytest.mark.parametrize("length", [10, 700])
def test_a_long_command_leaves_room_for_the_answer(length):
    end, command = ended(demo.records(), ON_GPUS), f"python -m orchestrator {'x' * length}"
    lines = rows(replace(end, recommendation=replace(end.recommendation, commands=(command,))), 80)
    assert any(line.endswith(command) for line in lines) == (length == 10)
    assert any("mode=settle" in line for line in lines) == (length == 700)
    assert sum(math.ceil(max(1, len(line)) / 80) for line in lines) <= MOST_LINES


def test_a_narrow_terminal_names_the_tied_cells():
    text = "8×256 sqrt, LR 1.6: accuracy holds ≥99% (-0.007); " * 5
    end = ended(on_cpu(), problems=[Problem(label="Failed", what="RuntimeError: " + "why " * 50)] * 9)
    found = end.recommendation
    many = replace(found, rivals=tuple(replace(found.rivals[0], further={"axis": f"{text}{n}"}) for n in range(4)))
    assert any(line.startswith(" Tied") for line in rows(replace(end, recommendation=many), 80))


@pytest.mark.parametrize("width", WIDTHS)
def test_times_and_chances_are_shown_at_any_width(width):
    titles = {line.split()[0] for line in rows(ended(on_cpu()), width) if line}
    assert {"time", "speed-up", "accuracy", "is"} <= titles


def test_an_older_report_is_marked(tmp_path):
    folder = ResultsFolder(tmp_path)
    for has_page, is_older in ((False, False), (True, False), (False, True)):
        last = rows(ended(on_cpu(), folder=folder, has_page=has_page))[-1]
        assert last.endswith("mode=report report.html=true)") == is_older
        folder.page.touch()


def test_the_verdict_is_in_the_headline_and_the_last_line():
    for speeds, verdict in (({1: 100, 2: 190}, CLEAR), ({1: 50, 2: 100, 4: 101}, TIED)):
        end = ended(swayed(speeds, dict.fromkeys(speeds, 0.9)))
        assert end.recommendation.verdict == verdict
        lines = rows(end)
        assert lines[1].startswith(f" {verdict.upper()}  Use ") and lines[-1].startswith(f" {verdict.upper()}  ")


def test_a_tie_names_the_rival_and_its_accuracy():
    end = ended(swayed({1: 50, 2: 100, 4: 101}, {1: 0.9, 2: 0.905, 4: 0.902}))
    (rival,) = [rival for rival in end.recommendation.rivals if rival.p_best > end.recommendation.p_best]
    (line,) = [line for line in rows(end) if line.startswith(" Tied")]
    assert f" {rival.name}, dearer: accuracy holds " in line


def test_disturbed_timings_are_one_line_with_their_cause():
    (line,) = [line for line in rows(ended(on_cpu())) if line.startswith(" Disturbed")]
    assert "2 of 12" in line and "49%" in line and "chrome" in line


def test_a_sweep_without_an_ok_trial_says_nothing_of_timings():
    failed = [replace(record_of(1, seed), status=Status.FAILED, metrics={}) for seed in range(2)]
    (line,) = [line for line in rows(ended(failed)) if line.startswith(" Trials")]
    assert line.split() == ["Trials", "2", "failed"]


@pytest.mark.parametrize(
    ("terms", "device", "cost"),
    [
        ({}, "cuda", ", 60.0 to 870 GPU-seconds"),
        ({"price_per_gpu_hour": 3.6, "currency": "EUR"}, "cuda", ", 0.0600 to 0.870 EUR"),
        ({"price_per_gpu_hour": 3.6, "currency": "EUR"}, "cpu", ""),
    ],
)
def test_the_settle_line_has_the_command_and_its_cost(terms, device, cost):
    records = [record_of(g, 0, device=device, metrics=measured(100 * g, 0.9)) for g in (1, 2)]
    lines = " ".join(" ".join(rows(ended(records, terms), 80)).split())
    # 2 to 29 more seeds of each cell, which take 10 s each on one and on two GPUs.
    assert f"Next 30 s to 7 min{cost}, to be surer of 2×32 none: python -m orchestrator sweep=demo mode=settle" in lines


def test_a_clear_verdict_has_nothing_to_settle():
    assert not any("settle" in line.lower() for line in rows(ended(swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9}))))


def test_costs_are_hidden_on_cpus_and_have_their_currency_on_gpus():
    assert not any("cost [" in line for line in rows(ended(on_cpu()), 200))
    terms = {"price_per_gpu_hour": 3.0, "currency": "EUR"}
    assert any("cost [EUR]" in line for line in rows(ended(swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9}), terms), 200))


def test_too_short_trials_have_the_line_that_makes_them_longer():
    declared = """"trainable.metrics.val_accuracy={regex: 'val_acc=([0-9.]+)'}\""""
    note = f"no metric to choose by was read; the output has one: {declared}; more"
    for words, epochs, is_told in (
        ("[train,'{epochs}']", 2, True),
        ("[train,'{epochs}']", 0.03, False),
        ("[train]", 2, False),
    ):
        short = {"samples_per_s": 9.0, "window_s": 0.1, "epochs": epochs}
        records = [record_of(gpus, 0, metrics=short, note=note) for gpus in (1, 2)]
        arguments = ["sweep=batch_scaling", "sweep.name=demo", "trainable=command", f"trainable.argv={words}"]
        line = " ".join(" ".join(rows(ended(records, {"arguments": arguments}))).split())
        assert (f"budget.epochs=20 sweep.name=demo_longer {declared}" in line) == is_told
        assert ("epochs" if is_told else "train longer") in line.partition(" Next ")[2]


def test_only_terminals_get_colours():
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, width=100, force_terminal=terminal, color_system="standard" if terminal else None)
        show(ended(on_cpu()), console)
        assert ("\x1b[" in file.getvalue()) is terminal


def test_hostile_strings_neither_colour_nor_move_the_cursor():
    evil = "[bold red]x[/] \x1b[2J\x07"
    records = [replace(record, lr_rule=f"{record.lr_rule} {evil}") for record in on_cpu()]
    file = io.StringIO()
    show(ended(records, problems=[Problem(label="Failed", what=evil)]), Console(file=file, width=120))
    text = file.getvalue()
    assert "\x1b" not in text and "\x07" not in text and "[bold red]x[/]" in text


@pytest.mark.timeout(60)
def test_label_of_any_length_is_wrapped_in_time():
    records = [
        replace(record, lr_rule="x" * 100_000 if record.lr_rule == "none" else record.lr_rule) for record in on_cpu()
    ]
    assert "x" * 40 in "\n".join(rows(ended(records)))


def test_long_label_is_apart_from_its_text():
    rates = {0.25: 100.0, 0.5: 110.0, 1: 120.0}
    records = [record_of(gpus, seed, metrics=measured(rate, 0.9)) for gpus, rate in rates.items() for seed in range(3)]
    lines = rows(ended(records), 80)
    assert any(line.startswith(" 0.25→0.5 GPUs ") for line in lines) and max(map(len, lines)) <= 80


def test_the_log_of_a_failure_is_the_last_line_if_no_trial_is_ok():
    records = [record_of(1, seed, Status.FAILED, note="it broke") for seed in (0, 1)]
    assert rows(ended(records))[-1].endswith(f"log  results/demo/trials/{records[0].trial_id}")
    assert "report" in rows(ended([*records, *swayed({1: 10.0, 2: 19.0}, {1: 0.9, 2: 0.9})]))[-1]
