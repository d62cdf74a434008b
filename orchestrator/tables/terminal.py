"""Prints the results at the end of a sweep: the recommendation, then tables that fit the terminal's width.

Rich omits colours if the output is not a terminal, or if NO_COLOR is set; no meaning depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.decision.recommendation import Recommendation
from orchestrator.tables.accuracy import accuracy_frame, only_validation, validation_frame, why_none
from orchestrator.tables.recommendation import gpu_count_table
from orchestrator.tables.speedup import speedup_frame
from orchestrator.text.figures import counted
from orchestrator.text.rows import cell_label, head, not_ok, varying
from orchestrator.text.table import TextTable
from sweeps.status import Status

MOST_ROWS = 60
"""The most rows of a table that are printed; the files have all."""

MOST_FURTHER = 12
"""The most rows of a table that the user did not ask for."""

_DISPENSABLE = ("epoch [s]", "global batch", "to target", "lost most to", "samples/s")
"""Columns of the speed-up table in the order in which a narrow terminal omits them; summary.csv has all."""

_NUMBERS = ("device batch", "gpus", "global batch", "samples/s", "speed-up", "efficiency", "to target", "epoch [s]")
_MOST_NOTES = 10
_SIGNS = (
    "▼ worse, ▲ better than at the reference batch (the 95% interval of the difference excludes 0);"
    " † the timing is not valid."
)


def show(
    cells: pd.DataFrame, recommendation: Recommendation | None, console: Console, further: Sequence[TextTable] = ()
) -> None:
    """Print the recommendation, claims, the speed-up and accuracy tables, others that fit, and what is not ok.

    The recommendation's sentence is repeated at the end: by then its first occurrence has left most screens.
    """
    if recommendation:
        _show_recommendation(recommendation, console)
    for table in further:
        if table.name == "claims":
            _show_table(table.title, table.frame, ("expression", "about"), console, file="claims.md")
    for line in head(cells, "")[2:]:
        console.print(line, markup=False, style="dim")
    speedup = speedup_frame(cells)
    _show_table("Speed-up", speedup.drop(columns=["note", "status"], errors="ignore"), _DISPENSABLE, console)
    if absent := why_none(cells):
        console.print(absent, style="dim", markup=False)
    elif only_validation(cells):
        _show_table("val_accuracy; none on a test set was reported", validation_frame(cells), (), console)
    else:
        _show_table("Accuracy on the test set", accuracy_frame(cells), (), console)
    console.print(_SIGNS, style="dim")
    console.print()
    for table in further:
        if table.name != "claims":
            _show_further(table, console)
    _show_notes(cells, console)
    if recommendation:
        console.print(Text(_plain(recommendation.lead), "bold"))
        console.print()


def _show_recommendation(found: Recommendation, console: Console) -> None:
    console.print(
        Panel(
            Text.assemble((_plain(found.lead), "bold"), *(f" {_plain(each)}" for each in found.behind_lead)),
            title="Recommendation (provisional)" if found.provisional and found.cell_id else found.title,
            title_align="left",
            border_style="yellow" if found.provisional else "green",
        )
    )
    if counts := gpu_count_table(found):
        console.print(_table(counts.title, counts.frame))
    for title, lines in (("Why:", found.reasons), ("What would change it:", found.sensitivity)):
        if lines:
            console.print(Text(title))
        for line in lines:
            console.print(_item("•", line))
    if found.more_seeds:
        console.print(_item("•", "Further seeds would make the choice more certain:"))
    for more in found.more_seeds:
        console.print(Text(_plain(f"    - {more.name}: {counted(more.seeds, 'more seed', 'more seeds')}")))
    for command in found.commands:
        console.print(Text(_plain(f"    {command}")), soft_wrap=True)
    console.print()


def _show_further(table: TextTable, console: Console) -> None:
    """Where there is room for it; else where it is, because what was asked for stands above it."""
    if len(table.frame) <= MOST_FURTHER and _fits(_table(table.title, table.frame), console):
        _show_table(table.title, table.frame, (), console, file=f"{table.name}.md")
    else:
        console.print(f"{table.title}: {len(table.frame)} rows in tables/{table.name}.md", style="dim", markup=False)
        console.print()


def _item(mark: str, text: str, style: str = "") -> Table:
    """A list item whose further lines are indented to its first word."""
    item = Table.grid(padding=(0, 1, 0, 0))
    item.add_column(width=3, justify="right")
    item.add_column(overflow="fold")
    item.add_row(mark, Text(_plain(text), style=style))
    return item


def _show_table(
    title: str, frame: pd.DataFrame, dispensable: Sequence[str], console: Console, *, file: str = "summary.csv"
) -> None:
    """The table with as many columns as fit; if it is still too wide, without the brackets of its intervals."""
    left_out: list[str] = []
    table = _table(title, frame)
    for column in (each for each in dispensable if each in frame):
        if _fits(table, console):
            break
        frame = frame.drop(columns=column)
        left_out.append(column)
        table = _table(title, frame)
    console.print(table)
    more = len(frame) - MOST_ROWS
    notes = [f"{more} more rows" if more > 0 else "", ", ".join(left_out)]
    if any(notes):
        console.print(f"  Also in tables/{file}: {'; '.join(filter(None, notes))}.", style="dim", markup=False)
    console.print()


def _fits(table: Table, console: Console) -> bool:
    return Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width


def _table(title: str, frame: pd.DataFrame) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in frame.columns:
        is_number = column in _NUMBERS
        table.add_column(
            Text(_plain(str(column))), justify="right" if is_number else "left", overflow="fold", no_wrap=is_number
        )
    previous: list[str] = []
    for row in frame.head(MOST_ROWS).itertuples(index=False, name=None):
        cells = [_plain(str(value)) for value in row]
        if previous and cells[0] != previous[0]:
            table.add_section()
        table.add_row(*(_cell(text) for text in cells))
        previous = cells
    return table


def _cell(text: str) -> Text:
    if "▼" in text or "†" in text:
        return Text(text, style="yellow")
    return Text(text, style="green" if "▲" in text else "")


def _plain(text: str) -> str:
    """The text without control sequences."""
    return "".join(char if char.isprintable() else " " for char in text)


def _show_notes(cells: pd.DataFrame, console: Console) -> None:
    differing = varying(cells)
    ok = cells[cells["status"] == Status.OK.value]
    noted = [f"{cell_label(row, differing)}: {row['note']}" for row in ok[ok["note"] != ""].to_dict("records")]
    for title, lines, style in (("Not ok:", not_ok(cells, differing), "red"), ("Notes:", noted, "")):
        if lines:
            console.print(title, style=f"bold {style}".strip())
            for line in lines[:_MOST_NOTES]:
                console.print(_item("-", line, style))
            if len(lines) > _MOST_NOTES:
                console.print(f"  … and {len(lines) - _MOST_NOTES} more in tables/summary.csv", style="dim")
            console.print()
