"""The rows of all charts of cells, and the charts of time against accuracy, accuracy by batch, and memory.

All draw the same rows, one for each cell (`cell_rows`). A chart that cannot be drawn has its reason in `absent`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict, cast

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.differences import by_seed
from orchestrator.analysis.objective import time_s
from orchestrator.analysis.scaling_loss import LOST
from orchestrator.analysis.validity import with_valid_timings
from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.decision.recommendation import Recommendation
from orchestrator.report import plot as vega
from orchestrator.report.plot import Plot, Spec
from orchestrator.report.speedup_plots import speedup, why_not_linear
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import logs, mean_interval
from orchestrator.tables.accuracy import shown_column, why_none
from orchestrator.text import numbers
from orchestrator.text.rows import ALWAYS, Row, cell_label, gpus_in_words, in_order, short_names, varying
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.status import Status

_FEW = 60
"""With more cells than this, only the Pareto front's intervals are drawn."""

_FEWEST_SHOWN = 4
"""How many of the fastest cells the chart's range includes if the baseline is chosen."""

_ENDS = ("", "_lo", "_hi")


class CellRow(TypedDict):
    """A cell in all charts and filters: the fields that their specs name. NaN means not measured.

    Fields `axis:NAME` follow, with the value of each axis that filters offer. `_lo` and `_hi` end 95% intervals.
    """

    cell: str
    """The cell's name, with the further axes that differ in the sweep."""
    label: str
    """The same without them."""
    batch_cell: str
    """The same without rule and multiplier, which cells of one memory need share."""
    role: str
    order: int
    """The place in the tables' order; -1 for the chosen cell, with which charts of few bars begin."""
    rate_rank: int
    """How many of rule and multiplier differ from the chosen cell's."""
    on_front: bool
    """Whether no other cell is both faster and better."""
    compared: bool
    """Whether its speed-up is over another cell."""
    timing: bool | None
    """Whether its timing is valid; None if unknown."""
    gpus: float
    fixed_batch: float
    """The side of the batch that stays the same with more GPUs: per GPU for weak scaling, else global."""
    global_batch: float
    rule: str
    ideal: float
    """The speed-up without losses."""
    deciding_s: float
    """Seconds of a training that the recommendation compares: of training alone, or the total."""
    deciding_s_lo: float
    deciding_s_hi: float
    metric: float
    """The metric of choice."""
    metric_lo: float
    metric_hi: float
    accuracy: float
    """On the test set."""
    accuracy_lo: float
    accuracy_hi: float
    speedup: float
    speedup_lo: float
    speedup_hi: float
    efficiency: float
    """A share, as are the lost ones."""
    lost_data: float
    lost_host: float
    lost_communication: float
    lost_imbalance: float
    lost_compute: float
    lost_rest: float
    to_target: float
    """Seconds."""
    memory: float
    """Gigabytes."""
    panel: str
    """The title of its panel among the speed-ups; with `_order` and `_place`, which the panels are sorted by."""
    panel_order: int
    panel_place: int
    target_panel: str
    target_panel_order: int
    target_panel_place: int
    count_panel: str
    count_panel_order: int
    count_panel_place: int


def with_times(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with the time that the recommendation compares: `time_s` and the ends of its interval."""
    timed = with_valid_timings(trials)
    ok = timed[timed["status"] == Status.OK.value]
    seconds = mean_interval(logs(by_seed(cells["cell_id"], ok.assign(time_s=time_s(ok, None).values), "time_s")))
    ends = zip(_ENDS, (seconds.point, seconds.lo, seconds.hi), strict=True)
    return cells.assign(**{f"time_s{end}": np.exp(values) for end, values in ends})


def cell_rows(cells: pd.DataFrame, recommendation: Recommendation) -> list[CellRow]:
    """Return a row for each cell `with_times`, in the order of the tables, for all charts and filters."""
    differing = varying(cells)
    fixed, metric = FIXED_SIDE[cells["scaling"].iloc[0]], recommendation.terms.metric
    # The page pairs these rows with those of its table, which has the same order.
    ordered = in_order(cells, [*differing, "device_batch_size", "lr_rule", "gpus"])
    records = ordered.to_dict("records")
    first = _first(records, recommendation)
    panels = {"panel": _of_speed(cells), "target_panel": [*differing, "lr_rule"], "count_panel": [*differing, "gpus"]}
    whole = recommendation.deciding_time == "total_time"
    columns = _COLUMNS | {f"deciding_s{end}": f"{'total_s' if whole else 'time_s'}{end}" for end in _ENDS}
    columns |= {f"metric{end}": f"{metric.name}{end}" for end in _ENDS}
    rows: list[dict[str, Any]] = []
    # Memory depends on neither the rule nor the multiplier.
    of_memory = [column for column in differing if column != "lr_multiplier"]
    for index, record in enumerate(records):
        row = {
            "cell": vega.label_of(cell_label(record, differing)),
            "batch_cell": vega.label_of(
                cell_label({key: record[key] for key in record if key != "lr_rule"}, of_memory)
            ),
            "order": index if record is not first else -1,  # charts with few bars begin with the chosen cell
            "gpus": record["gpus"],
            "fixed_batch": record[fixed],
            "global_batch": record["global_batch_size"],
            "rule": vega.label_of(str(record["lr_rule"])),
            "ideal": record["speedup"] / record["efficiency"],
            "compared": record["cell_id"] != record["baseline_cell_id"],
            "timing": None if pd.isna(record["timing_valid"]) else bool(record["timing_valid"]),
            # Cells that differ from the chosen one in the rate alone have its speed: its own rate is drawn, if any.
            "rate_rank": sum(first is None or record[name] != first[name] for name in ("lr_rule", "lr_multiplier")),
            "role": role_of(record, recommendation),
            "label": vega.label_of(cell_label(record)),
        }
        row |= {name: record.get(column, math.nan) for name, column in columns.items()}
        rows.append(row | {f"axis:{name}": vega.filter_value(record[name]) for name in (*differing, *ALWAYS)})
    for name, axes in panels.items():
        titles = [_panel_title(record, axes, cells) for record in records]
        ranks, places = vega.ranked_panels(records, titles, axes, first), vega.panel_places(cells, axes, _panel_title)
        for row, title, rank in zip(rows, titles, ranks, strict=True):
            row |= {name: title, f"{name}_order": rank, f"{name}_place": places[title]}
    front = _front(pd.DataFrame(rows), metric.sign)
    return [cast(CellRow, {**row, "on_front": index in front}) for index, row in enumerate(rows)]


_COLUMNS = {
    **{f"{name}{end}": f"{name}{end}" for name in ("accuracy", "speedup") for end in _ENDS},
    **{name: name for name in ("efficiency", *LOST)},
    "to_target": "time_to_target_s",
    "memory": "peak_memory_gb",
}
"""Fields of the rows that are measured, and their columns."""


def _first(records: Sequence[Row], recommendation: Recommendation) -> Row | None:
    """Return the cell whose panels come first: the chosen one, else the one with the largest speed-up."""
    compared = [row for row in records if row["speedup"] == row["speedup"] and row["timing_valid"] is not False]
    largest = max(compared, key=lambda row: float(row["speedup"]), default=None)
    return next((row for row in records if row["cell_id"] == recommendation.cell_id), largest)


def _of_speed(cells: pd.DataFrame) -> list[str]:
    """Return the columns of the speed-ups' panels: axes in which compared cells differ, without learning rates."""
    # A step does the same work at any rate, and under all of these rules.
    rules = [] if set(cells["lr_rule"]) <= SAME_AT_REFERENCE else ["lr_rule"]
    compared = cells[cells["speedup"].notna() & (cells["cell_id"] != cells["baseline_cell_id"])]
    columns = [column for column in varying(cells) if column != "lr_multiplier"]
    return [column for column in [*columns, *rules] if compared[column].nunique(dropna=False) > 1]


def _panel_title(row: Row, columns: Sequence[str], cells: pd.DataFrame) -> str:
    others = [column for column in columns if column not in ("lr_rule", "gpus")]
    parts = [
        gpus_in_words(row["gpus"], on_cpu=vega.is_on_cpu(cells)) if "gpus" in columns else "",
        str(row["lr_rule"]) if "lr_rule" in columns else "",
        *(f"{short}={vega.filter_value(row[column])}" for column, short in short_names(others).items()),
    ]
    return vega.label_of(", ".join(filter(None, parts)))


def _front(rows: pd.DataFrame, sign: float) -> set[int]:
    """Return the rows of the cells than which no other one is both faster and better, by valid timings."""
    rows = rows.assign(score=sign * rows["metric"])
    known = rows[rows["timing"].eq(True) & rows["deciding_s"].notna() & rows["score"].notna()]
    # A cell is on the front if no faster one has as good a score.
    fastest_first = known.sort_values(["deciding_s", "score"], ascending=[True, False], kind="stable")
    best = fastest_first["score"].cummax().shift(fill_value=-math.inf)
    return set(fastest_first.index[fastest_first["score"] > best])


def role_of(row: Row, recommendation: Recommendation) -> str:
    """Return `chosen` or `baseline` for a cell that the recommendation names so; empty for others."""
    if row["cell_id"] == recommendation.cell_id:
        return "chosen"
    return "baseline" if row["cell_id"] == recommendation.baseline_cell_id else ""


def cell_plots(cells: pd.DataFrame, rows: Sequence[Row], recommendation: Recommendation) -> list[Plot]:
    """Return the charts of cells, in the order of the report; `rows` are those of `cell_rows`."""
    return [
        trade_off(cells, pd.DataFrame(list(rows)), recommendation),
        speedup(cells),
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
    measure = recommendation.measure if recommendation.measure.startswith("time") else "time"
    margin = recommendation.terms.report.margin
    # NaN without a baseline, or if it has no metric.
    baseline = recommendation.baseline.value(metric.name) if recommendation.baseline else math.nan
    shown = known if math.isnan(baseline) else _competing(known, metric.sign, baseline, margin)
    # So wide that the margin's line is in sight.
    domain = vega.clipped(shown["metric_lo"], shown["metric"], shown["metric_hi"], margins.PLOTTED * margin)
    x = vega.spanning("deciding_s", f"{measure} [s]", shown["deciding_s"])
    ends = [0.85 * shown["deciding_s"].min(), 1.1 * shown["deciding_s"].max()]
    place = {
        "x": {**x, "scale": {"domain": ends, **x["scale"], "nice": False, "clamp": True}},
        "y": vega.quantity("metric", metric.label, domain=domain, nice=False, clamp=True),
    }
    look: dict[str, Any] = {"color": vega.coloured_gpus(cells)}
    # More than eight shapes cannot be told apart.
    shapes = {"shape": vega.category("rule", vega.word("lr_rule", cells), sort=None, type="nominal")}
    points = {**place, **look, **(shapes if 1 < known["rule"].nunique() <= 8 else {}), **vega.POINT}
    drawn = "isValid(datum.deciding_s) && isValid(datum.metric)"
    # Many intervals hide the points.
    spread = drawn if len(known) <= _FEW else f"{drawn} && (datum.on_front || datum.role !== '')"
    labels = {**place, "text": {"field": "label"}}
    # A label beside the axis would cover its numbers.
    is_left, named = f"datum.deciding_s < {ends[0] + 0.2 * (ends[1] - ends[0]):.6g}", "datum.role !== ''"
    layers = [
        *(_margin_band(place["y"], baseline, baseline - metric.sign * margin) if baseline == baseline else ()),
        *(vega.interval(axis, {**place, **look}, where=spread) for axis in ("x", "y")),
        vega.mark("line", place, where="datum.on_front", interpolate="step-after", color=vega.GREY),
        {**vega.mark("point", points, where=drawn, size=70, filled=True), "params": [vega.ZOOM, vega.picked("gpus")]},
        vega.mark("point", place, where="datum.role === 'chosen'", size=300, strokeWidth=2, color=vega.GREY),
        vega.mark("text", labels, where=f"{named} && !({is_left})", dy=-15, clip=False),
        vega.mark("text", labels, where=f"{named} && {is_left}", align="left", dx=14, dy=-9, clip=False),
    ]
    return replace(plot, spec={"width": 560, "height": 260, "layer": layers})


def _competing(known: pd.DataFrame, sign: float, baseline: float, margin: float) -> pd.DataFrame:
    """Return the cells that may be chosen and those near them; the chart draws the others on its edges."""
    near = known[sign * (known["metric"] - baseline) >= -margins.PLOTTED * margin]
    named = known[known["role"] != ""]
    in_range = named if len(named) else near
    if named["deciding_s"].nunique() == 1:
        # A chosen baseline is the only named cell, and is compared with the fastest of the others.
        in_range = pd.concat([named, near.nsmallest(_FEWEST_SHOWN, "deciding_s")])
    competing = near[near["deciding_s"] <= 1.1 * in_range["deciding_s"].max()]
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
