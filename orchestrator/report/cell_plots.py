"""The report's charts of cells: time against accuracy, speed-up, accuracy by batch, lost efficiency and memory.

All draw the same rows, one for each cell (`cell_rows`). A chart that cannot be drawn has its reason in `absent`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    TIP,
    ZOOM,
    Plot,
    Spec,
    band,
    bars,
    category,
    clipped,
    doubling,
    filter_value,
    in_panels,
    interval,
    is_on_cpu,
    label_of,
    level_line,
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

_ENDS = ("", "_lo", "_hi")


def with_times(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with the time that the recommendation compares: `time_s` and the ends of its interval."""
    sound = only_sound(trials)
    ok = sound[sound["status"] == Status.OK.value]
    seconds = mean_interval(logs(by_cell(cells["cell_id"], ok.assign(time_s=time_s(ok, None).values), "time_s")))
    ends = zip(_ENDS, (seconds.point, seconds.lo, seconds.hi), strict=True)
    return cells.assign(**{f"time_s{end}": np.exp(values) for end, values in ends})


def cell_rows(cells: pd.DataFrame, recommendation: Recommendation | None) -> list[dict[str, Any]]:
    """Return a row for each cell `with_times`, in the order of the tables, for all charts and filters."""
    differing = varying(cells)
    fixed, metric = FIXED_SIDE[cells["scaling"].iloc[0]], metric_of(recommendation)
    # The page pairs these rows with those of its table, which has the same order.
    ordered = in_order(cells, [*differing, "device_batch_size", "lr_rule", "gpus"])
    records = ordered.to_dict("records")
    chosen_id = recommendation.cell_id if recommendation else None
    first = next((row for row in records if row["cell_id"] == chosen_id), None)
    panels = {"panel": [*differing, *_rules(cells)], "count_panel": [*differing, "gpus"]}
    titles = {name: [_panel_title(row, columns, cells) for row in records] for name, columns in panels.items()}
    places = {name: ranked_panels(records, titles[name], columns, first) for name, columns in panels.items()}
    whole = recommendation is not None and recommendation.deciding_time == "total_time"
    columns = _COLUMNS | {f"time{end}": f"{'total_s' if whole else 'time_s'}{end}" for end in _ENDS}
    columns |= {f"metric{end}": f"{metric.name}{end}" for end in _ENDS}
    rows: list[dict[str, Any]] = []
    for index, record in enumerate(records):
        row = {
            "cell": label_of(cell_label(record, differing)),
            "batch_cell": label_of(cell_label({key: record[key] for key in record if key != "lr_rule"}, differing)),
            "order": index if record is not first else -1,  # charts with few bars begin with the chosen cell
            "gpus": record["gpus"],
            "fixed_batch": record[fixed],
            "global_batch": record["global_batch_size"],
            "rule": label_of(str(record["lr_rule"])),
            "ideal": record["speedup"] / record["efficiency"],
            "compared": record["cell_id"] != record["baseline_cell_id"],
            "timing": None if pd.isna(record["timing_valid"]) else bool(record["timing_valid"]),
            "role": _role(record, recommendation),
        }
        row |= {name: record.get(column, math.nan) for name, column in columns.items()}
        row |= {name: titles[name][index] for name in panels}
        row |= {f"{name}_order": places[name][index] for name in panels}
        row |= {f"axis:{name}": filter_value(record[name]) for name in (*differing, *ALWAYS)}
        rows.append(row)
    front = _front(pd.DataFrame(rows), metric.sign)
    return [{**row, "on_front": index in front} for index, row in enumerate(rows)]


_COLUMNS = {
    **{f"{name}{end}": f"{name}{end}" for name in ("accuracy", "speedup") for end in _ENDS},
    **{name: name for name in ("efficiency", *LOST)},
    "to_target": "time_to_target_s",
    "memory": "peak_memory_gb",
}
"""Fields of the rows that are measured, and their columns."""


def _rules(cells: pd.DataFrame) -> list[str]:
    """Return the column of the rule, if it may change the speed-up: timings may be shared by the rules of a batch."""
    groups = cells[cells["speedup"].notna()].groupby(["gpus", "device_batch_size", *varying(cells)], dropna=False)
    same = bool((groups["speedup"].agg(lambda values: values.max() - values.min()) < 1e-9).all())
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
    # A cell is on the front if no faster one has as good a score.
    fastest_first = known.sort_values(["time", "score"], ascending=[True, False], kind="stable")
    best = fastest_first["score"].cummax().shift(fill_value=-math.inf)
    return set(fastest_first.index[fastest_first["score"] > best])


def _role(row: Row, recommendation: Recommendation | None) -> str:
    if recommendation is None or row["cell_id"] not in (recommendation.cell_id, recommendation.baseline_cell_id):
        return ""
    return "recommended" if row["cell_id"] == recommendation.cell_id else "baseline"


def cell_plots(cells: pd.DataFrame, rows: Sequence[Row], recommendation: Recommendation | None) -> list[Plot]:
    """Return the charts of cells, in the order of the report; `rows` are those of `cell_rows`."""
    return [
        trade_off(cells, pd.DataFrame(list(rows)), recommendation),
        speedup(cells),
        *speedup_by_batch(cells),
        accuracy(cells, metric_of(recommendation)),
        time_to_target(cells),
        why_not_linear(cells),
        memory(cells),
    ]


def trade_off(cells: pd.DataFrame, rows: pd.DataFrame, recommendation: Recommendation | None) -> Plot:
    """Return the chart of time against the metric of choice, with the Pareto front and the margin."""
    metric = metric_of(recommendation)
    known = rows[rows["time"].notna() & rows["metric"].notna()]
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
    measure = recommendation.measure if recommendation and recommendation.measure.startswith("time") else "time"
    least = 4 * recommendation.margin if recommendation else 0.0  # so that the margin's line is in sight
    domain = clipped(known["metric_lo"], known["metric"], known["metric_hi"], least)
    place = {
        "x": spanning("time", f"{measure} [s]", known["time"]),
        "y": quantity("metric", metric.label, domain=domain, nice=False),
    }
    look: dict[str, Any] = {"color": category("gpus", word("gpus", cells))}
    shapes = {"shape": category("rule", word("lr_rule", cells), sort=None, type="nominal")}
    points = {**place, **look, **(shapes if 1 < known["rule"].nunique() <= 8 else {}), **PALE, **FADED, **TIP}
    drawn = "isValid(datum.time) && isValid(datum.metric)"
    # Many intervals hide the points.
    spread = drawn if len(known) <= _FEW else f"{drawn} && (datum.on_front || datum.role !== '')"
    labels = {**place, "text": {"field": "cell"}}
    layers = [
        *level_line(place["y"], _margin_level(cells, recommendation)),
        *(interval(axis, {**place, **look}, where=spread) for axis in ("x", "y")),
        mark("line", place, where="datum.on_front", interpolate="step-after", color=GREY),
        {**mark("point", points, where=drawn, size=70, filled=True), "params": [ZOOM, picked("gpus")]},
        mark("point", place, where="datum.role === 'recommended'", size=300, strokeWidth=2, color=GREY),
        mark("text", labels, where="datum.role !== ''", dy=-15, clip=False),
    ]
    return replace(plot, spec={"width": 560, "height": 260, "layer": layers})


def _margin_level(cells: pd.DataFrame, recommendation: Recommendation | None) -> float | None:
    """Return the worst metric within the margin; None without a baseline."""
    metric = metric_of(recommendation)
    if recommendation is None or metric.name not in cells:
        return None
    values = cells.loc[cells["cell_id"] == recommendation.baseline_cell_id, metric.name].dropna()
    return float(values.iloc[0]) - metric.sign * recommendation.margin if len(values) else None


def _is_compared(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether it is no baseline, which is 1 by definition."""
    return cells["cell_id"] != cells["baseline_cell_id"]


def _fixed_batch(cells: pd.DataFrame) -> str:
    """Return the title of the batch that stays the same with more GPUs."""
    return word(FIXED_SIDE[cells["scaling"].iloc[0]], cells)


def speedup(cells: pd.DataFrame) -> Plot:
    """Return the chart of throughput relative to the baseline, beside the ideal speed-up."""
    gpus = word("gpus", cells)
    known = cells[cells["speedup"].notna()]
    absent = ""
    if known.empty:
        absent = "No two cells can be compared: no throughput was reported, or no cell is ok."
    elif not _is_compared(known).any():
        absent = f"All cells that are ok have the same number of {gpus}."
    plot = Plot(
        name="speedup",
        title=f"Speed-up of more {gpus}",
        about=f"Throughput as a multiple of the baseline's, at the same {_fixed_batch(cells)}"
        f" ({cells['scaling'].iloc[0]} scaling). Dashed: the ideal, in proportion to the {gpus}. Percentages: share of"
        f" the ideal. {_BAND}",
        absent=absent,
    )
    if plot.absent:
        return plot
    layers = _one_step(known) if known["gpus"].nunique() <= 2 else _several_steps(known)
    return replace(plot, spec=in_panels(layers, field="panel"), remarks=one_process(cells))


def _one_step(known: pd.DataFrame) -> list[Spec]:
    """Return the layers for a single step of the GPUs: a row for each batch, with its ideal."""
    # Room for the labels right of the largest value.
    most = max(float((known["speedup"] / known["efficiency"]).max()), float(known["speedup"].max()))
    x = {**quantity("speedup", "speed-up", domain=[0, 1.3 * most], nice=False), "axis": {"tickCount": 4}}
    place = {"x": x, "y": category("fixed_batch", _fixed_batch(known), axis={"grid": False})}
    look = {"color": category("gpus", word("gpus", known))}
    drawn = "isValid(datum.speedup) && datum.compared"
    points = mark("point", {**place, **look, **PALE, **FADED, **TIP}, where=drawn, size=70, filled=True)
    texts = mark("text", {**place, "text": {"field": "label"}}, where=drawn, dy=-11, clip=False)
    label = "format(datum.speedup, '.2f') + '× (' + format(datum.efficiency, '.0%') + ')'"
    return [
        mark("rule", {"x": {"datum": 1}}, opacity=0.5),
        mark("tick", {**place, "x": {**x, "field": "ideal"}}, where=drawn, thickness=2, height=22, strokeDash=[3, 2]),
        interval("x", {**place, **look}, where=drawn, strokeWidth=3),
        {**points, "params": [picked("gpus")]},
        {**texts, "transform": [*texts["transform"], {"calculate": label, "as": "label"}]},
    ]


def _several_steps(known: pd.DataFrame) -> list[Spec]:
    """Return the layers for three or more numbers of GPUs: a line for each batch, and the ideal."""
    counts = list(known["gpus"].unique())
    # Over a wide range the ideal is a straight line only if both axes are logarithmic.
    wide = max(counts) / min(counts) >= 8
    scale = {"type": "log", "base": 2, "nice": False} if wide else {"zero": True}
    y = {**quantity("speedup", "speed-up", **scale), "axis": {"format": "~r", "tickCount": 5}}
    place = {"x": doubling("gpus", word("gpus", known), counts), "y": y}
    look = {"color": category("fixed_batch", _fixed_batch(known))}
    drawn = "isValid(datum.speedup)"
    # The efficiency stands at the end of each line, that is at its most GPUs.
    at_end = [
        {"filter": f"{drawn} && datum.compared"},
        {"joinaggregate": [{"op": "max", "field": "gpus", "as": "most_gpus"}], "groupby": ["panel", "fixed_batch"]},
        {"filter": "datum.gpus === datum.most_gpus"},
        {"calculate": "format(datum.efficiency, '.0%')", "as": "label"},
    ]
    ideal = {**place, "y": {**y, "field": "ideal", "aggregate": "max"}}
    points = mark("point", {**place, **look, **PALE, **FADED, **TIP}, where=drawn, size=55, filled=True)
    texts = {**place, **look, "text": {"field": "label"}}
    return [
        mark("line", ideal, where=drawn, strokeDash=[5, 4], color=GREY),
        band({**place, **look}, where=drawn),
        mark("line", {**place, **look, **FADED}, where=drawn),
        {**points, "params": [ZOOM, picked("fixed_batch")]},
        {**mark("text", texts, align="left", dx=7, fontSize=10, clip=False), "transform": at_end},
    ]


def speedup_by_batch(cells: pd.DataFrame) -> list[Plot]:
    """Return the chart of the speed-up by batch, one line per GPU count: from which batch on more GPUs pay off.

    There is none with fewer than three batches, or if the chart of the speed-up shows the same.
    """
    scaled = cells[_is_compared(cells) & cells["speedup"].notna()]
    batches = scaled[FIXED_SIDE[cells["scaling"].iloc[0]]]
    if batches.nunique() < 3 or scaled["gpus"].nunique() < 2:
        return []
    gpus, batch = word("gpus", cells), _fixed_batch(cells)
    x = doubling("fixed_batch", batch, batches.tolist())
    plot = Plot(
        name="speedup_by_batch",
        title="Speed-up by batch size",
        about=f"The {batch} from which more {gpus} pay off. Dashed: as fast as the baseline. {_BAND}",
        spec=_lines(x, quantity("speedup", "speed-up"), category("gpus", gpus), "panel", level=1),
    )
    return [plot]


def _lines(x: Spec, y: Spec, colour: Spec, panel: str, *, level: float | None = None) -> Spec:
    """Return a chart with lines of one colour each, of compared cells if there is a dashed `level`."""
    drawn = f"isValid(datum.{y['field']})" + (" && datum.compared" if level is not None else "")
    look = {"x": x, "y": y, "color": colour}
    points = mark("point", {**look, **FADED, **PALE, **TIP}, where=drawn, size=55, filled=True)
    layers = [
        *level_line(y, level),
        band(look, where=drawn),
        mark("line", {**look, **FADED}, where=drawn),
        {**points, "params": [ZOOM, picked(colour["field"])]},
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
    # Two seeds have intervals so wide that they would hide the differences of the points.
    domain = clipped(cells[f"{column}_lo"], cells[column], cells[f"{column}_hi"])
    y = quantity("accuracy" if column == "accuracy" else "metric", title, domain=domain, nice=False)
    x = doubling("global_batch", "global batch", cells["global_batch_size"].tolist())
    rules = category("rule", word("lr_rule", cells), sort=None, type="nominal")
    return replace(plot, spec=_lines(x, y, rules, "count_panel"))


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
        "x": category("gpus", word("gpus", cells), axis={"labelAngle": 0}),
        "y": spanning("to_target", "time to target [s]", cells.loc[reached, "time_to_target_s"]),
        "color": category("fixed_batch", _fixed_batch(cells)),
        **PALE,
        **FADED,
        **TIP,
    }
    points = mark("point", encoding, where="isValid(datum.to_target)", size=70, filled=True)
    missed = f"{numbers.counted(never, 'cell', 'cells')} not drawn: not every seed reached the target."
    spec = in_panels([{**points, "params": [picked("fixed_batch")]}], field="panel")
    return replace(plot, spec=spec, remarks=[missed] if never else [])


_KEPT = {"efficiency": "kept"} | LOST_TO
"""Parts of a bar of `why_not_linear`: the fields and their names."""


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
    # Losses below 0 are not drawn, so the others may sum to more than what is lost: they are scaled to end at 100%.
    is_loss = "datum.column !== 'efficiency'"
    room = "max(0, 1 - datum.efficiency) / datum.lost"
    fold = [
        {"filter": "isValid(datum.lost_rest)"},
        {"window": [{"op": "dense_rank", "as": "bar_rank"}], "sort": [{"field": "order"}]},
        {"filter": f"datum.bar_rank <= {MOST_BARS}"},
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
    if len(known) > MOST_BARS:
        remarks.append(f"{MOST_BARS} of {len(known)} cells are drawn: the filters choose others.")
    if (known[list(LOST)] < -0.02).any(axis=None):
        remarks.append(
            "Parts that took less time than in the baseline are negative and not drawn, and the other losses are scaled"
            " to 100%; summary.csv has all."
        )
    spec = {"transform": fold, **bars("cell", "share", "share of an ideal speed-up", colour=colour, percent=True)}
    return replace(plot, spec=spec, remarks=remarks)


def largest(cells: pd.DataFrame, recommendation: Recommendation | None) -> str:
    """Return a sentence on the largest loss of speed-up, of the recommended cell or else of the worst one."""
    known = cells[cells["lost_rest"].notna()]
    # Readers care about the cell that they will use.
    chosen = known[known["cell_id"] == (recommendation.cell_id if recommendation else None)]
    rows = (chosen if len(chosen) else known.sort_values("efficiency")).to_dict("records")
    lost = largest_loss(rows[0]) if rows else None
    if not lost:
        return ""
    row = rows[0]
    share = f"{numbers.percent(row[lost])}% of the ideal speed-up"
    remedy = f" Remedy: {row['remedy'].partition(': ')[2] or row['remedy']}." if row.get("remedy") else ""
    return f"Largest loss of {cell_label(row, varying(cells))}: {LOST_TO[lost]} ({share}).{remedy}"


def memory(cells: pd.DataFrame) -> Plot:
    """Return the chart of peak memory: a bar for each batch and number of GPUs."""
    measured = cells["peak_memory_gb"].notna().any()
    plot = Plot(
        name="memory",
        title="Memory",
        about="Peak memory of the fullest device: the maximum over seeds and learning-rate rules.",
        absent="" if measured else "No trial reported device memory.",
    )
    if plot.absent:
        return plot
    # Rules share the memory of a batch, so they share a bar.
    over_rules = [
        {"op": "max", "field": "memory", "as": "memory"},
        {"op": "min", "field": "order", "as": "order"},
    ]
    fullest = [
        {"filter": "isValid(datum.memory)"},
        {"aggregate": over_rules, "groupby": ["batch_cell"]},
        {"window": [{"op": "row_number", "as": "bar_rank"}], "sort": [{"field": "order"}]},
        {"filter": f"datum.bar_rank <= {MOST_BARS}"},
        {"calculate": "datum.batch_cell + ': ' + format(datum.memory, '.3~r') + ' GB'", "as": "tip"},
    ]
    return replace(plot, spec={"transform": fullest, **bars("batch_cell", "memory", "peak memory [GB]")})
