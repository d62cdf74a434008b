"""Trials and ranks that were much slower than their equals: flagged in the table, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from orchestrator.journal.outcome import figure
from orchestrator.journal.record import TrialRecord
from sweeps.status import Status

SLOWER = 1.3
"""How many times as long as the median of its equals a straggler takes."""
FEWEST_SEEDS = 3
"""With two trials it is unknown which of them is the slow one."""

_OF_A_STEP = ("step_data_s", "step_host_s", "step_compute_s")


def stragglers(records: Sequence[TrialRecord]) -> dict[str, str]:
    """By trial, a sentence for each ok one that is slow among the seeds of its cell, or has a rank that is."""
    ok = [record for record in records if record.status is Status.OK]
    rates: dict[str, list[float]] = {}
    for record in ok:
        if rate := figure(record.metrics, "samples_per_s"):
            rates.setdefault(record.cell_id, []).append(rate)
    notes = {record.trial_id: _note(record, rates.get(record.cell_id, [])) for record in ok}
    return {trial_id: sentence for trial_id, sentence in notes.items() if sentence}


def _note(record: TrialRecord, of_cell: Sequence[float]) -> str:
    found = []
    rank_times = _slowest_rank(record.metrics)
    if rank_times >= SLOWER:
        name = f"rank {record.metrics['slowest_rank']}" if "slowest_rank" in record.metrics else "the slowest rank"
        found.append(f"straggler: {name} takes {rank_times:.1f} times the median rank's time for a step")
    rate = figure(record.metrics, "samples_per_s")
    if rate and len(of_cell) >= FEWEST_SEEDS and median(of_cell) >= SLOWER * rate:
        host = record.provenance.get("host")
        where = f" on {host}" if host else ""
        found.append(
            f"straggler: this trial{where} took {median(of_cell) / rate:.1f} times as long as its cell's median"
        )
    return "; ".join(found)


def _slowest_rank(metrics: Mapping[str, Any]) -> float:
    """The slowest rank's own time for a step over the median rank's; 1 if not measured."""
    parts, imbalance_s = [figure(metrics, name) for name in _OF_A_STEP], figure(metrics, "step_imbalance_s")
    own_s = sum(part for part in parts if part is not None)
    return 1 + imbalance_s / own_s if imbalance_s is not None and own_s > 0 else 1.0
