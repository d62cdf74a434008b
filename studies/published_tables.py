"""Tables of published figures beside the measured ones.

    python -m studies.published_tables RESULTS

writes RESULTS/tables/published.md and prints it. RESULTS is the results folder of a sweep `published/…` (or a folder
under docs/results/published) with `summary.csv` and `journal.jsonl`. The published figures are in
studies/published/<experiment>.yaml.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from orchestrator.store.journal import replay
from orchestrator.store.record import Kind
from orchestrator.store.results_folder import JOURNAL
from orchestrator.text import numbers
from orchestrator.text.cell_labels import Row, axis, head, status, varying
from orchestrator.text.text_tables import markdown
from sweeps.status import Status

TABLES = Path(__file__).parent / "published"
SWEEPS = "published/"
"""Prefix of these sweeps' names."""

NO_COUNTERPART = "has no counterpart here"
NOT_MEASURED = "not measured"

RELATIVE = ("speedup", "efficiency")
"""Columns that are 1 for the baseline cell by definition."""

Figure = float | list[float]
"""A number, or the smallest and largest of several."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the published table, and the matching column of `summary.csv`."""

    title: str
    """Heading, with the unit."""
    column: str
    factor: float = 1.0
    """The measured figure is multiplied by this …"""
    times: str | None = None
    """… and by this further column of `summary.csv`."""
    epochs: int | None = None
    """The published figure is for this many epochs; a figure after fewer is marked as such."""


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A row of the published table."""

    label: str
    cell: Mapping[str, Any] | None = None
    """The measured cells to compare with, as {axis: value}; None if nothing here is comparable."""
    status: str = "ok"
    """`ok`, `oom`, …"""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """{column: figure}"""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published table."""

    source: str
    columns: Mapping[str, Column]
    rows: Sequence[PublishedRow]

    @staticmethod
    def of(config: Mapping[str, Any]) -> Published:
        """Build from a file's content. Raises TypeError for an unknown or missing key."""
        columns = {name: Column(**column) for name, column in config["columns"].items()}
        return Published(source=config["source"], columns=columns, rows=[PublishedRow(**row) for row in config["rows"]])


def experiment(results: Path) -> tuple[str, str]:
    """Return the published sweep that a results folder is of, and its scale, by the last command in its journal."""
    sweeps = [record for record in replay(results / JOURNAL).records if record.kind == Kind.SWEEP]
    chosen = dict(argument.split("=", 1) for argument in sweeps[-1].value["driver"]["arguments"])
    sweep = chosen["sweep"].removeprefix(SWEEPS)
    return sweep, chosen.get(f"sweep/{SWEEPS}{sweep}", "full")


def measured_cells(summary: Path) -> pd.DataFrame:
    """Read `summary.csv`; only an empty field is missing, not a text such as `none`."""
    return pd.read_csv(summary, keep_default_na=False, na_values=[""])


def published_markdown(published: Published, cells: pd.DataFrame) -> str:
    """Return a row for each published row and measured cell; brackets hold 95% intervals."""
    rows = [row for published_row in published.rows for row in _rows(published_row, published.columns, cells)]
    lines = [
        *head(cells, "Published and measured"),
        f"Published: {numbers.plain(published.source)}.",
        "Each figure as published, then as measured here."
        " † This timing is not valid; the note in summary.csv says why.",
        "",
        markdown(pd.DataFrame(rows).fillna("")),
        "",
    ]
    return "\n".join(lines)


def _rows(row: PublishedRow, columns: Mapping[str, Column], cells: pd.DataFrame) -> list[dict[str, str]]:
    """Return a row for each measured cell, or one that says why there is none; the first has the published figures."""
    if row.cell is None:
        return [_row(row, columns, NO_COUNTERPART, {})]
    chosen = cells[_matches(cells, row.cell)]
    if chosen.empty:
        return [_row(row, columns, NOT_MEASURED, {})]
    differing = [*varying(chosen), *(["lr_rule"] if chosen["lr_rule"].nunique() > 1 else [])]
    lines = []
    for number, cell in enumerate(chosen.to_dict("records")):
        seeds = f"{cell['n_ok']} seed{'s' if cell['n_ok'] != 1 else ''}"
        names = [f"{axis(column)}={numbers.config_value(cell[column])}" for column in differing]
        name = ", ".join([*names, status(cell) if cell["status"] != Status.OK.value else seeds])
        measured = {key: _measured(cell, column) for key, column in columns.items()}
        lines.append(_row(None if number else row, columns, name, measured))
    return lines


def _row(
    row: PublishedRow | None, columns: Mapping[str, Column], cell: str, measured: Mapping[str, str]
) -> dict[str, str]:
    ended = "" if row is None or row.status == Status.OK.value else row.status
    line = {"published": row.label if row else "", "ended": ended, "measured at": cell}
    for key, column in columns.items():
        figure = row.figures.get(key, []) if row else []
        ends = figure if isinstance(figure, list) else [figure]
        line[f"{column.title}: published"] = "–".join(map(numbers.number, ends))
        line[f"{column.title}: measured"] = measured.get(key, "")
    return line


def _matches(cells: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.Series[bool]:
    """Return which cells have these values on these axes; a missing axis is null in every cell."""
    matching = pd.Series(True, index=cells.index)
    for name, value in wanted.items():
        column = f"axes.{name}" if f"axes.{name}" in cells else name
        sought = json.dumps(value) if isinstance(value, (list, Mapping)) else value
        if column not in cells:
            matching &= value is None
        else:
            matching &= cells[column].isna() if value is None else cells[column] == sought
    return matching


def _measured(cell: Row, column: Column) -> str:
    if column.column in RELATIVE and cell["cell_id"] == cell["baseline_cell_id"]:
        return "1 (baseline)"
    factor = column.factor * (cell[column.times] if column.times else 1)
    ends = [cell.get(f"{column.column}{end}", math.nan) for end in ("", "_lo", "_hi")]
    point, lo, hi = (factor * float("nan" if pd.isna(value) else value) for value in ends)
    text = numbers.with_interval(point, lo, hi, numbers.number)
    epochs = cell.get("epochs", math.nan)
    if text and column.epochs and not epochs >= column.epochs:
        if epochs < 1:
            return ""  # a few steps of an epoch say nothing about the whole training
        text += f" after {epochs:.4g} of {column.epochs} epochs"
    return f"{text} †" if text and cell["timing_valid"] is False and column.column != "accuracy" else text


def write(results: Path, summary: Path) -> Path:
    """Write `published.md` beside `summary`, for the experiment that the folder's journal names; return its path."""
    sweep, _ = experiment(results)
    published = Published.of(yaml.safe_load((TABLES / f"{sweep}.yaml").read_text()))
    path = summary.with_name("published.md")
    path.write_text(published_markdown(published, measured_cells(summary)))
    return path


def main() -> None:
    """Write the table of one results folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS")
    results = parser.parse_args().results
    inside = results / "tables" / "summary.csv"
    print(write(results, inside if inside.exists() else results / "summary.csv").read_text())


if __name__ == "__main__":
    main()
