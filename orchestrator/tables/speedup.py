"""The table of scaling in Markdown, and the sentences about what its figures leave out."""

from __future__ import annotations

import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.scaling_loss import NOTEWORTHY, largest_loss, words_of
from orchestrator.analysis.validity import is_invalid, launch_bound, timed_by_one_process
from orchestrator.text import numbers
from orchestrator.text.cell_labels import (
    Row,
    cell_label,
    figure,
    head,
    in_order,
    method,
    status,
    throughput_of,
    timed_figure,
    varying,
)
from orchestrator.text.text_tables import markdown, without_empty
from sweeps.status import Status

_SCALING = {
    "weak": "Weak scaling: the baseline is the ok cell with the fewest GPUs and the same batch per GPU",
    "strong": "Strong scaling: the baseline is the ok cell with the fewest GPUs and the same global batch",
}
_NOT_PAIRED = (
    "If a note says that a comparison is not paired, its interval is Welch's. If the machine's speed drifts during the"
    " sweep, this interval covers about 90% instead of 95%, because the drift cancels only between pairs"
    " (docs/results/statistics.md)."
)
_SOURCES = {
    "counted": "counted in the command's processes",
    "declared": "from the declared samples of an epoch",
    "clock": "those that the command prints",
    "assumed": "steps × the trial's batch, which nothing confirms",
}
"""Words for where a rate is from."""

_ONE_PROCESS = (
    "one process timed all seeds, or it is unknown how many did. Processes differ in speed by chance. These intervals"
    " do not include that difference, so they are too narrow. workers=per_seed uses another process for each seed."
)
_LAUNCHES = (
    "mostly for kernel launches. Processes differ in launch time by up to half: workers=per_seed with three seeds or"
    " more measures the difference, and trainable.cuda_graph=on avoids most launches."
)
_ELSEWHERE = (
    "ran on other machines than the baseline, or on the same machines after a restart (same_machines). Differences"
    " between machines affect the scaling, and its interval does not include them."
)
_SHARED = (
    "the timings of trials with the same steps and seeds under another learning rate, which does not change the speed"
    " (timed_with)."
)
_SLOWER_CLOCK = 0.02
"""From this relative difference on, a clock below the baseline's explains part of the loss."""
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
    """Return the document: how to read the table, the table, and what explains its gaps."""
    if cells.empty:
        return "# Scaling\n\nNo trial has ended yet.\n"
    about = [
        f"{_SCALING[cells['scaling'].iloc[0]]}, or the baseline that the sweep names.",
        "Scaling: the throughput over the baseline's. Efficiency: its share of the ratio of GPUs.",
        f"Brackets: 95% intervals ({method(cells)}) of log ratios, paired by seed if both cells have the same ok"
        " seeds.",
    ]
    if cells["speedup_paired"].eq(False).any():
        about.append(_NOT_PAIRED)
    about += one_process(cells)
    if shared := int(cells["timed_with"].notna().sum()):
        about.append(f"{numbers.counted(shared, 'cell has', 'cells have')} {_SHARED}")
    launches = cells["launch_share"][launch_bound(cells)]
    if len(launches):
        where = f"In {numbers.counted(len(launches), 'cell', 'cells')} GPUs wait for their processes"
        share = f"{'up to ' if len(launches) > 1 else ''}{numbers.percent(launches.max())}% of a step"
        about.append(f"{where} ({share}), {_LAUNCHES}")
    if elsewhere := int(cells["same_machines"].eq(False).sum()):
        about.append(f"{numbers.counted(elsewhere, 'cell', 'cells')} {_ELSEWHERE}")
    counts = {words: int((cells["rate_source"] == name).sum()) for name, words in _SOURCES.items()}
    of_cells = [f"{words} ({numbers.counted(count, 'cell', 'cells')})" for words, count in counts.items() if count]
    if of_cells:
        about.append(f"The rates are {', '.join(of_cells)}.")
    if (most := cells["most_co_tenants"].max()) > 0:
        others = "another trial" if most == 1 else f"up to {most:.0f} other trials"
        about.append(f"Trials ran beside {others} on the node's other devices (co_tenants in trials.csv).")
    if is_invalid(cells["timing_valid"]).any():
        about.append("† This timing is not valid; the note says why.")
    table = markdown(speedup_frame(cells))
    below = [*_remedies(cells), *_slower_clocks(cells), *_gaps(cells)]
    return "\n".join([*head(cells, "Scaling"), *about, "", table, "", *below])


def one_process(cells: pd.DataFrame) -> list[str]:
    """Return a sentence if one process timed all seeds of a cell, else nothing."""
    # Without the difference between processes, intervals are too narrow.
    count = int(timed_by_one_process(cells).sum())
    return [f"In {numbers.counted(count, 'cell', 'cells')} {_ONE_PROCESS}"] if count else []


def speedup_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text, one row per cell, without the columns that are empty in every row.

    Cells that differ in GPUs alone follow one another: the batch that stays the same comes first in the order.
    """
    differing, (unit, throughput) = varying(cells), throughput_of(cells)
    ordered = in_order(cells, [*differing, FIXED_SIDE[cells["scaling"].iloc[0]], "lr_rule", "gpus"])
    rows = []
    for row in ordered.to_dict("records"):
        lost = largest_loss(row)
        rows.append(
            {
                "cell": cell_label(row, differing),
                "global batch": row["global_batch_size"],
                unit: timed_figure(row, throughput),
                "scaling": scaling_text(row),
                # Without its interval, which is as wide as that of the scaling.
                "efficiency": efficiency_text(row, interval=False),
                "lost most to": f"{words_of(lost, row, cells)} ({numbers.percent(row[lost])}%)" if lost else "",
                "to target": figure(row, "speedup_to_target", numbers.times, "×", interval=False),
                "epoch [s]": timed_figure(row, "epoch_s", interval=False),
                "status": status(row),
                "note": row["note"],
            }
        )
    # A status is noise if all cells are ok.
    table = pd.DataFrame(rows)
    if (table["status"] == Status.OK.value).all():
        table = table.drop(columns="status")
    return without_empty(table)


def scaling_text(row: Row) -> str:
    """Return a cell's scaling; the baseline's is 1 by definition."""
    return "1× (baseline)" if _is_baseline(row) else timed_figure(row, "speedup", numbers.times, "×")


def efficiency_text(row: Row, *, interval: bool = True) -> str:
    """Return a cell's efficiency; empty for the baseline, whose efficiency says nothing."""
    return "" if _is_baseline(row) else timed_figure(row, "efficiency", numbers.percent, "%", interval=interval)


def _is_baseline(row: Row) -> bool:
    return bool(row["cell_id"] == row["baseline_cell_id"])


def _remedies(cells: pd.DataFrame) -> list[str]:
    """Return the remedies for the largest losses, each once, and the number of cells whose loss has no known cause."""
    # Many cells lose to the same cause.
    remedies = [f"- {numbers.plain(remedy)}" for remedy in dict.fromkeys(cells["remedy"]) if remedy]
    lines = ["Against the largest losses:", "", *remedies, ""] if remedies else []
    unknown = (cells["efficiency"] < 1 - NOTEWORTHY) & (cells["gpus"] > 1) & cells["lost_rest"].isna()
    if count := int((unknown & (cells["cell_id"] != cells["baseline_cell_id"])).sum()):
        cells_lose = numbers.counted(count, "cell loses", "cells lose")
        lines += [f"{cells_lose} scaling for an unknown reason: the trials do not report the parts of a step.", ""]
    return lines


def _slower_clocks(cells: pd.DataFrame) -> list[str]:
    """Return a sentence if GPUs ran at lower clocks than in the baseline: at its power limit a GPU slows down."""
    # Each cell is compared with its own baseline, which may be on other devices.
    by_cell = cells.set_index("cell_id")["gpu_clock_mhz"]
    slower = 1 - cells["gpu_clock_mhz"] / cells["baseline_cell_id"].map(by_cell)
    if not (count := int((slower >= _SLOWER_CLOCK).sum())):
        return []
    return [
        f"In {numbers.counted(count, 'cell', 'cells')} GPUs clocked up to {numbers.percent(slower.max())}% lower than"
        " in the baseline (gpu_clock_mhz), as they do at their power limit. That explains part of the loss. GPUs slow"
        " down within seconds: trainable.warmup_s=2 trainable.window_s=4 compare steady clocks.",
        "",
    ]


def _gaps(cells: pd.DataFrame) -> list[str]:
    """Return sentences on cells without a scaling, and on columns of summary.csv that are empty."""
    lines = []
    # If no cell has a scaling, the list of empty columns says so.
    missing = cells["speedup"].isna() & cells["samples_per_s"].notna()
    if missing.any() and not missing.all():
        many = numbers.counted(int(missing.sum()), "cell has", "cells have")
        lines += [f"{many} no scaling: there is no ok cell that differs only in its number of GPUs.", ""]
    # Readers ask for these columns, so their absence has a reason.
    empty = [f"{column} ({why})" for column, why in _WHY_EMPTY.items() if cells[column].isna().all()]
    return [*lines, f"Empty in summary.csv: {', '.join(empty)}.", ""] if empty else lines
