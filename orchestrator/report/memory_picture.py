"""The picture of the memory that cells took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from orchestrator.report.axes import power_axis
from orchestrator.report.lines import Lines, with_lines, word
from orchestrator.report.picture import BAR_LABEL, MOST_BARS, Axis, Bar, Picture
from orchestrator.text.figures import one_line
from orchestrator.text.rows import Row, axis, in_order, varying

_WHOSE = "Peak memory of the fullest device {against}: the maximum over seeds and learning-rate rules."


def memory(cells: pd.DataFrame) -> Picture:
    """Against the batch, or a bar each where most groups of cells have only one; the largest over rules and seeds."""
    label = "peak memory [GB]"
    picture = Picture(
        name="memory",
        title="Memory",
        about=_WHOSE.format(against="by batch size"),
        absent="" if cells["peak_memory_gb"].notna().any() else "Not measured: no trial reported device memory.",
    )
    if picture.absent:
        return picture
    facets = varying(cells)
    groups = cells.groupby([*facets, "gpus", "device_batch_size"], sort=False, dropna=False)
    largest = groups.agg(peak_memory_gb=("peak_memory_gb", "max"), n_ok=("n_ok", "sum")).reset_index()
    if "device" not in facets:
        largest["device"] = next(iter(cells["device"].dropna()), "")  # none where nothing ran
    known = largest[largest["peak_memory_gb"].notna()]
    batches = known.groupby([*facets, "gpus"], dropna=False)["device_batch_size"].nunique()
    if (batches < 2).mean() > 0.5:
        bars = replace(picture, about=_WHOSE.format(against="of each cell"), x=Axis(label=label, lo=0))
        shortest_first = sorted(facets, key=lambda column: known[column].astype(str).str.len().max())
        return _with_bars(bars, known, ["gpus", "device_batch_size", *shortest_first])
    drawn = replace(
        picture,
        x=power_axis(word("device_batch_size", cells), cells["device_batch_size"].tolist()),
        y=Axis(label=label, lo=0, hi=1.08 * float(cells["peak_memory_gb"].max())),
    )
    lines = Lines(x="device_batch_size", y="peak_memory_gb", colour="gpus", facets=facets, tooltip=_tooltip)
    return with_lines(drawn, largest, lines)


def _with_bars(picture: Picture, known: pd.DataFrame, columns: list[str]) -> Picture:
    """A bar for each row, named by what tells it from the others."""
    rows = in_order(known, [*columns[2:], *columns[:2]])
    differing = [column for column in columns if rows[column].astype(str).nunique() > 1] or ["gpus"]
    records = rows.to_dict("records")
    names = [", ".join(f"{axis(column)}={_value(row[column])}" for column in differing) for row in records[:MOST_BARS]]
    more = len(records) > MOST_BARS
    return replace(
        picture,
        legend=(picture.x.label,),
        bars=[
            Bar(label=one_line(each, BAR_LABEL), parts=(float(row["peak_memory_gb"]),))
            for each, row in zip(names, records, strict=False)
        ],
        remarks=[f"{MOST_BARS} of {len(records)} are drawn; the CSV file has all of them."] if more else [],
        data=rows[[*columns, "peak_memory_gb", "n_ok"]].to_dict("records"),  # type: ignore[arg-type]
    )


def _value(value: Any) -> str:
    return "null" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)


def _tooltip(row: Row) -> str:
    return f"gpus={row['gpus']:g}, device_batch_size={row['device_batch_size']}: {row['peak_memory_gb']:.3g} GB"
