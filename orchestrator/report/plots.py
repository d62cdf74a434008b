"""The pictures that are made of the cells: speed-up, efficiency, accuracy, time to target.

Why not linear: the efficiency that each cell of several GPUs keeps, and what took the rest.

The picture of the memory that cells took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.scaling_loss import LOST, LOST_TO
from orchestrator.analysis.validity import is_invalid
from orchestrator.report.plot import (
    BAR_LABEL,
    MOST_BARS,
    Axis,
    Bar,
    Lines,
    Plot,
    Points,
    clipped_axis,
    number,
    power_axis,
    seconds_axis,
    speedup_axis,
    with_lines,
    word,
)
from orchestrator.tables.accuracy import only_validation, why_none
from orchestrator.tables.speedup import one_process
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from orchestrator.text.rows import Row, cell_label, in_order, varying

_BAND = "Bands: 95% intervals over the seeds."
_HOLLOW = "Hollow points: the timing is not valid; the table says why."
_LEAST_BATCHES = 3
"""Of fewer, the lines over GPUs show as much."""
_FAR_ABOVE = 1.5


def cell_plots(cells: pd.DataFrame) -> list[Plot]:
    """In the order of the report."""
    return [speedup(cells), *speedup_by_batch(cells), efficiency(cells), accuracy(cells), time_to_target(cells)]


def speedup(cells: pd.DataFrame) -> Plot:
    """Throughput over the baseline's, with the ideal line."""
    scaling = cells["scaling"].iloc[0]
    plot = Plot(
        name="speedup",
        title="Speed-up",
        about=f"Throughput as a multiple of the baseline cell's, at the same {word(FIXED_SIDE[scaling], cells)}"
        f" ({scaling} scaling). Dashed: ideal speed-up, in proportion to the {word('gpus', cells)}. {_BAND}",
        absent=_why_no_speedup(cells),
    )
    drawn = replace(plot, remarks=one_process(cells))
    return plot if plot.absent else _over_gpus(drawn, cells, "speedup", speedup_axis(cells))


def speedup_by_batch(cells: pd.DataFrame) -> list[Plot]:
    """From which batch on more GPUs pay: the speed-up over the batch that the compared cells share, a line a GPU count.

    No picture with fewer than three batches.
    """
    scaled = cells[_is_compared(cells) & cells["speedup"].notna()]
    batch = FIXED_SIDE[cells["scaling"].iloc[0]]
    if scaled[batch].nunique() < _LEAST_BATCHES:
        return []
    gpus = word("gpus", cells)
    plot = Plot(
        name="speedup_by_batch",
        title="Speed-up by batch size",
        about=f"The {word(batch, cells)} from which more {gpus} pay off: throughput as a multiple of the"
        f" baseline cell's, one line for each number of {gpus}. Dashed: as fast as the baseline. {_BAND}",
        x=power_axis(word(batch, cells), scaled[batch].tolist()),
        y=speedup_axis(cells),
        remarks=_doubts(scaled, "speedup"),
    )
    lines = Lines(
        x=batch,
        y="speedup",
        colour="gpus",
        among=sorted(cells["gpus"].unique()),
        facets=[*varying(cells), "lr_rule"],
        tooltip=_speed_tooltip(cells),
        guides=lambda drawn: [((float(drawn[batch].min()), float(drawn[batch].max())), (1.0, 1.0))],
        marks_invalid=True,
    )
    return [with_lines(plot, scaled, lines)]


def efficiency(cells: pd.DataFrame) -> Plot:
    """Speed-up as a share of the ideal one."""
    plot = Plot(
        name="efficiency",
        title="Efficiency",
        about=f"Speed-up as a share of the ideal one, which is in proportion to the {word('gpus', cells)}. {_BAND}",
        absent=_why_no_speedup(cells),
    )
    if plot.absent:
        return plot
    kept, remarks = _within_reach(cells)
    top = max(1.08, 1.08 * float(kept["efficiency"].max()))
    axis = Axis(label="efficiency", percent=True, lo=0, hi=top)
    return _over_gpus(replace(plot, remarks=remarks), kept, "efficiency", axis)


def accuracy(cells: pd.DataFrame) -> Plot:
    """Accuracy against the batch, a line for each LR rule: on the test set, or else on the validation split."""
    chosen_by = only_validation(cells)
    column = "val_accuracy" if chosen_by else "accuracy"
    kind, more = (
        ("Validation accuracy", " The recommendation uses it; no trial reported a test accuracy.")
        if chosen_by
        else ("Accuracy on the test set", "")
    )
    plot = Plot(
        name="accuracy",
        title="Accuracy by batch size",
        about=f"{kind} by global batch size: up to which batch each learning-rate rule works.{more} {_BAND}",
        x=power_axis("global batch", cells["global_batch_size"].tolist()),
        y=replace(clipped_axis(cells, column), label="validation accuracy" if chosen_by else "accuracy"),
        absent=why_none(cells),
    )
    facets = [*varying(cells), "gpus"]
    lines = Lines(
        x="global_batch_size", y=column, colour="lr_rule", facets=facets, tooltip=_accuracy_tooltip(cells, column)
    )
    return with_lines(plot, cells, lines)


def time_to_target(cells: pd.DataFrame) -> Plot:
    """Training seconds up to the target accuracy."""
    ok = cells[cells["n_ok"] > 0]
    never = ok[ok["time_to_target_s"].isna()]
    reached = cells["time_to_target_s"].notna().any()
    differing = varying(cells)
    remarks = [_not_reached([cell_label(row, differing) for row in never.to_dict("records")])] if len(never) else []
    plot = Plot(
        name="time_to_target",
        title="Time to target",
        about="Training time, without evaluation, up to the end of the first epoch that reached the target validation"
        " accuracy; only cells that reached it with every ok seed.",
        absent="" if reached else "No target was set (trainable.target_accuracy), or no cell reached it.",
        remarks=remarks if reached else (),
    )
    return plot if plot.absent else _over_gpus(plot, cells, "time_to_target_s", seconds_axis(cells))


def _over_gpus(plot: Plot, cells: pd.DataFrame, column: str, axis: Axis) -> Plot:
    drawn = replace(
        plot,
        x=power_axis(word("gpus", cells), cells.loc[cells[column].notna(), "gpus"].tolist()),
        y=axis,
        remarks=[*plot.remarks, *_doubts(cells, column)],
    )
    lines = Lines(
        x="gpus",
        y=column,
        colour=FIXED_SIDE[cells["scaling"].iloc[0]],
        facets=[*varying(cells), "lr_rule"],
        tooltip=_speed_tooltip(cells),
        marks_invalid=True,
    )
    if guides := {"speedup": _ideal, "efficiency": _all}.get(column):  # of what is relative to a baseline
        lines = replace(lines, guides=guides, tells=_compares)
    return with_lines(drawn, cells, lines)


def _within_reach(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Without those whose timing is not valid and far above all valid ones, and a remark.

    One trial on a quarter of an idle GPU may come to 600% of the ideal: the axis would show nothing else.
    """
    invalid = is_invalid(cells["timing_valid"])
    others = cells.loc[~invalid, "efficiency"]
    if others.isna().all():
        return cells, []
    beyond = invalid & (cells["efficiency"] > _FAR_ABOVE * max(1.0, float(others.max())))
    many = figures.counted(int(beyond.sum()), "cell is", "cells are")
    remarks = [f"{many} far above all others and not drawn, because the timing is not valid."] if many else []
    return cells.assign(efficiency=cells["efficiency"].mask(beyond)), remarks


def _doubts(cells: pd.DataFrame, column: str) -> list[str]:
    return [_HOLLOW] if is_invalid(cells.loc[cells[column].notna(), "timing_valid"]).any() else []


def _compares(cells: pd.DataFrame) -> bool:
    """Whether there are others than baselines."""
    return bool(_is_compared(cells).any())


def _is_compared(cells: pd.DataFrame) -> pd.Series[bool]:
    """Not of baselines, each of which is 1 by definition."""
    return cells["cell_id"] != cells["baseline_cell_id"]


def _why_no_speedup(cells: pd.DataFrame) -> str:
    if cells["speedup"].isna().all():
        return "No two cells can be compared: no throughput was reported, or no cell is ok."
    if cells.loc[cells["speedup"].notna(), "gpus"].nunique() == 1 and (cells["speedup"].dropna() == 1).all():
        return "All cells that are ok have the same number of GPUs."
    return ""


def _ideal(cells: pd.DataFrame) -> Sequence[tuple[Points, Points]]:
    """From each baseline's GPUs at 1 up to the panel's most, by way of the counts between, as measured lines go.

    Over a logarithmic axis the ideal is no straight line: one from end to end would be too high at those counts. The
    baseline itself may be in another panel, as one GPU is for DataParallel.
    """
    counts = set(map(float, cells["gpus"]))
    of_baselines = (cells["gpus"] * cells["efficiency"] / cells["speedup"]).dropna().round(6)
    return [
        _multiples(sorted({least, *(each for each in counts if each > least)}))
        for least in sorted(map(float, of_baselines.unique()))
        if least < max(counts)
    ]


def _multiples(counts: Sequence[float]) -> tuple[Points, Points]:
    return tuple(counts), tuple(count / counts[0] for count in counts)


def _all(cells: pd.DataFrame) -> Sequence[tuple[Points, Points]]:
    return [((float(cells["gpus"].min()), float(cells["gpus"].max())), (1.0, 1.0))]


def _not_reached(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"Not drawn, because not every seed reached the target: {'; '.join(names[:3])}{more}."


def _speed_tooltip(cells: pd.DataFrame) -> Callable[[Row], str]:
    differing = varying(cells)

    def tooltip(row: Row) -> str:
        speed = figures.with_interval(row["speedup"], row["speedup_lo"], row["speedup_hi"], figures.times, "×")
        rate = figures.with_interval(row["samples_per_s"], math.nan, math.nan, figures.number)
        target = figures.with_interval(row["time_to_target_s"], math.nan, math.nan, figures.number)
        parts = [
            cell_label(row, differing),
            f"{speed} at {rate} samples/s" if speed else "",
            f"target after {target} s" if target else "",
            f"{row['n_ok']} of {row['n_seeds']} seeds ok",
            "" if row["timing_valid"] else "timing not valid",
        ]
        return "; ".join(filter(None, parts))

    return tooltip


def _accuracy_tooltip(cells: pd.DataFrame, column: str) -> Callable[[Row], str]:
    differing = varying(cells)

    def tooltip(row: Row) -> str:
        reached = figures.plus_minus(row[column], row[f"{column}_lo"], row[f"{column}_hi"])
        return f"{cell_label(row, differing)}: {reached}, {row['n_ok']} seeds"

    return tooltip


_PARTS = {"efficiency": "kept"} | LOST_TO


def why_not_linear(cells: pd.DataFrame) -> Plot:
    """A bar a cell, from its efficiency up to 100%."""
    plot = Plot(
        name="why_not_linear",
        title="Where speed-up is lost",
        about="Why cells with several GPUs fall short of the ideal speed-up: the first part is the efficiency, the"
        " share that is left; the others show where a step takes longer than the baseline's.",
        x=Axis(label="share of an ideal speed-up", percent=True, lo=0),
        absent="Not measured: no cell with several GPUs has both an efficiency and a breakdown of its steps.",
    )
    if not set(LOST) <= set(cells.columns):
        return plot
    known = cells[cells["lost_rest"].notna()]
    if known.empty:
        return plot
    differing = varying(cells)
    rows = in_order(known, [*differing, "lr_rule", "device_batch_size", "gpus"])
    records = rows.to_dict("records")
    bars = [
        Bar(
            label=one_line(cell_label(row, differing), BAR_LABEL), parts=tuple(number(row[column]) for column in _PARTS)
        )
        for row in records[:MOST_BARS]
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
        *dict.fromkeys(f"{cell_label(row, differing)}: {row['remedy']}." for row in records[:3] if row.get("remedy")),
    ]
    columns = [*differing, "gpus", "device_batch_size", "lr_rule", "cell_id", *_PARTS]
    data = rows[list(dict.fromkeys(columns))].assign(remedy=rows.get("remedy"))
    return replace(
        plot,
        legend=tuple(_PARTS.values()),
        bars=bars,
        remarks=[remark for remark in remarks if remark],
        data=data.to_dict("records"),  # type: ignore[arg-type]
    )


_WHOSE = "Peak memory of the fullest device {against}: the maximum over seeds and learning-rate rules."


def memory(cells: pd.DataFrame) -> Plot:
    """Against the batch, or a bar each where most groups of cells have only one; the largest over rules and seeds."""
    label = "peak memory [GB]"
    plot = Plot(
        name="memory",
        title="Memory",
        about=_WHOSE.format(against="by batch size"),
        absent="" if cells["peak_memory_gb"].notna().any() else "Not measured: no trial reported device memory.",
    )
    if plot.absent:
        return plot
    facets = varying(cells)
    groups = cells.groupby([*facets, "gpus", "device_batch_size"], sort=False, dropna=False)
    largest = groups.agg(peak_memory_gb=("peak_memory_gb", "max"), n_ok=("n_ok", "sum")).reset_index()
    if "device" not in facets:
        largest["device"] = next(iter(cells["device"].dropna()), "")  # none where nothing ran
    known = largest[largest["peak_memory_gb"].notna()]
    batches = known.groupby([*facets, "gpus"], dropna=False)["device_batch_size"].nunique()
    if (batches < 2).mean() > 0.5:
        bars = replace(plot, about=_WHOSE.format(against="of each cell"), x=Axis(label=label, lo=0))
        shortest_first = sorted(facets, key=lambda column: known[column].astype(str).str.len().max())
        return _with_bars(bars, known, shortest_first)
    drawn = replace(
        plot,
        x=power_axis(word("device_batch_size", cells), cells["device_batch_size"].tolist()),
        y=Axis(label=label, lo=0, hi=1.08 * float(cells["peak_memory_gb"].max())),
    )
    lines = Lines(x="device_batch_size", y="peak_memory_gb", colour="gpus", facets=facets, tooltip=_tooltip)
    return with_lines(drawn, largest, lines)


def _with_bars(plot: Plot, known: pd.DataFrame, facets: list[str]) -> Plot:
    """Return the plot with a bar for each row, in the order of the facets, the GPUs and the batch."""
    rows = in_order(known, [*facets, "gpus", "device_batch_size"])
    differing = [column for column in facets if rows[column].astype(str).nunique() > 1]
    records = rows.to_dict("records")
    more = len(records) > MOST_BARS
    return replace(
        plot,
        legend=(plot.x.label,),
        bars=[
            Bar(label=one_line(cell_label(row, differing), BAR_LABEL), parts=(float(row["peak_memory_gb"]),))
            for row in records[:MOST_BARS]
        ],
        remarks=[f"{MOST_BARS} of {len(records)} are drawn; the CSV file has all of them."] if more else [],
        data=rows[["gpus", "device_batch_size", *facets, "peak_memory_gb", "n_ok"]].to_dict("records"),  # type: ignore[arg-type]
    )


def _tooltip(row: Row) -> str:
    return f"{cell_label(row, [])}: {row['peak_memory_gb']:.3g} GB"
