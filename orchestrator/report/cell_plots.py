"""The charts of cells: time against the metric of choice, accuracy by batch, time to target, and memory.

All draw the rows of `cell_rows`. A chart that cannot be drawn has its reason in `absent`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.decision.recommendation import Recommendation
from orchestrator.report import plot as vega
from orchestrator.report.plot import Plot, Spec
from orchestrator.report.speedup_plots import speedup, why_not_linear
from orchestrator.statistics import margins
from orchestrator.tables.accuracy import shown_column, why_none
from orchestrator.tables.candidates import Candidates
from orchestrator.text import numbers
from orchestrator.text.cell_labels import Row

_FEW = 60
"""With more cells than this, only the Pareto front's intervals are drawn."""

_FEWEST_SHOWN = 4
"""How many of the fastest cells the chart's range includes if the baseline is chosen."""

_MOST_SHAPES = 8
"""With more rules than this, points have no shapes, which could not be told apart."""


def cell_plots(cells: pd.DataFrame, rows: Sequence[Row], recommendation: Recommendation) -> list[Plot]:
    """Return the charts of cells, in the order of the report; `rows` are those of `cell_rows`."""
    return [
        trade_off(cells, pd.DataFrame(list(rows)), recommendation),
        *speedup(cells, rows),
        accuracy(cells, recommendation.terms.metric),
        time_to_target(cells),
        why_not_linear(cells),
        memory(cells),
    ]


def trade_off(cells: pd.DataFrame, rows: pd.DataFrame, recommendation: Recommendation) -> Plot:
    """Return the chart of time against the metric of choice, with the Pareto front and the margin."""
    metric = recommendation.terms.metric
    known = rows[rows["deciding_s"].notna() & rows["metric"].notna()]
    plot = Plot(
        name="trade_off",
        title=f"Time against {metric.label}",
        about=f"Each point is a cell; the best are at the {'top' if metric.higher_is_better else 'bottom'} left."
        " Line: the Pareto front. Grey: within the margin of the baseline. Bars: 95% intervals. Faint points: timing"
        " not valid. Points on an edge are beyond it.",
        absent="" if len(known) else f"No cell has both a time and a {metric.label}.",
    )
    if plot.absent:
        return plot
    margin = recommendation.terms.report.margin
    # NaN without a baseline, or if it has no metric.
    baseline = recommendation.baseline.value(metric.name) if recommendation.baseline else math.nan
    has_choice = recommendation.chosen is not None and not math.isnan(baseline)
    table = Candidates.of(recommendation)
    is_named = known["cell"].isin([vega.label_of(cell.name) for cell in table.cells] if table else [])
    is_near = metric.sign * (known["metric"] - baseline) >= -margins.PLOTTED * margin
    shown = _competing(known, is_named, is_near) if has_choice else known
    place = _trade_off_axes(shown, recommendation)
    coloured = {**place, "color": vega.coloured_gpus(cells)}
    shapes = {"shape": vega.category("rule", vega.word("lr_rule", cells), sort=None, type="nominal")}
    points = {**coloured, **(shapes if 1 < known["rule"].nunique() <= _MOST_SHAPES else {}), **vega.POINT}
    is_drawn = "isValid(datum.deciding_s) && isValid(datum.metric)"
    # Many intervals hide the points.
    has_interval = is_drawn if len(known) <= _FEW else f"{is_drawn} && (datum.on_front || datum.role !== '')"
    tools = [vega.ZOOM, vega.picked("gpus")]
    layers = [
        *(_margin_band(place["y"], baseline, baseline - metric.sign * margin) if baseline == baseline else ()),
        *vega.interval("x", coloured, where=has_interval),
        *vega.interval("y", coloured, where=has_interval),
        vega.mark("line", place, where="datum.on_front", interpolate="step-after", color=vega.GREY),
        {**vega.mark("point", points, where=is_drawn, size=70, filled=True), "params": tools},
        vega.mark("point", place, where="test(/^(use|best)/, datum.role)", size=300, strokeWidth=2, color=vega.GREY),
        *_labels_of_named(place),
    ]
    return replace(plot, spec={"width": 560, "height": 260, "layer": layers})


def _trade_off_axes(shown: pd.DataFrame, recommendation: Recommendation) -> dict[str, Any]:
    """Return the axes of time and metric, which range over these cells; the others are drawn on their edges."""
    metric = recommendation.terms.metric
    measure = recommendation.measure if recommendation.measure.startswith("time") else "time"
    # So wide that the margin's line is in sight.
    least_span = margins.PLOTTED * recommendation.terms.report.margin
    domain = vega.clipped(shown["metric_lo"], shown["metric"], shown["metric_hi"], least_span)
    x = vega.spanning("deciding_s", f"{measure} [s]", shown["deciding_s"])
    seconds = [0.85 * shown["deciding_s"].min(), 1.1 * shown["deciding_s"].max()]
    return {
        "x": {**x, "scale": {"domain": seconds, **x["scale"], "nice": False, "clamp": True}},
        "y": vega.quantity("metric", metric.label, domain=domain, nice=False, clamp=True),
    }


def _labels_of_named(place: Mapping[str, Any]) -> list[Spec]:
    """Return the labels of the cells with a role: above their points, or to the right where the axis is near."""
    labels = {**place, "text": {"field": "label"}}
    least_s, most_s = place["x"]["scale"]["domain"]
    is_named, is_left = "datum.role !== ''", f"datum.deciding_s < {least_s + 0.2 * (most_s - least_s):.6g}"
    # A label beside the axis would cover its numbers.
    return [
        vega.mark("text", labels, where=f"{is_named} && !({is_left})", dy=-15, clip=False),
        vega.mark("text", labels, where=f"{is_named} && {is_left}", align="left", dx=14, dy=-9, clip=False),
    ]


def _competing(known: pd.DataFrame, is_named: pd.Series[bool], is_near: pd.Series[bool]) -> pd.DataFrame:
    """Return the cells of the table of candidates and those near them; the chart draws the others on its edges."""
    named, near = known[is_named], known[is_near]
    in_range = named if len(named) else near
    if named["deciding_s"].nunique() == 1:
        # A chosen baseline is the only named cell, and is compared with the fastest of the others.
        in_range = pd.concat([named, near.nsmallest(_FEWEST_SHOWN, "deciding_s")])
    competing = known[(is_named | is_near) & (known["deciding_s"] <= 1.1 * in_range["deciding_s"].max())]
    return competing if len(competing) else known


def _margin_band(y: Spec, baseline: float, level: float) -> list[Spec]:
    """Return the layers of the area within the margin, with its label."""
    # One row without fields: each mark is drawn once, not for each cell.
    once: Spec = {"data": {"values": [{}]}}
    ends = {"y": {"datum": level, "type": "quantitative", "scale": y["scale"]}, "y2": {"datum": baseline}}
    label = {"x": {"value": "width"}, "y": ends["y"], "text": {"value": "margin"}}
    return [
        {**once, **vega.mark("rect", ends, color=vega.GREY, opacity=0.2)},
        {**once, **vega.mark("rule", {"y": ends["y"]}, strokeDash=[5, 4])},
        # Outside, where it covers no point.
        {**once, **vega.mark("text", label, align="left", dx=4, clip=False)},
    ]


def accuracy(cells: pd.DataFrame, metric: Metric = VAL_ACCURACY) -> Plot:
    """Return the chart of the metric of choice by global batch, one line per rule; else of test accuracy."""
    is_known = metric.name in cells and cells[metric.name].notna().any()
    column = metric.name if is_known else shown_column(cells, metric)
    title = metric.label if is_known or column != "accuracy" else "test accuracy"
    plot = Plot(
        name="accuracy",
        title=f"{'Accuracy' if metric == VAL_ACCURACY else metric.label.capitalize()} by batch size",
        about=f"{title.capitalize()} by global batch: up to which batch each learning-rate rule works."
        f" {vega.ABOUT_INTERVALS}",
        absent=why_none(cells, metric),
    )
    if plot.absent:
        return plot
    # Two seeds have intervals so wide that they would hide the differences of the points.
    domain = vega.clipped(cells[f"{column}_lo"], cells[column], cells[f"{column}_hi"])
    y = vega.quantity("metric" if is_known else "accuracy", title, domain=domain, nice=False)
    x = vega.doubling("global_batch", "global batch", cells["global_batch_size"].tolist())
    rules = vega.category("rule", vega.word("lr_rule", cells), sort=None, type="nominal")
    return replace(plot, spec=vega.lines_in_panels(x, y, rules, "count_panel"))


def time_to_target(cells: pd.DataFrame) -> Plot:
    """Return the chart of the training seconds up to the target."""
    reached = cells["time_to_target_s"].notna()
    never = int(((cells["n_ok"] > 0) & ~reached).sum())
    plot = Plot(
        name="time_to_target",
        title="Time to target",
        about="Training time, without evaluation, up to the first epoch that reached the target; only cells that"
        " reached it with every ok seed.",
        absent="" if reached.any() else "No target was set (report.target), or no cell reached it.",
    )
    if plot.absent:
        return plot
    encoding = {
        "x": vega.category("gpus", vega.word("gpus", cells), axis={"labelAngle": 0}),
        "y": vega.spanning("to_target", "time to target [s]", cells.loc[reached, "time_to_target_s"]),
        "color": vega.category("fixed_batch", vega.fixed_batch(cells)),
        **vega.POINT,
    }
    points = vega.mark("point", encoding, where="isValid(datum.to_target)", size=70, filled=True)
    missed = f"{numbers.counted(never, 'cell', 'cells')} not drawn: not every seed reached the target."
    spec = vega.in_panels([{**points, "params": [vega.picked("fixed_batch")]}], field="target_panel")
    return replace(plot, spec=spec, remarks=[missed] if never else [])


def memory(cells: pd.DataFrame) -> Plot:
    """Return the chart of peak memory: a bar for each batch and number of GPUs."""
    measured = cells["peak_memory_gb"].notna().any()
    plot = Plot(
        name="memory",
        title="Memory",
        about="Peak memory of the fullest device: the maximum over seeds, learning-rate rules and multipliers.",
        absent="" if measured else "No trial reported device memory.",
    )
    if plot.absent:
        return plot
    # Rules share the memory of a batch, so they share a bar.
    over_rules = [{"op": "max", "field": "memory", "as": "memory"}, {"op": "min", "field": "order", "as": "order"}]
    fullest = [
        {"filter": "isValid(datum.memory)"},
        {"aggregate": over_rules, "groupby": ["batch_cell"]},
        {"window": [{"op": "row_number", "as": "bar_rank"}], "sort": [{"field": "order"}]},
        {"filter": f"datum.bar_rank <= {vega.MOST_BARS}"},
        {"calculate": "datum.batch_cell + ': ' + format(datum.memory, '.3~r') + ' GB'", "as": "tip"},
    ]
    return replace(plot, spec={"transform": fullest, **vega.bars("batch_cell", "memory", "peak memory [GB]")})
