"""Prints the end of a sweep on a terminal: the recommendation, then the tables, then what needs attention.

Rich fits everything to the terminal's width, and omits colours if NO_COLOR is set. No meaning depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.decision.recommendation import Recommendation
from orchestrator.tables.accuracy import accuracy_frame, only_validation, validation_frame, why_none
from orchestrator.tables.recommendation import RecommendationText, in_sentences
from orchestrator.tables.speedup import speedup_frame
from orchestrator.text.figures import counted
from orchestrator.text.rows import cell_label, head, not_ok, varying
from orchestrator.text.table import TextTable
from sweeps.status import Status

MOST_ROWS = 60
"""The most rows of a table that are printed; the files have all."""

MOST_FURTHER = (12, 6)
"""The most rows and columns of a further table that is printed; larger ones are only named."""

_SPEEDUP = ("cell", "samples/s", "speed-up", "efficiency", "lost most to", "to target")
"""Columns of the speed-up table that are printed, as far as they have values; summary.csv has all."""

_NUMBERS = ("samples/s", "speed-up", "efficiency", "to target")
_MOST_NOTES = 10
_SIGNS = (
    "▼ worse, ▲ better than at the reference batch (the 95% interval of the difference excludes 0)."
    " † The timing is not valid."
)


def show(
    cells: pd.DataFrame, recommendation: Recommendation | None, console: Console, further: Sequence[TextTable] = ()
) -> None:
    """Print the recommendation, claims, the speed-up and accuracy tables, further tables, failures and notes.

    The recommendation's first sentence is repeated at the end, because its first occurrence has scrolled away by then.
    """
    text = in_sentences(recommendation) if recommendation else None
    if text:
        _show_recommendation(text, console)
    for table in further:
        if table.name == "claims":
            _show_table(table.title, table.frame.drop(columns=["expression", "about"], errors="ignore"), console)
    for line in head(cells, "")[2:]:
        console.print(line, markup=False, style="dim")
    speedup = speedup_frame(cells)
    speedup = speedup[[column for column in _SPEEDUP if column in speedup]]
    if "samples/s" in speedup:  # without its interval, which is as wide as that of the speed-up
        speedup["samples/s"] = speedup["samples/s"].str.replace(r" \[.*\]", "", regex=True)
    _show_table("Speed-up", speedup, console)
    if absent := why_none(cells):
        console.print(absent, style="dim", markup=False)
    elif only_validation(cells):
        _show_table("Validation accuracy; no trial reported a test accuracy", validation_frame(cells), console)
    else:
        _show_table("Accuracy on the test set", accuracy_frame(cells), console)
    console.print(_SIGNS, style="dim")
    console.print()
    for table in further:
        if table.name == "claims":
            continue
        if all(size <= most for size, most in zip(table.frame.shape, MOST_FURTHER, strict=True)):
            _show_table(table.title, table.frame, console)
        else:
            rows = counted(len(table.frame), "row", "rows")
            console.print(f"{table.title}: {rows} in tables/{table.name}.md\n", style="dim", markup=False)
    differing = varying(cells)
    noted = cells[(cells["status"] == Status.OK.value) & (cells["note"] != "")].to_dict("records")
    notes = [f"{cell_label(row, differing)}: {row['note']}" for row in noted]
    for title, lines, style in (("Not ok:", not_ok(cells, differing), "red"), ("Notes:", notes, "")):
        if lines:
            more = [f"{len(lines) - _MOST_NOTES} more in tables/summary.csv"] if len(lines) > _MOST_NOTES else []
            console.print(title, style=f"bold {style}".strip())
            console.print(_bullets([*lines[:_MOST_NOTES], *more], style))
            console.print()
    if text:
        console.print(Text(_plain(text.lead), "bold"))
        console.print()


def _show_recommendation(found: RecommendationText, console: Console) -> None:
    console.print(
        Panel(
            Text.assemble((_plain(found.lead), "bold"), *(f" {_plain(each)}" for each in found.behind_lead)),
            title="Recommendation (provisional)" if found.provisional and found.cell_id else found.title,
            title_align="left",
            border_style="yellow" if found.provisional else "green",
        )
    )
    if counts := found.gpu_counts:
        _show_table(counts.title, counts.frame, console)
    seeds = [f"{more.name}: {counted(more.seeds, 'more seed', 'more seeds')}" for more in found.more_seeds]
    for title, lines in (
        ("Why:", found.reasons),
        ("What would change it:", found.sensitivity),
        ("Further seeds would make the choice more certain:", seeds),
    ):
        if lines:
            console.print(title)
            console.print(_bullets(lines))
    for command in found.commands:
        console.print(Text(_plain(f"    {command}")), soft_wrap=True)  # one line, so that it can be copied
    console.print()


def _show_table(title: str, frame: pd.DataFrame, console: Console) -> None:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in map(str, frame.columns):
        number = column in _NUMBERS
        table.add_column(Text(_plain(column)), justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in frame.head(MOST_ROWS).itertuples(index=False, name=None):
        texts = [_plain(str(value)) for value in row]
        colours = ["yellow" if {"▼", "†"} & set(text) else "green" if "▲" in text else "" for text in texts]
        table.add_row(*map(Text, texts, colours))
    console.print(table)
    if len(frame) > MOST_ROWS:
        console.print(f"{len(frame) - MOST_ROWS} more rows in the folder tables\n", style="dim")


def _bullets(lines: Sequence[str], style: str = "") -> Table:
    """Return a list whose wrapped lines are indented."""
    bullets = Table.grid(padding=(0, 1, 0, 0))
    bullets.add_column(width=3, justify="right")
    bullets.add_column(overflow="fold")
    for line in lines:
        bullets.add_row("•", Text(_plain(line), style=style))
    return bullets


def _plain(text: str) -> str:
    """Return the text without control sequences."""
    return "".join(char if char.isprintable() else " " for char in text)
