"""Trials that are not ok and timings that are not valid, and whether the answer needs any of them.

The terminal and the report show the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.eligibility import without_result
from orchestrator.decision.recommendation import CLEAR, NO_OBJECTIVE, SPEED_ONLY
from orchestrator.tables.candidates import by_rate
from orchestrator.tables.recommendation_sentences import filled
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.telemetry.timing_gate import FOREIGN_CPU, SLOWER, SWAPPED_PAGES, Fault
from orchestrator.text.cell_labels import cell_label
from orchestrator.text.failed_cells import not_ok_by_status
from sweeps.gpus import gpu_named
from sweeps.status import Status
from sweeps.trial import FEWEST_WINDOW_STEPS, SHORTEST_WINDOW_S

_SIZE = ("gpus", "device_batch_size")

_CLEAR_ROOM = 0.8
"""A cell that takes less than this part of its GPU's memory is not about to run out of it."""


def not_counted(end: SweepEnd) -> str:
    """Return how many trials and timings do not count, and which of them touch the answer; empty if all count."""
    trials, cells, recommendation = end.trials, end.cells, end.recommendation
    ok = trials["status"] == Status.OK.value
    counts = is_valid(trials["timing_valid"]) | (not _has_objective(end))
    faults = trials.loc[ok & ~counts, "timing_fault"]
    if ok.all() and faults.empty:
        return ""
    n_seeds = cells.set_index("cell_id")["n_seeds"]
    answer = (recommendation.chosen, recommendation.baseline, recommendation.cell(recommendation.safe_cell_id))
    of_gpus = (recommendation.cell(cell.cell_id) for step in recommendation.gpu_steps for cell in step.cells)
    cells_of_answer = {cell.cell_id: cell for cell in (*answer, *recommendation.rivals, *of_gpus) if cell}.values()
    out_of_memory = cells[cells["status"] == Status.OOM.value]
    # Without an answer there is room for the reason.
    is_infeasible = (trials["status"] == Status.INFEASIBLE.value) & (recommendation.chosen is None)
    reasons = trials.loc[is_infeasible, "note"].astype(str).str.split(" (", regex=False).str[0].unique()
    values = {
        "statuses": trials.loc[~ok, "status"].value_counts().to_dict(),
        "places": {
            Status.OOM.value: _places_of_oom(out_of_memory) if len(out_of_memory) < len(cells) else "",
            Status.INFEASIBLE.value: ("e.g. " if len(reasons) > 1 else "") + reasons[0] if len(reasons) else "",
        },
        "faults": int(len(faults)),
        "fault": faults.iloc[0] if faults.nunique() == 1 else None,
        "has_answer": recommendation.chosen is not None,
        "enough_for": recommendation.verdict.upper() if recommendation.verdict in (CLEAR, SPEED_ONLY) else "",
        "choice": recommendation.chosen.name if recommendation.chosen else "",
        **_memory(cells[cells["cell_id"] == recommendation.cell_id], out_of_memory),
        "touched": [
            {"name": by_rate([cell], recommendation.chosen), "timed": cell.n_timed, "n": int(n_seeds[cell.cell_id])}
            for cell in cells_of_answer
            if cell.n_timed < n_seeds[cell.cell_id]
        ],
        "may_be_better": int(without_result(cells, trials).sum()),
    }
    return filled("not_counted", values)


def _places_of_oom(out_of_memory: pd.DataFrame) -> str:
    """Return the GPUs, batches and rules of these cells, up to three by name."""
    # Cells that differ in further axes, such as the rate, have one place.
    places = list(dict.fromkeys(map(cell_label, out_of_memory.to_dict("records"))))
    if len(places) > 3:
        return f"{len(out_of_memory)} cells, e.g. {places[0]}"
    return ", ".join(places)


def _memory(chosen: pd.DataFrame, out_of_memory: pd.DataFrame) -> dict[str, Any]:
    """Return the peak memory of the chosen cell's fullest GPU and that GPU's memory, NaN if unknown; `lacks_memory`.

    It lacks memory if a cell with the same GPUs and batch ran out of it, and the GPU has no clear room.
    """
    gpu = gpu_named(str(chosen["device"].max()))
    peak_gb, whole_gb = float(chosen["peak_memory_gb"].max()), gpu.memory_gb if gpu else math.nan
    is_alike = not chosen.merge(out_of_memory, on=list(_SIZE)).empty
    lacks_memory = is_alike and not peak_gb < _CLEAR_ROOM * whole_gb
    return {"lacks_memory": lacks_memory, "peak_gb": peak_gb, "whole_gb": whole_gb}


def _has_objective(end: SweepEnd) -> bool:
    """Return whether cells were compared, so that the validity of timings matters."""
    return end.recommendation.terms.report.objective != NO_OBJECTIVE


def details_of_not_counted(end: SweepEnd) -> Iterator[tuple[str, str]]:
    """Yield which cells are not ok, and a line for each fault of timings with its causes, as (label, text)."""
    # The line on trials has the places of those that are out of memory.
    if names := not_ok_by_status(end.cells[end.cells["status"] != Status.OOM.value]):
        yield "Not ok", names
    if _has_objective(end):
        yield from _faults(end.trials)


_CAUSES = (
    ("foreign_cpu", FOREIGN_CPU, "other programs, up to {:.0%} CPU"),
    ("foreign_gpu_processes", 0, "other programs on the GPUs, up to {:.0f}"),
    ("throttled_periods", 0, "the CPU quota ran out"),
    ("swapped_pages", SWAPPED_PAGES, "swapping"),
)
"""Causes of a disturbed timing: the column, the value above which it does, and words for its largest value."""


def _faults(trials: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield a line for each fault of timings, with the causes of disturbances."""
    ok = trials[trials["status"] == Status.OK.value]
    disturbed = ok[ok["timing_fault"] == Fault.DISTURBED.value]
    words = {
        Fault.DISTURBED: ("Disturbed", "; ".join(_causes(disturbed))),
        Fault.TOO_SHORT: (
            "Too short",
            f"less than {SHORTEST_WINDOW_S:g} s or {FEWEST_WINDOW_STEPS} steps; raise the trials' budget",
        ),
        Fault.ASSUMED_SAMPLES: ("Assumed", "steps × the trial's batch; declare trainable.samples_per_epoch"),
        Fault.TOO_FEW_WORKERS: ("Too few", "fewer processes than GPUs: nothing is known about more GPUs"),
        Fault.SEVERAL_MODELS: ("Mixed", "several device models; cluster.gpu_type chooses one"),
        Fault.STRAGGLER: ("Slow", f"{SLOWER:g} times the median time or more, against other seeds of their cell"),
        Fault.SHARED: ("Shared", "trials ran side by side; resources.timing=auto runs them alone"),
    }
    for fault, (label, why) in words.items():
        if count := int((ok["timing_fault"] == fault.value).sum()):
            yield label, f"{count} of {len(ok)} timings ({why})"


def _causes(disturbed: pd.DataFrame) -> Iterator[str]:
    """Yield the causes of these disturbances, each once."""
    # A disturbance without a measured cause was noticed by the clocks alone.
    unexplained = pd.Series(True, index=disturbed.index)
    programs = disturbed["foreign_cpu_by"].dropna() if "foreign_cpu_by" in disturbed else pd.Series(dtype=object)
    for column, limit, words in _CAUSES:
        if column not in disturbed:
            continue
        values = pd.to_numeric(disturbed[column], errors="coerce")
        if (values > limit).any():
            unexplained &= ~(values > limit)
            mostly = f", mostly {programs.mode().iloc[0]}" if column == "foreign_cpu" and len(programs) else ""
            yield words.format(values.max()) + mostly
    if unexplained.any():
        yield "slow or throttled clocks"
