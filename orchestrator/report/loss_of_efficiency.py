"""Why not linear: the efficiency that each cell of several GPUs keeps, and what took the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from orchestrator.collection.scaling_loss import LOST, LOST_TO
from orchestrator.report.lines import number
from orchestrator.report.picture import BAR_LABEL, MOST_BARS, Axis, Bar, Picture
from orchestrator.text.figures import one_line
from orchestrator.text.rows import in_order, name, short_names, varying

_PARTS = {"efficiency": "kept"} | LOST_TO


def why_not_linear(cells: pd.DataFrame) -> Picture:
    """A bar a cell, from its efficiency up to 100%."""
    picture = Picture(
        name="why_not_linear",
        title="Where speed-up is lost",
        about="Why cells with several GPUs fall short of the ideal speed-up: the first part is the efficiency, the"
        " share that is left; the others show where a step takes longer than the baseline's.",
        x=Axis(label="share of an ideal speed-up", percent=True, lo=0),
        absent="Not measured: no cell with several GPUs has both an efficiency and a breakdown of its steps.",
    )
    if not set(LOST) <= set(cells.columns):
        return picture
    known = cells[cells["lost_rest"].notna()]
    if known.empty:
        return picture
    differing = varying(cells)
    rows = in_order(known, [*differing, "lr_rule", "device_batch_size", "gpus"])
    records = rows.to_dict("records")
    bars = [
        Bar(label=one_line(label, BAR_LABEL), parts=tuple(number(row[column]) for column in _PARTS))
        for row, label in zip(records, short_names(records[:MOST_BARS], differing), strict=False)
    ]
    undivided = known["lost_compute"].isna().any()
    gained = any(part < -0.02 for bar in bars for part in bar.parts if not math.isnan(part))
    remarks = [
        f"{MOST_BARS} of {len(records)} cells are drawn; the CSV file has all of them."
        if len(records) > MOST_BARS
        else "",
        f"Where steps are captured, {_PARTS['lost_rest']} is everything but waiting for data." if undivided else "",
        "Parts that took less time than in the baseline are negative: they are in the CSV file, but not drawn."
        if gained
        else "",
        *dict.fromkeys(f"{name(row, differing)}: {row['remedy']}." for row in records[:3] if row.get("remedy")),
    ]
    columns = [*differing, "gpus", "device_batch_size", "lr_rule", "cell_id", *_PARTS]
    data = rows[list(dict.fromkeys(columns))].assign(remedy=rows.get("remedy"))
    return replace(
        picture,
        legend=tuple(_PARTS.values()),
        bars=bars,
        remarks=[remark for remark in remarks if remark],
        data=data.to_dict("records"),  # type: ignore[arg-type]
    )
