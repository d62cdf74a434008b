import io
import re
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from orchestrator.analysis.trials import collect
from orchestrator.decision.recommendation import Recommendation, remark
from orchestrator.tables.recommendation import sentence
from orchestrator.tables.terminal import MOST_FURTHER, show
from orchestrator.text.table import TextTable
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
CALM = replace(RECOMMENDATION, headline=demo.use("8×128 sqrt"), commands=("python -m orchestrator sweep=demo",))


def shown(width: int, terminal: bool = True, evil: str = "", found: Recommendation = RECOMMENDATION) -> str:
    cells = collect(demo.records(evil=evil), scaling="weak", reference_batch_size=32)[1]
    file = io.StringIO()
    show(cells, found, Console(file=file, width=width, force_terminal=terminal, highlight=False), FURTHER)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = _ESCAPE.sub("", shown(width)).splitlines()
    command = [line for line in lines if line.lstrip().startswith("python ")]
    assert max(len(line) for line in lines if line not in command) <= width
    assert sum("(baseline)" in line for line in lines) == 9 and "1.73× [1.65, 1.81]" in "".join(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_golden_end_of_a_sweep(width: int, golden: Callable[[str, str], None]) -> None:
    text = _ESCAPE.sub("", shown(width, found=CALM))
    golden(f"terminal/end_{width}.txt", "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def test_only_the_first_sentence_is_bold() -> None:
    first, second = remark("not_made"), remark("is_baseline")
    found = replace(RECOMMENDATION, headline=first, details=(second,))
    assert f"\x1b[1m{sentence(first)}\x1b[0m {sentence(second)}" in shown(200, found=found)


def test_empty_lists_have_no_title() -> None:
    assert "Why:" in shown(100) and "Why:" not in shown(100, found=replace(RECOMMENDATION, reasons=()))


@pytest.mark.parametrize(
    ("rows", "columns", "printed"),
    [(4, 2, True), (MOST_FURTHER[0] + 1, 2, False), (4, MOST_FURTHER[1] + 1, False)],
)
def test_large_further_tables_are_only_named(rows: int, columns: int, printed: bool) -> None:
    cells = collect(demo.records(), scaling="weak", reference_batch_size=32)[1]
    frame = pd.DataFrame([{f"c{column}": f"row {row}" for column in range(columns)} for row in range(rows)])
    table = TextTable(name="scaling", title="Scaling laws", about=(), frame=frame)
    file = io.StringIO()
    show(cells, None, Console(file=file, width=80, force_terminal=True, highlight=False), [table])
    text = _ESCAPE.sub("", file.getvalue())
    assert ("row 3" in text, "tables/scaling.md" in text) == (printed, not printed)


def test_only_terminals_get_colours() -> None:
    assert "\x1b[" in shown(100) and "\x1b[" not in shown(100, terminal=False)


def test_hostile_strings_neither_colour_nor_move_the_cursor() -> None:
    text = shown(120, terminal=False, evil="[bold red]x[/] \x1b[2J\x07")
    assert "\x1b" not in text and "\x07" not in text and "[bold red]x[/]" in text.replace("\n", "")
