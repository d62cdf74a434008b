"""The report's charts of cells: time against accuracy, speed-up, accuracy by batch, lost efficiency and memory.

All draw the same rows, one for each cell (`cell_rows`). A chart that cannot be drawn has its reason in `absent`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.cells import by_cell
from orchestrator.analysis.objective import time_s
from orchestrator.analysis.scaling_loss import LOST, LOST_TO, largest_loss
from orchestrator.analysis.validity import only_sound
from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.decision.recommendation import Recommendation, metric_of
from orchestrator.report.plot import (
    FADED,
    GREY,
    MOST_BARS,
    PALE,
    ZOOM,
    Plot,
    Spec,
    bars,
    category,
    clipped,
    doubling,
    filter_value,
    in_panels,
    interval,
    is_on_cpu,
    label_of,
    mark,
    picked,
    quantity,
    ranked_panels,
    spanning,
    word,
)
from orchestrator.statistics.intervals import logs, mean_interval
from orchestrator.tables.accuracy import shown_column, why_none
from orchestrator.tables.speedup import one_process
from orchestrator.text import numbers
from orchestrator.text.rows import ALWAYS, Row, cell_label, gpus_in_words, in_order, named, varying
from sweeps.status import Status

_BAND = "Lines and bands: 95% intervals over the seeds."
_FEW = 60
"""With more cells than this, only the Pareto front's intervals are drawn."""

_KEPT = {"efficiency": "kept"} | LOST_TO
_RECOMMENDED, _BASELINE = "recommended", "baseline"


def with_times(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with the time that the recommendation compares: `time_s` and the ends of its interval."""
    sound = only_sound(trials)
    ok = sound[sound["status"] == Status.OK.value]
    found = mean_interval(logs(by_cell(cells["cell_id"], ok.assign(time_s=time_s(ok, None).values), "time_s")))
    ends = zip(("time_s", "time_s_lo", "time_s_hi"), (found.point, found.lo, found.hi), strict=True)
    return cells.assign(**{name: np.exp(end) for name, end in ends})


def cell_rows(cells: pd.DataFrame, found: Recommendation | None) -> list[dict[str, Any]]:
    """Return a row for each cell `with_times`, in the order of the tables, for all charts and filters."""
    differing = varying(cells)
    fixed, metric = FIXED_SIDE[cells["scaling"].iloc[0]], metric_of(found)
    ordered = in_order(cells, [*differing, "device_batch_size", "lr_rule", "gpus"])
    records = ordered.to_dict("records")
    first = next((row for row in records if found and row["cell_id"] == found.cell_id), None)
    panels = {"panel": [*differing, *_rules(cells)], "count_panel": [*differing, "gpus"]}
    titles = {name: [_panel_title(row, columns, cells) for row in records] for name, columns in panels.items()}
    time_s = "total_s" if found and found.deciding_time == "total_time" else "time_s"
    times = {f"time{end}": f"{time_s}{end}" for end in ("", "_lo", "_hi")}
    places = {name: ranked_panels(records, titles[name], columns, first) for name, columns in panels.items()}
    rows = [
        {
            "cell": label_of(cell_label(row, differing)),
            "batch_cell": label_of(cell_label({key: row[key] for key in row if key != "lr_rule"}, differing)),
            "order": index if row is not first else -1,
            "gpus": row["gpus"],
            "fixed_batch": row[fixed],
            "global_batch": row["global_batch_size"],
            "rule": label_of(str(row["lr_rule"])),
            **{name: titles[name][index] for name in panels},
            **{f"{name}_order": places[name][index] for name in panels},
            **{name: row.get(column, math.nan) for name, column in (times | _FIGURES).items()},
            **{f"metric{end}": row.get(f"{metric.name}{end}", math.nan) for end in ("", "_lo", "_hi")},
            "ideal": row["speedup"] / row["efficiency"],
            "compared": row["cell_id"] != row["baseline_cell_id"],
            "timing": None if pd.isna(row["timing_valid"]) else bool(row["timing_valid"]),
            "role": _role(row, found),
            **{f"axis:{name}": filter_value(row[name]) for name in (*differing, *ALWAYS)},
        }
        for index, row in enumerate(records)
    ]
    front = _front(pd.DataFrame(rows), metric.sign)
    return [{**row, "on_front": index in front} for index, row in enumerate(rows)]


_FIGURES = {
    **{f"{name}{end}": f"{name}{end}" for name in ("accuracy", "speedup") for end in ("", "_lo", "_hi")},
    **{name: name for name in ("efficiency", *LOST)},
    "to_target": "time_to_target_s",
    "memory": "peak_memory_gb",
}
"""Fields of the rows with figures, and their columns."""


def _rules(cells: pd.DataFrame) -> list[str]:
    """Return the column of the rule, if it may change the speed-up: timings may be shared by the rules of a batch."""
    groups = cells[cells["speedup"].notna()].groupby(["gpus", "device_batch_size", *varying(cells)], dropna=False)
    same = bool((groups["speedup"].agg(lambda each: each.max() - each.min()) < 1e-9).all())
    return [] if same else ["lr_rule"]


def _panel_title(row: Row, columns: Iterable[str], cells: pd.DataFrame) -> str:
    others = [column for column in columns if column not in ("lr_rule", "gpus")]
    parts = [
        gpus_in_words(row["gpus"], on_cpu=is_on_cpu(cells)) if "gpus" in columns else "",
        str(row["lr_rule"]) if "lr_rule" in columns else "",
        named(row, others),
    ]
    return label_of(", ".join(filter(None, parts)))


def _front(rows: pd.DataFrame, sign: float) -> set[int]:
    """Return the rows of the cells than which no other one is both faster and better, by valid timings."""
    rows = rows.assign(score=sign * rows["metric"])
    known = rows[rows["timing"].eq(True) & rows["time"].notna() & rows["score"].notna()]
    fastest_first = known.sort_values(["time", "score"], ascending=[True, False], kind="stable")
    best = fastest_first["score"].cummax().shift(fill_value=-math.inf)
    return set(fastest_first.index[fastest_first["score"] > best])


def _role(row: Row, found: Recommendation | None) -> str:
    if found is None or row["cell_id"] not in (found.cell_id, found.baseline_cell_id):
        return ""
    return _RECOMMENDED if row["cell_id"] == found.cell_id else _BASELINE


def cell_plots(cells: pd.DataFrame, rows: Sequence[Row], found: Recommendation | None) -> list[Plot]:
    """Return the charts of cells, in the order of the report; `rows` are those of `cell_rows`."""
    return [
        trade_off(cells, pd.DataFrame(list(rows)), found),
        speedup(cells),
        *speedup_by_batch(cells),
        accuracy(cells, metric_of(found)),
        time_to_target(cells),
        why_not_linear(cells),
        memory(cells),
    ]


def trade_off(cells: pd.DataFrame, rows: pd.DataFrame, found: Recommendation | None) -> Plot:
    """Return the chart of time against the metric of choice, with the Pareto front and the margin."""
    metric = metric_of(found)
    known = rows[rows["time"].notna() & rows["metric"].notna()]
    measure = found.measure if found and found.measure.startswith("time") else "time"
    plot = Plot(
        name="trade_off",
        title=f"Time against {metric.label}",
        about=f"Each point is a cell; the best are at the {'top' if metric.higher_is_better else 'bottom'} left."
        " Line: the Pareto front. Dashed: the least that the margin allows. Bars: 95% intervals. Faint points: timing"
        " not valid.",
        absent="" if len(known) else f"No cell has both a time and a {metric.label}.",
    )
    if plot.absent:
        return plot
    least = 4 * found.margin if found else 0.0  # the margin's line is in sight
    domain = clipped(known["metric_lo"], known["metric"], known["metric_hi"], least)
    x = spanning("time", f"{measure} [s]", known["time"])
    y = quantity("metric", metric.label, domain=domain, nice=False)
    colour = {"color": category("gpus", word("gpus", cells))}
    rule = (
        {"shape": category("rule", word("lr_rule", cells), sort=None, type="nominal")}
        if 1 < known["rule"].nunique() <= 8
        else {}
    )
    drawn = "isValid(datum.time) && isValid(datum.metric)"
    spread = drawn if len(known) <= _FEW else f"{drawn} && (datum.on_front || datum.role !== '')"
    level = _margin_level(cells, found)
    look = {**colour, **rule, **PALE, **FADED, "tooltip": {"field": "tip"}}
    points = mark("point", {"x": x, "y": y, **look}, where=drawn, size=70, filled=True)
    layers = [
        *(
            [mark("rule", {"y": {"datum": level, "type": "quantitative", "scale": y["scale"]}}, strokeDash=[5, 4])]
            if level
            else []
        ),
        *(interval(axis, {"x": x, "y": y, **colour}, where=spread) for axis in ("x", "y")),
        mark("line", {"x": x, "y": y}, where="datum.on_front", interpolate="step-after", color=GREY),
        {**points, "params": [ZOOM, picked("gpus")]},
        mark("point", {"x": x, "y": y}, where="datum.role === 'recommended'", size=300, strokeWidth=2, color=GREY),
        mark("text", {"x": x, "y": y, "text": {"field": "cell"}}, where="datum.role !== ''", dy=-15, clip=False),
    ]
    return _with(plot, {"width": 560, "height": 260, "layer": layers})


def _with(plot: Plot, spec: Spec, *remarks: str) -> Plot:
    return Plot(**{**vars(plot), "spec": spec, "remarks": [each for each in remarks if each]})


def _margin_level(cells: pd.DataFrame, found: Recommendation | None) -> float | None:
    """Return the worst metric within the margin; None without a baseline."""
    metric = metric_of(found)
    if found is None or metric.name not in cells:
        return None
    values = cells.loc[cells["cell_id"] == found.baseline_cell_id, metric.name].dropna()
    return float(values.iloc[0]) - metric.sign * found.margin if len(values) else None


def speedup(cells: pd.DataFrame) -> Plot:
    """Return the chart of throughput relative to the baseline, beside the ideal speed-up."""
    scaling = cells["scaling"].iloc[0]
    gpus = word("gpus", cells)
    plot = Plot(
        name="speedup",
        title=f"Speed-up of more {gpus}",
        about=f"Throughput as a multiple of the baseline's, at the same {word(FIXED_SIDE[scaling], cells)} ({scaling}"
        f" scaling). Dashed: the ideal, in proportion to the {gpus}. Percentages: share of the ideal. {_BAND}",
        absent=_why_no_speedup(cells),
    )
    if plot.absent:
        return plot
    counts = cells.loc[cells["speedup"].notna(), "gpus"].unique()
    steps = _one_step(cells) if len(counts) <= 2 else _several_steps(cells, list(counts))
    return _with(plot, steps, *one_process(cells))


def _one_step(cells: pd.DataFrame) -> Spec:
    """Return the chart for a single step of the GPUs: a row for each batch, with its ideal."""
    batch = FIXED_SIDE[cells["scaling"].iloc[0]]
    known = cells[cells["speedup"].notna()]
    most = max(float((known["speedup"] / known["efficiency"]).max()), float(known["speedup"].max()))
    x = quantity("speedup", "speed-up", domain=[0, 1.3 * most], nice=False)
    y = category("fixed_batch", word(batch, cells), axis={"grid": False})
    place = {"x": {**x, "axis": {"tickCount": 4}}, "y": y}
    drawn = "isValid(datum.speedup) && datum.compared"
    colour = {"color": category("gpus", word("gpus", cells))}
    points = mark("point", {**place, **colour, **PALE, **FADED, "tooltip": {"field": "tip"}}, where=drawn, size=70)
    ideal = {**place, "x": {**x, "field": "ideal"}}
    layers = [
        mark("rule", {"x": {"datum": 1}}, opacity=0.5),
        mark("tick", ideal, where=drawn, thickness=2, height=22, strokeDash=[3, 2]),
        interval("x", {**place, **colour}, where=drawn, strokeWidth=3),
        {**points, "mark": {**points["mark"], "filled": True}, "params": [picked("gpus")]},
        _labelled(mark("text", {**place, "text": {"field": "label"}}, where=drawn, dy=-11, clip=False)),
    ]
    return in_panels(layers, field="panel")


def _labelled(layer: Spec) -> Spec:
    """Return the layer with a field `label`: `1.87× (94%)`."""
    label = "format(datum.speedup, '.2f') + '× (' + format(datum.efficiency, '.0%') + ')'"
    return {**layer, "transform": [*layer["transform"], {"calculate": label, "as": "label"}]}


def _several_steps(cells: pd.DataFrame, counts: list[float]) -> Spec:
    """Return the chart for three or more numbers of GPUs: a line for each batch, and the ideal."""
    known = cells[cells["speedup"].notna()]
    wide = max(counts) / min(counts) >= 8
    scale = {"type": "log", "base": 2, "nice": False} if wide else {"zero": True}
    place = {
        "x": doubling("gpus", word("gpus", cells), counts),
        "y": {**quantity("speedup", "speed-up", **scale), "axis": {"format": "~r", "tickCount": 5}},
    }
    ends = {"y": {**place["y"], "field": "speedup_lo"}, "y2": {"field": "speedup_hi"}}
    colour = {"color": category("fixed_batch", word(FIXED_SIDE[known["scaling"].iloc[0]], cells))}
    drawn = "isValid(datum.speedup)"
    at_end = [
        {"filter": f"{drawn} && datum.compared"},
        {"joinaggregate": [{"op": "max", "field": "gpus", "as": "most_gpus"}], "groupby": ["panel", "fixed_batch"]},
        {"filter": "datum.gpus === datum.most_gpus"},
        {"calculate": "format(datum.efficiency, '.0%')", "as": "label"},
    ]
    ideal = {"x": place["x"], "y": {**place["y"], "field": "ideal", "aggregate": "max"}}
    points = {**place, **colour, **PALE, **FADED, "tooltip": {"field": "tip"}}
    text = mark("text", {**place, **colour, "text": {"field": "label"}}, align="left", dx=7, fontSize=10, clip=False)
    layers = [
        mark("line", ideal, where=drawn, strokeDash=[5, 4], color=GREY),
        mark("area", {**place, **ends, **colour}, where=f"{drawn} && isValid(datum.speedup_lo)", opacity=0.13),
        mark("line", {**place, **colour, **FADED}, where=drawn),
        {**mark("point", points, where=drawn, size=55, filled=True), "params": [ZOOM, picked("fixed_batch")]},
        {**text, "transform": at_end},
    ]
    return in_panels(layers, field="panel")


def speedup_by_batch(cells: pd.DataFrame) -> list[Plot]:
    """Return the chart of the speed-up by batch, one line per GPU count: from which batch on more GPUs pay off.

    There is none with fewer than three batches, or if the chart of the speed-up shows the same.
    """
    scaled = cells[_is_compared(cells) & cells["speedup"].notna()]
    batch = FIXED_SIDE[cells["scaling"].iloc[0]]
    if scaled[batch].nunique() < 3 or scaled["gpus"].nunique() < 2:
        return []
    gpus = word("gpus", cells)
    plot = Plot(
        name="speedup_by_batch",
        title="Speed-up by batch size",
        about=f"The {word(batch, cells)} from which more {gpus} pay off. Dashed: as fast as the baseline. {_BAND}",
    )
    x = doubling("fixed_batch", word(batch, cells), scaled[batch].tolist())
    return [_with(plot, _lines(x, quantity("speedup", "speed-up"), category("gpus", gpus), "panel", level=1))]


def _lines(x: Spec, y: Spec, colour: Spec, panel: str, *, level: float | None = None) -> Spec:
    """Return a chart with lines of one colour each, of compared cells if there is a dashed `level`."""
    field = y["field"]
    drawn = f"isValid(datum.{field})" + (" && datum.compared" if level is not None else "")
    ends = {"y": {**y, "field": f"{field}_lo"}, "y2": {"field": f"{field}_hi"}}
    points = {"x": x, "y": y, "color": colour, **FADED}
    found = {**points, **PALE, "tooltip": {"field": "tip"}}
    layers = [
        *([mark("rule", {"y": {"datum": level}}, strokeDash=[5, 4])] if level is not None else []),
        mark("area", {"x": x, **ends, "color": colour}, where=f"{drawn} && isValid(datum.{field}_lo)", opacity=0.13),
        mark("line", points, where=drawn),
        {**mark("point", found, where=drawn, size=55, filled=True), "params": [ZOOM, picked(colour["field"])]},
    ]
    return in_panels(layers, field=panel)


def accuracy(cells: pd.DataFrame, metric: Metric = VAL_ACCURACY) -> Plot:
    """Return the chart of accuracy by global batch, one line per rule: of the test set, else the metric of choice."""
    column = shown_column(cells, metric)
    title = "test accuracy" if column == "accuracy" else metric.label
    plot = Plot(
        name="accuracy",
        title=f"{'Accuracy' if metric == VAL_ACCURACY else metric.label.capitalize()} by batch size",
        about=f"{title.capitalize()} by global batch: up to which batch each learning-rate rule works. {_BAND}",
        absent=why_none(cells, metric),
    )
    if plot.absent:
        return plot
    domain = clipped(cells[f"{column}_lo"], cells[column], cells[f"{column}_hi"])
    x = doubling("global_batch", "global batch", cells["global_batch_size"].tolist())
    colour = category("rule", word("lr_rule", cells), sort=None, type="nominal")
    field = "accuracy" if column == "accuracy" else "metric"
    return _with(plot, _lines(x, quantity(field, title, domain=domain, nice=False), colour, "count_panel"))


def time_to_target(cells: pd.DataFrame) -> Plot:
    """Return the chart of the training seconds up to the target."""
    reached = cells[cells["time_to_target_s"].notna()]
    never = int(((cells["n_ok"] > 0) & cells["time_to_target_s"].isna()).sum())
    plot = Plot(
        name="time_to_target",
        title="Time to target",
        about="Training time, without evaluation, up to the first epoch that reached the target; only cells that"
        " reached it with every ok seed.",
        absent="" if len(reached) else "No target was set (trainable.target_accuracy), or no cell reached it.",
    )
    if plot.absent:
        return plot
    batch = word(FIXED_SIDE[cells["scaling"].iloc[0]], cells)
    encoding = {
        "x": category("gpus", word("gpus", cells), axis={"labelAngle": 0}),
        "y": spanning("to_target", "time to target [s]", reached["time_to_target_s"]),
        "color": category("fixed_batch", batch),
        **PALE,
        **FADED,
        "tooltip": {"field": "tip"},
    }
    drawn = mark("point", encoding, where="isValid(datum.to_target)", size=70, filled=True)
    missed = f"{numbers.counted(never, 'cell', 'cells')} not drawn: not every seed reached the target." if never else ""
    return _with(plot, in_panels([{**drawn, "params": [picked("fixed_batch")]}], field="panel"), missed)


def _is_compared(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether it is no baseline, which is 1 by definition."""
    return cells["cell_id"] != cells["baseline_cell_id"]


def _why_no_speedup(cells: pd.DataFrame) -> str:
    """Return why there is no speed-up to draw; empty if there is one."""
    if cells["speedup"].isna().all():
        return "No two cells can be compared: no throughput was reported, or no cell is ok."
    if not (_is_compared(cells) & cells["speedup"].notna()).any():
        return f"All cells that are ok have the same number of {word('gpus', cells)}."
    return ""


def why_not_linear(cells: pd.DataFrame) -> Plot:
    """Return the chart with one bar per cell on several GPUs: the efficiency it keeps, and what takes the rest."""
    gpus = word("gpus", cells)
    known = cells[cells["lost_rest"].notna()]
    plot = Plot(
        name="why_not_linear",
        title="Where speed-up is lost",
        about=f"The share of the ideal speed-up that cells with several {gpus} keep, and where the rest goes.",
        absent="" if len(known) else f"No cell with several {gpus} has an efficiency and a breakdown of its steps.",
    )
    if plot.absent:
        return plot
    names = ", ".join(f"'{column}': '{text}'" for column, text in _KEPT.items())
    fold = [
        {"filter": "isValid(datum.lost_rest)"},
        {"window": [{"op": "dense_rank", "as": "bar_rank"}], "sort": [{"field": "order"}]},
        {"filter": f"datum.bar_rank <= {MOST_BARS}"},
        {"fold": list(_KEPT), "as": ["column", "share"]},
        {"calculate": f"{{{names}}}[datum.column]", "as": "part"},
        {"calculate": "datum.cell + '\\n' + datum.part + ': ' + format(datum.share, '.1%')", "as": "tip"},
        {"filter": "datum.share > 0"},
    ]
    colour = {"field": "part", "type": "nominal", "title": None, "scale": {"domain": list(_KEPT.values())}}
    spec = bars("cell", "share", "share of an ideal speed-up", colour=colour, percent=True)
    negative = (known[list(LOST)] < -0.02).any(axis=None)
    return _with(
        plot,
        {"transform": fold, **spec},
        f"{MOST_BARS} of {len(known)} cells are drawn: the filters choose others." if len(known) > MOST_BARS else "",
        "Parts that took less time than in the baseline are negative and not drawn; summary.csv has them."
        if negative
        else "",
    )


def largest(cells: pd.DataFrame, found: Recommendation | None) -> str:
    """Return a sentence on the largest loss of speed-up, of the recommended cell or else of the worst one."""
    known = cells[cells["lost_rest"].notna()]
    chosen = known[known["cell_id"] == (found.cell_id if found else None)]
    rows = (chosen if len(chosen) else known.sort_values("efficiency")).to_dict("records")
    for row in rows[:1]:
        if lost := largest_loss(row):
            remedy = f" Remedy: {row['remedy'].partition(': ')[2] or row['remedy']}." if row.get("remedy") else ""
            share = f"{numbers.percent(row[lost])}% of the ideal speed-up"
            return f"Largest loss of {cell_label(row, varying(cells))}: {LOST_TO[lost]} ({share}).{remedy}"
    return ""


def memory(cells: pd.DataFrame) -> Plot:
    """Return the chart of peak memory: a bar for each batch and number of GPUs."""
    known = cells[cells["peak_memory_gb"].notna()]
    plot = Plot(
        name="memory",
        title="Memory",
        about="Peak memory of the fullest device: the maximum over seeds and learning-rate rules.",
        absent="" if len(known) else "No trial reported device memory.",
    )
    if plot.absent:
        return plot
    fullest = [
        {"filter": "isValid(datum.memory)"},
        {
            "aggregate": [
                {"op": "max", "field": "memory", "as": "memory"},
                {"op": "min", "field": "order", "as": "order"},
            ],
            "groupby": ["batch_cell"],
        },
        {"window": [{"op": "row_number", "as": "bar_rank"}], "sort": [{"field": "order"}]},
        {"filter": f"datum.bar_rank <= {MOST_BARS}"},
        {"calculate": "datum.batch_cell + ': ' + format(datum.memory, '.3~r') + ' GB'", "as": "tip"},
    ]
    return _with(plot, {"transform": fullest, **bars("batch_cell", "memory", "peak memory [GB]")})
