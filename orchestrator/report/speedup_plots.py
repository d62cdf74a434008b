"""The report's charts of scaling: throughput by GPUs at each batch, and where it is lost.

All draw the rows of `cell_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from orchestrator.analysis.scaling_loss import LOST, LOST_TO, largest_loss, words_of
from orchestrator.decision.eligibility import speeds_known
from orchestrator.decision.recommendation import Recommendation
from orchestrator.report import plot as vega
from orchestrator.report.plot import Plot, Spec
from orchestrator.tables.speedup import one_process
from orchestrator.text import numbers
from orchestrator.text.cell_labels import Row, cell_label, varying


def _is_compared(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether it is no baseline, which is 1 by definition."""
    return cells["cell_id"] != cells["baseline_cell_id"]


def speedup(cells: pd.DataFrame, rows: Sequence[Row]) -> list[Plot]:
    """Return the chart of the throughput over that of the fewest GPUs at the same batch, beside the ideal.

    If the compared cells differ in further axes, the first chart has a line of points for each of their combinations.
    The second one, for three or more numbers of GPUs, has a panel for each.
    """
    gpus = vega.word("gpus", cells)
    known = cells[cells["speedup"].notna()]
    # The reason stands in the page, so that a missing chart is no riddle.
    absent = ""
    if known.empty:
        absent = "No two cells can be compared: no throughput was reported, or no cell is ok."
    elif not _is_compared(known).any():
        absent = f"All cells that are ok have the same number of {gpus}."
    plot = Plot(
        name="speedup",
        title=f"Scaling to more {gpus}",
        about=f"Throughput as a multiple of that of the fewest {gpus}, at the same {vega.fixed_batch(cells)}"
        f" ({cells['scaling'].iloc[0]} scaling). Dashed: the ideal, in proportion to the {gpus}, of which percentages"
        f" are shares. {vega.ABOUT_INTERVALS}",
        absent=absent,
    )
    if plot.absent:
        return [plot]
    is_one_step = known["gpus"].nunique() <= 2
    layers = _one_step(known) if is_one_step else _several_steps(known)
    if len({row["panel"] for row in rows if row["compared"] and not math.isnan(row["speedup"])}) == 1:
        # So low that its axis is on the first screen.
        height: Any = {"step": min(34, 200 // known["device_batch_size"].nunique())} if is_one_step else 180
        spec: Spec = {"transform": _ONE_RATE, "width": 400, "height": height, "layer": layers}
        return [replace(plot, spec=spec, remarks=one_process(cells))]
    lines = {"transform": [*_ONE_RATE, *_MOST_LINES], "width": 560, "height": {"step": 24}}
    combined = replace(plot, name="combinations", spec={**lines, "layer": _combinations(known)})
    if is_one_step:
        return [replace(combined, remarks=one_process(cells))]
    panels = vega.in_panels(layers, _ONE_RATE, field="panel")
    return [combined, replace(plot, title=f"{plot.title}, in panels", spec=panels, remarks=one_process(cells))]


_ONE_RATE: Sequence[Spec] = (
    {"filter": "isValid(datum.speedup)"},
    {
        "window": [{"op": "row_number", "as": "place_at_rate"}],
        "sort": [{"field": "rate_rank"}, {"field": "order"}],
        "groupby": ["panel", "gpus", "fixed_batch"],
    },
    {"filter": "datum.place_at_rate === 1"},
    {"calculate": "datum.compared ? 1 : 0", "as": "is_compared"},
    {"joinaggregate": [{"op": "max", "field": "is_compared", "as": "has_compared"}], "groupby": ["panel"]},
    {"filter": "datum.has_compared === 1"},
)
"""Keeps one cell of those that differ in the learning rate alone, and the panels with a compared cell."""

_MOST_LINES: Sequence[Spec] = (
    {"filter": "datum.compared"},
    {"window": [{"op": "dense_rank", "as": "panel_rank"}], "sort": [{"field": "panel_order"}]},
    {"filter": f"datum.panel_rank <= {vega.MOST_BARS}"},
)
"""Keeps the panels nearest the chosen cell."""


def _one_step(known: pd.DataFrame) -> list[Spec]:
    """Return the layers with a line of points for each batch; its figures stand at the right edge."""
    # Room for the labels right of the largest value; no line crosses them there.
    x = _scaling(known, room=1.3)
    place = {"x": x, "y": vega.category("fixed_batch", vega.fixed_batch(known), axis={"grid": False})}
    edge = {**place, "x": {"datum": x["scale"]["domain"][1], "type": "quantitative", "scale": x["scale"]}}
    texts = vega.mark("text", {**edge, "text": {"field": "label"}}, where=_DRAWN, align="right", dy=-8, clip=False)
    label = "format(datum.speedup, '.2f') + '× (' + format(datum.efficiency, '.0%') + ')'"
    # All points have the larger number of GPUs: a legend would have one entry.
    points = _points(place, {"color": {**vega.coloured_gpus(known), "legend": None}})
    return [*points, {**texts, "transform": [*texts["transform"], {"calculate": label, "as": "label"}]}]


def _combinations(known: pd.DataFrame) -> list[Spec]:
    """Return the layers with a line of points for each panel, the one with the largest value first."""
    best_first = {"field": "speedup", "op": "max", "order": "descending"}
    y = {"field": "panel", "type": "nominal", "title": None, "sort": best_first, "axis": {"grid": True}}
    look = {"color": vega.category("fixed_batch", vega.fixed_batch(known))}
    if known.loc[_is_compared(known), "gpus"].nunique() > 1:
        look["shape"] = vega.category("gpus", vega.word("gpus", known))
    return _points({"x": _scaling(known, room=1.05), "y": y}, look)


_DRAWN = "isValid(datum.speedup) && datum.compared"


def _scaling(known: pd.DataFrame, room: float) -> dict[str, Any]:
    """Return the encoding of the scaling, up to `room` times the largest value or ideal."""
    most = max(float((known["speedup"] / known["efficiency"]).max()), float(known["speedup"].max()))
    return {**vega.quantity("speedup", "scaling", domain=[0, room * most], nice=False), "axis": {"tickCount": 4}}


def _points(place: Spec, look: Spec) -> list[Spec]:
    """Return the layers with the points, their intervals, the ideals, and the baseline at 1."""
    shown = {name: value for name, value in vega.POINT.items() if name not in vega.FADED}
    return [
        vega.mark("rule", {"x": {"datum": 1}}, opacity=0.5),
        vega.mark("rule", {"x": {**place["x"], "field": "ideal"}}, where=_DRAWN, strokeDash=[5, 4], color=vega.GREY),
        *vega.interval("x", {**place, **look}, where=_DRAWN, strokeWidth=3),
        vega.mark("point", {**place, **look, **shown}, where=_DRAWN, size=70, filled=True, opacity=1),
    ]


def _several_steps(known: pd.DataFrame) -> list[Spec]:
    """Return the layers for three or more numbers of GPUs: a line for each batch, and the ideal."""
    counts = list(known["gpus"].unique())
    # The ideal is a straight line only if both axes are logarithmic.
    scale: dict[str, Any] = {"type": "log", "base": 2, "nice": False}
    ideals = known["speedup"] / known["efficiency"]
    # A point on an edge would be cut.
    scale["domain"] = [min(1.0, known["speedup"].min()) / 1.15, max(ideals.max(), known["speedup"].max()) * 1.15]
    y = {**vega.quantity("speedup", "scaling", **scale), "axis": {"format": "~r", "tickCount": 5}}
    place = {"x": vega.doubling("gpus", vega.word("gpus", known), counts), "y": y}
    look = {"color": vega.category("fixed_batch", vega.fixed_batch(known))}
    drawn = "isValid(datum.speedup)"
    lines = {"groupby": ["panel", "fixed_batch"]}
    # The efficiency stands at the end of each line, that is at its most GPUs, unless the line above ends as close as
    # the height of its text, of which a panel has room for 18.
    text_height = (scale["domain"][1] / scale["domain"][0]) ** (1 / 18)
    at_end: list[Spec] = [
        {"filter": f"{drawn} && datum.compared"},
        {"joinaggregate": [{"op": "max", "field": "gpus", "as": "most_gpus"}], **lines},
        {"filter": "datum.gpus === datum.most_gpus"},
        {
            "window": [{"op": "lag", "field": "speedup", "as": "above"}],
            "sort": [{"field": "speedup", "order": "descending"}],
            "groupby": ["panel"],
        },
        {"filter": f"!isValid(datum.above) || datum.above > {text_height:.4g} * datum.speedup"},
        {"calculate": "format(datum.efficiency, '.0%')", "as": "label"},
    ]
    ideal = {**place, "y": {**y, "field": "ideal", "aggregate": "max"}}
    # A cell with the fewest GPUs may stand in another panel, because its strategy is another one.
    fewest = [
        {"op": "min", "field": "is_compared", "as": "all_compared"},
        {"op": "min", "field": "gpus", "as": "fewest"},
    ]
    from_baseline = [
        {"filter": drawn},
        {"joinaggregate": fewest, **lines},
        {"filter": "datum.all_compared === 1 && datum.gpus === datum.fewest"},
        {"calculate": "datum.gpus / datum.ideal", "as": "fewer"},
        {"calculate": "1", "as": "one"},
    ]
    start = {**place, **look, "x": {**place["x"], "field": "fewer"}, "x2": {"field": "gpus"}}
    start |= {"y": {**y, "field": "one"}, "y2": {"field": "speedup"}}
    points = vega.mark("point", {**place, **look, **vega.POINT}, where=drawn, size=55, filled=True)
    texts = {**place, **look, "text": {"field": "label"}}
    return [
        vega.mark("line", ideal, where=drawn, strokeDash=[5, 4], color=vega.GREY),
        vega.band({**place, **look}, where=drawn),
        vega.mark("line", {**place, **look, **vega.FADED}, where=drawn),
        {**vega.mark("rule", {**start, **vega.FADED}, strokeWidth=1.6), "transform": from_baseline},
        {**points, "params": [vega.ZOOM, vega.picked("fixed_batch")]},
        {**vega.mark("text", texts, align="left", dx=7, fontSize=10, clip=False), "transform": at_end},
    ]


_KEPT = {"efficiency": "kept"} | LOST_TO
"""Parts of a bar of `why_not_linear`: the fields and their names."""


def why_not_linear(cells: pd.DataFrame) -> Plot:
    """Return the chart with one bar per cell on several GPUs: the efficiency it keeps, and what takes the rest."""
    gpus, known = vega.word("gpus", cells), _with_losses(cells)
    plot = Plot(
        name="why_not_linear",
        title="Where scaling is lost",
        about=f"The share of ideal scaling that cells with several {gpus} keep, and where the rest goes. Cells with the"
        " same batch and values share a bar.",
        absent="" if len(known) else f"No cell with several {gpus} has valid timings and a breakdown of its steps.",
    )
    if plot.absent:
        return plot
    # One row for each cell becomes one row for each part of its bar.
    names = ", ".join(f"'{column}': '{text}'" for column, text in _KEPT.items())
    # Losses below 0 are not drawn, so the others may sum to more than what is lost: they are scaled to end at 100%.
    is_loss = "datum.column !== 'efficiency'"
    room = "max(0, 1 - datum.efficiency) / datum.lost"
    fold = [
        {"filter": "isValid(datum.lost_rest) && datum.speed_known"},
        # Rules may share a timing.
        {
            "window": [{"op": "row_number", "as": "place_in_bar"}],
            "sort": [{"field": "rate_rank"}, {"field": "order"}],
            "groupby": ["gpus", "fixed_batch", *_KEPT],
        },
        {"filter": "datum.place_in_bar === 1"},
        {"window": [{"op": "dense_rank", "as": "bar_rank"}], "sort": [{"field": "order"}]},
        {"filter": f"datum.bar_rank <= {vega.MOST_BARS}"},
        {"fold": list(_KEPT), "as": ["column", "share"]},
        {"calculate": f"{{{names}}}[datum.column]", "as": "part"},
        {"calculate": "datum.cell + '\\n' + datum.part + ': ' + format(datum.share, '.1%')", "as": "tip"},
        {"filter": "datum.share > 0"},
        {"calculate": f"{is_loss} ? datum.share : 0", "as": "loss"},
        {"joinaggregate": [{"op": "sum", "field": "loss", "as": "lost"}], "groupby": ["cell"]},
        {"calculate": f"{is_loss} ? datum.share * min(1, {room}) : min(1, datum.share)", "as": "share"},
    ]
    colour = {"field": "part", "type": "nominal", "title": None, "scale": {"domain": list(_KEPT.values())}}
    remarks = []
    n_bars = len(known.drop_duplicates(["gpus", "device_batch_size", *_KEPT]))
    if n_bars > vega.MOST_BARS:
        remarks.append(f"{vega.MOST_BARS} of {n_bars} bars are drawn: the filters choose others.")
    if (known[list(LOST)] < -0.02).any(axis=None):
        remarks.append(
            "Parts that took less time than in the baseline are negative and not drawn, and the other losses are scaled"
            " to 100%; summary.csv has all."
        )
    spec = {"transform": fold, **vega.bars("cell", "share", "share of ideal scaling", colour=colour, percent=True)}
    return replace(plot, spec=spec, remarks=remarks)


def _with_losses(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with a breakdown of what they lose whose timing, and that of their baseline, is valid."""
    return cells[cells["lost_rest"].notna() & speeds_known(cells)]


def largest(cells: pd.DataFrame, recommendation: Recommendation) -> str:
    """Return the largest loss of scaling with its remedy, of the recommended cell or else of the worst one."""
    known = _with_losses(cells)
    # Readers care about the cell that they will use.
    chosen = known[known["cell_id"] == recommendation.cell_id]
    rows = (chosen if len(chosen) else known.sort_values("efficiency")).to_dict("records")
    lost = largest_loss(rows[0]) if rows else None
    if not lost:
        return ""
    row = rows[0]
    share = f"{numbers.percent(row[lost])}% of ideal scaling"
    remedy = f"; remedy: {row['remedy'].partition(': ')[2] or row['remedy']}" if row.get("remedy") else ""
    return f"{words_of(lost, row, cells)}, {share} ({cell_label(row, varying(cells))}){remedy}"
