"""The report's plots of cells: speed-up, efficiency, accuracy, time to target, lost efficiency and memory.

Each function returns a `Plot` as a plain value. A plot that cannot be drawn has its reason in `absent`.
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
"""With fewer batches the lines over GPUs show the same."""
_FAR_ABOVE = 1.5
_PARTS = {"efficiency": "kept"} | LOST_TO
_MEMORY = "Peak memory of the fullest device {against}: the maximum over seeds and learning-rate rules."


def cell_plots(cells: pd.DataFrame) -> list[Plot]:
    """Return the plots of figures by GPUs and batch, in the order of the report."""
    return [speedup(cells), *speedup_by_batch(cells), efficiency(cells), accuracy(cells), time_to_target(cells)]


def speedup(cells: pd.DataFrame) -> Plot:
    """Return the plot of throughput relative to the baseline, with the ideal line."""
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
    """Return the plot of the speed-up by batch, one line per GPU count: from which batch on more GPUs pay off.

    With fewer than three batches there is no plot.
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
        guides=_level_one(batch),
        marks_invalid=True,
    )
    return [with_lines(plot, scaled, lines)]


def efficiency(cells: pd.DataFrame) -> Plot:
    """Return the plot of the speed-up as a share of the ideal speed-up.

    Cells without a valid timing that are far above all valid ones are left out: one trial on a quarter of an idle GPU
    may reach 600% of the ideal, and the axis would show nothing else.
    """
    plot = Plot(
        name="efficiency",
        title="Efficiency",
        about=f"Speed-up as a share of the ideal one, which is in proportion to the {word('gpus', cells)}. {_BAND}",
        absent=_why_no_speedup(cells),
    )
    if plot.absent:
        return plot
    invalid = is_invalid(cells["timing_valid"])
    valid = cells.loc[~invalid, "efficiency"].dropna()
    highest = max(1.0, float(valid.max())) if len(valid) else math.inf
    beyond = invalid & (cells["efficiency"] > _FAR_ABOVE * highest)
    shown = cells.assign(efficiency=cells["efficiency"].mask(beyond))
    many = figures.counted(int(beyond.sum()), "cell is", "cells are")
    remarks = [f"{many} far above all others and not drawn, because the timing is not valid."] if many else []
    axis = Axis(label="efficiency", percent=True, lo=0, hi=max(1.08, 1.08 * float(shown["efficiency"].max())))
    return _over_gpus(replace(plot, remarks=remarks), shown, "efficiency", axis)


def accuracy(cells: pd.DataFrame) -> Plot:
    """Return the plot of accuracy by global batch, one line per rule: on the test set, else on the validation split."""
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
    differing = varying(cells)

    def tooltip(row: Row) -> str:
        reached = figures.plus_minus(row[column], row[f"{column}_lo"], row[f"{column}_hi"])
        return f"{cell_label(row, differing)}: {reached}, {row['n_ok']} seeds"

    lines = Lines(x="global_batch_size", y=column, colour="lr_rule", facets=facets, tooltip=tooltip)
    return with_lines(plot, cells, lines)


def time_to_target(cells: pd.DataFrame) -> Plot:
    """Return the plot of the training seconds up to the target accuracy."""
    never = cells[(cells["n_ok"] > 0) & cells["time_to_target_s"].isna()]
    reached = cells["time_to_target_s"].notna().any()
    differing = varying(cells)
    names = [cell_label(row, differing) for row in never.head(3).to_dict("records")]
    more = f" and {len(never) - 3} more" if len(never) > 3 else ""
    remarks = [f"Not drawn, because not every seed reached the target: {'; '.join(names)}{more}."] if names else []
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
    """Return the plot with lines over GPUs, one for each value of the batch that stays the same."""
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
    if guides := {"speedup": _ideal_speedup, "efficiency": _level_one("gpus")}.get(column):
        lines = replace(lines, guides=guides, informs=lambda group: bool(_is_compared(group).any()))
    return with_lines(drawn, cells, lines)


def _doubts(cells: pd.DataFrame, column: str) -> list[str]:
    return [_HOLLOW] if is_invalid(cells.loc[cells[column].notna(), "timing_valid"]).any() else []


def _is_compared(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether it is no baseline, which is 1 by definition."""
    return cells["cell_id"] != cells["baseline_cell_id"]


def _why_no_speedup(cells: pd.DataFrame) -> str:
    """Return why there is no speed-up to draw; empty if there is one."""
    if cells["speedup"].isna().all():
        return "No two cells can be compared: no throughput was reported, or no cell is ok."
    if cells.loc[cells["speedup"].notna(), "gpus"].nunique() == 1 and (cells["speedup"].dropna() == 1).all():
        return "All cells that are ok have the same number of GPUs."
    return ""


def _ideal_speedup(cells: pd.DataFrame) -> Sequence[tuple[Points, Points]]:
    """Return a line from each baseline's GPUs at 1 to the panel's most GPUs, with the counts between.

    On a logarithmic axis a line without the counts between would be too high there. The baseline itself may be in
    another panel, as one GPU is for DataParallel.
    """
    counts = set(map(float, cells["gpus"]))
    of_baselines = (cells["gpus"] * cells["efficiency"] / cells["speedup"]).dropna().round(6)
    lines = []
    for least in sorted(map(float, of_baselines.unique())):
        if least < max(counts):
            x = sorted({least, *(each for each in counts if each > least)})
            lines.append((tuple(x), tuple(count / least for count in x)))
    return lines


def _level_one(column: str) -> Callable[[pd.DataFrame], Sequence[tuple[Points, Points]]]:
    """Return guides of a panel with one level line at 1, as long as the cells' range of the column."""
    return lambda cells: [((float(cells[column].min()), float(cells[column].max())), (1.0, 1.0))]


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


def why_not_linear(cells: pd.DataFrame) -> Plot:
    """Return the plot with one bar per cell on several GPUs: the efficiency it keeps, and what takes the rest."""
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


def memory(cells: pd.DataFrame) -> Plot:
    """Return the plot of peak memory by batch, or with one bar each if most groups of cells have only one batch."""
    label = "peak memory [GB]"
    plot = Plot(
        name="memory",
        title="Memory",
        about=_MEMORY.format(against="by batch size"),
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
        bars = replace(plot, about=_MEMORY.format(against="of each cell"), x=Axis(label=label, lo=0))
        shortest_first = sorted(facets, key=lambda column: known[column].astype(str).str.len().max())
        return _with_bars(bars, known, shortest_first)
    drawn = replace(
        plot,
        x=power_axis(word("device_batch_size", cells), cells["device_batch_size"].tolist()),
        y=Axis(label=label, lo=0, hi=1.08 * float(cells["peak_memory_gb"].max())),
    )
    lines = Lines(
        x="device_batch_size",
        y="peak_memory_gb",
        colour="gpus",
        facets=facets,
        tooltip=lambda row: f"{cell_label(row)}: {row['peak_memory_gb']:.3g} GB",
    )
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
