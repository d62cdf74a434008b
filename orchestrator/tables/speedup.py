"""The speed-up table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.scaling_loss import LOST_TO, NOTEWORTHY, largest_loss
from orchestrator.analysis.validity import is_invalid, launch_bound, timed_by_one_process
from orchestrator.text import figures
from orchestrator.text.rows import Row, axis, head, in_order, markdown, method, status, varying
from sweeps.status import Status

_SCALING = {
    "weak": "Weak scaling: compared with the ok cell with the fewest gpus and the same batch per device",
    "strong": "Strong scaling: compared with the ok cell with the fewest gpus and the same global batch",
}
_NOT_PAIRED = (
    "If a note says that a comparison is not paired, its interval is Welch's. If the machine's speed drifts during the"
    " sweep, this interval covers about 90% instead of 95%, because the drift cancels only between pairs"
    " (docs/results/statistics.md)."
)
_ONE_PROCESS = (
    "one process timed all seeds. Processes differ in speed by chance. These intervals do not include that, so they are"
    " too narrow (workers=per_seed uses other processes for each seed)."
)
_LAUNCHES = (
    "mostly for kernel launches, in which processes differ by up to half: workers=per_seed with three seeds or more"
    " measures how much, and trainable.cuda_graph=on avoids most launches."
)
_ELSEWHERE = (
    "ran on other machines than the baseline, or on the same ones after a restart (same_machines): differences between"
    " machines affect the speed-up, and are not in its interval."
)
_SLOWER_CLOCK = 0.02
"""Ratio to the baseline's clock below which the clock explains what looks like time for the exchange of gradients."""
_WHY_EMPTY = {
    "samples_per_s": "not reported",
    "speedup": "no two cells to compare",
    "epoch_s": "not reported",
    "time_to_target_s": "no target, or not reached",
    "energy_j": "not measured",
    "gpu_util": "not measured",
    "power_w": "not measured",
    "peak_memory_gb": "not measured",
    "cost": "no price, or no GPUs",
}


def speedup_markdown(cells: pd.DataFrame) -> str:
    """One row per cell, grouped by the side of the batch that is kept as GPUs are added, and by LR rule."""
    if cells.empty:
        return "# Speed-up\n\nNo trial has ended yet.\n"
    about = [
        f"{_SCALING[cells['scaling'].iloc[0]]}, or with the baseline that the sweep names.",
        "Efficiency: the speed-up as a share of the ideal one, the ratio of the numbers of gpus.",
        f"Brackets: 95% intervals ({method(cells)}) of log ratios, paired by seed if both cells have the same ok"
        " seeds.",
    ]
    if cells["speedup_paired"].eq(False).any():
        about.append(_NOT_PAIRED)
    about += [*one_process(cells), *_launches(cells), *_elsewhere(cells)]
    if (most := cells["most_co_tenants"].max()) > 0:
        others = "another trial" if most == 1 else f"up to {most:.0f} other trials"
        about.append(f"Trials ran beside {others} on the node's other devices (co_tenants in trials.csv).")
    if is_invalid(cells["timing_valid"]).any():
        about.append("† This timing is not valid; the note says why.")
    return "\n".join([*head(cells, "Speed-up"), *about, "", markdown(speedup_frame(cells)), "", *_below(cells)])


def one_process(cells: pd.DataFrame) -> list[str]:
    """A sentence if intervals over seeds do not cover how processes differ."""
    count = int(timed_by_one_process(cells).sum())
    return [f"In {figures.counted(count, 'cell', 'cells')} {_ONE_PROCESS}"] if count else []


def _launches(cells: pd.DataFrame) -> list[str]:
    """A sentence if GPUs wait for processes, whose speed varies by chance."""
    shares = cells["launch_share"][launch_bound(cells)]
    if shares.empty:
        return []
    where = f"In {figures.counted(len(shares), 'cell', 'cells')} GPUs wait for their processes"
    return [f"{where} ({'up to ' * (len(shares) > 1)}{figures.percent(shares.max())}% of a step), {_LAUNCHES}"]


def _elsewhere(cells: pd.DataFrame) -> list[str]:
    """A sentence if speed-ups compare different machines, of a cluster or because the sweep was continued elsewhere."""
    count = int(cells["same_machines"].eq(False).sum())
    return [f"{figures.counted(count, 'cell', 'cells')} {_ELSEWHERE}"] if count else []


def _below(cells: pd.DataFrame) -> list[str]:
    return [*_remedies(cells), *_clocks(cells), *_without_baseline(cells), *_empty(cells)]


def speedup_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """The table as text, without the columns that are empty in every row."""
    differing = varying(cells)
    ordered = in_order(cells, [*differing, FIXED_SIDE[cells["scaling"].iloc[0]], "lr_rule", "gpus"])
    table = pd.DataFrame([_row(row, differing) for row in ordered.to_dict("records")])
    if (table["status"] == Status.OK.value).all():
        table = table.drop(columns="status")
    return table.loc[:, (table != "").any()]


def _row(row: Row, differing: Sequence[str]) -> dict[str, Any]:
    is_baseline = row["cell_id"] == row["baseline_cell_id"]
    return {
        **{axis(column): figures.asked(row[column]) for column in differing},
        "device batch": row["device_batch_size"],
        "LR rule": row["lr_rule"],
        "gpus": f"{row['gpus']:g}",
        "global batch": row["global_batch_size"],
        "samples/s": _timing(row, "samples_per_s", figures.number),
        "speed-up": "1× (baseline)" if is_baseline else _timing(row, "speedup", figures.times, "×"),
        "efficiency": "" if is_baseline else _point(row, "efficiency", figures.percent, "%"),
        "lost most to": _lost(row),
        "to target": figures.with_interval(row["speedup_to_target"], math.nan, math.nan, figures.times, "×"),
        "epoch [s]": _point(row, "epoch_s", figures.number),
        "status": status(row),
        "note": row["note"],
    }


def _timing(row: Row, column: str, form: figures.Form, sign: str = "") -> str:
    text = figures.with_interval(row[column], row[f"{column}_lo"], row[f"{column}_hi"], form, sign)
    return f"{text} †" if text and not row["timing_valid"] else text


def _point(row: Row, column: str, form: figures.Form, sign: str = "") -> str:
    """The efficiency without its interval, which is as wide as that of the throughput next to it."""
    text = figures.with_interval(row[column], math.nan, math.nan, form, sign)
    return f"{text} †" if text and row["timing_valid"] is False else text


def _lost(row: Row) -> str:
    """`exchanging gradients (12%)`, as a percentage of the ideal speed-up."""
    largest = largest_loss(row)
    return f"{LOST_TO[largest]} ({figures.percent(row[largest])}%)" if largest else ""


def _remedies(cells: pd.DataFrame) -> list[str]:
    """Remedies for the largest losses, each once, and cells whose losses are unexplained."""
    remedies = [f"- {figures.plain(remedy)}" for remedy in dict.fromkeys(cells["remedy"]) if remedy]
    lines = ["Against the largest losses:", "", *remedies, ""] if remedies else []
    unknown = (cells["efficiency"] < 1 - NOTEWORTHY) & (cells["gpus"] > 1) & cells["lost_rest"].isna()
    if count := int((unknown & (cells["cell_id"] != cells["baseline_cell_id"])).sum()):
        cell_is = figures.counted(count, "cell is", "cells are")
        lines += [f"Why {cell_is} not linear is not known: the trials do not report the parts of a step.", ""]
    return lines


def _clocks(cells: pd.DataFrame) -> list[str]:
    """A sentence if cells and their baselines ran at different clocks: at its power limit a GPU slows down."""
    by_cell = cells.set_index("cell_id")["gpu_clock_mhz"]
    slower = 1 - cells["gpu_clock_mhz"] / cells["baseline_cell_id"].map(by_cell)
    if not (count := int((slower >= _SLOWER_CLOCK).sum())):
        return []
    return [
        f"In {figures.counted(count, 'cell', 'cells')} GPUs clocked up to {figures.percent(slower.max())}% lower than"
        " in the baseline (gpu_clock_mhz), as they do at their power limit, which explains that part of the loss. GPUs"
        " slow down within seconds: trainable.warmup_s=2 trainable.window_s=4 compare steady clocks.",
        "",
    ]


def _without_baseline(cells: pd.DataFrame) -> list[str]:
    empty = cells["speedup"].isna() & cells["samples_per_s"].notna()
    if not empty.any() or empty.all():
        return []
    many = figures.counted(int(empty.sum()), "cell has", "cells have")
    return [f"{many} no speed-up: there is no ok cell that differs only in its gpus.", ""]


def _empty(cells: pd.DataFrame) -> list[str]:
    empty = [f"{column} ({why})" for column, why in _WHY_EMPTY.items() if cells[column].isna().all()]
    return [f"Empty in summary.csv: {', '.join(empty)}.", ""] if empty else []
