import io
import re
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from orchestrator.analysis.trials import collect
from orchestrator.decision.recommendation import GpuCount, Recommendation, TradeOff
from orchestrator.tables.recommendation import recommendation_markdown
from orchestrator.tables.terminal import show
from orchestrator.text.table import TextTable
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def shown(width: int, terminal: bool = True, evil: str = "", found: Recommendation = RECOMMENDATION) -> str:
    cells = collect(demo.records(evil=evil), scaling="weak", reference_batch_size=32)[1]
    file = io.StringIO()
    show(cells, found, Console(file=file, width=width, force_terminal=terminal, highlight=False), FURTHER)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_tables_are_no_wider_than_the_terminal(width: int) -> None:
    lines = _ESCAPE.sub("", shown(width)).splitlines()
    command = [line for line in lines if line.lstrip().startswith("python ")]
    assert max(len(line) for line in lines if line not in command) <= width
    assert "─" in "".join(lines) and sum("(baseline)" in line for line in lines) == 9


def test_the_recommendation_comes_first_and_its_sentence_is_what_is_left_on_the_screen() -> None:
    lines = _ESCAPE.sub("", shown(100)).rstrip().splitlines()
    assert "Recommendation (provisional)" in lines[0] and "Use gpus=8" in lines[1]
    assert any(line.startswith("Use gpus=8") for line in lines[-4:])


def test_what_each_number_of_gpus_is_worth_comes_before_the_reasons() -> None:
    best = TradeOff(cell_id="a", name="gpus=1", time_s=12.5, val_accuracy=0.9, cost=1.0)
    counts = (GpuCount(gpus=1, name="1 GPU", best=best), GpuCount(gpus=2, name="2 GPUs", best=None, why_none="no room"))
    lines = _ESCAPE.sub("", shown(100, found=replace(RECOMMENDATION, gpu_counts=counts))).splitlines()
    (at,) = [place for place, line in enumerate(lines) if line.startswith("The best cell for each number of")]
    assert any("12.5" in line for line in lines[at:]) and any("2 GPUs: no room" in line for line in lines[at:])
    assert at < lines.index("Why:")


def test_the_first_sentence_alone_is_bold() -> None:
    found = replace(RECOMMENDATION, lead="Use it.", further=("And so on.",), doubts=("few seeds",))
    text = shown(100, found=found)
    assert "\x1b[1mUse it.\x1b[0m And so on. Provisional: few seeds. " in text
    markdown = recommendation_markdown(found, "demo")
    assert "\n\n**Use it.** And so on. Provisional: few seeds.\n\n" in markdown


def test_what_there_is_nothing_of_has_no_title() -> None:
    text = _ESCAPE.sub("", shown(100, found=replace(RECOMMENDATION, reasons=(), sensitivity=())))
    assert "Why:" not in text and "What would change it:" not in text and "Why:" in _ESCAPE.sub("", shown(100))


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_says_what_it_leaves_out() -> None:
    wide, narrow = _ESCAPE.sub("", shown(140)), _ESCAPE.sub("", shown(80))
    assert "samples/s" in wide and "epoch [s]" in wide and "Also in tables/summary.csv" not in wide
    assert "1.73× [1.65, 1.81]" in narrow and "Also in tables/summary.csv: epoch [s]" in narrow


def test_claims_follow_the_recommendation() -> None:
    text = _ESCAPE.sub("", shown(100))
    places = [text.index(title) for title in ("Use gpus=8", "Claims", "Speed-up", "Accuracy on")]
    assert places == sorted(places) and "refuted" in text


def test_further_tables_that_are_long_or_too_wide_are_named_only() -> None:
    cells = collect(demo.records(), scaling="weak", reference_batch_size=32)[1]

    def further(rows: int, width: int) -> str:
        frame = pd.DataFrame([{"cells": f"row {row}", "laws": "x" * 60} for row in range(rows)])
        file = io.StringIO()
        table = TextTable(name="scaling", title="Scaling laws", about=(), frame=frame)
        show(cells, None, Console(file=file, width=width, force_terminal=True, highlight=False), [table])
        return _ESCAPE.sub("", file.getvalue()).partition("Scaling laws")[2]

    assert "row 3" in further(4, 80)
    assert further(4, 60).startswith(": 4 rows in tables/scaling.md\n") and "row 3" not in further(4, 60)
    assert further(40, 80).startswith(": 40 rows in tables/scaling.md\n")


def test_colour_is_for_terminals() -> None:
    assert "\x1b[" in shown(100) and "\x1b[" not in shown(100, terminal=False)


def test_hostile_strings_neither_colour_nor_move_the_cursor() -> None:
    text = shown(120, terminal=False, evil="[bold red]x[/] \x1b[2J\x07")
    assert "\x1b" not in text and "\x07" not in text and "[bold red]x[/]" in text.replace("\n", "")
