"""Which trials ran beside others on the same node, each on devices of its own: they share its memory, power and host.

By the wall clock, accurate to a second or two: it says which trials overlapped, not how long anything took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from orchestrator.journal.record import TrialRecord

MEETING_S = 2.0
"""Trials that overlap by less ran one after another: ends are recorded to the second."""


def cotenants(records: Sequence[TrialRecord]) -> list[float]:
    """For each record how many others ran on its host at some time while it did; NaN where host or time is unknown.

    If it ran on several hosts, the one with the most counts.
    """
    ends = np.array([_end_s(record) for record in records], dtype="float64")
    starts = ends - np.array([record.wall_s for record in records], dtype="float64")
    found = np.full(len(records), np.nan)
    there: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        for machine in record.machines:
            there.setdefault(machine, []).append(place)
    for places in there.values():
        own = np.array(places)
        own = own[~np.isnan(starts[own])]
        found[own] = np.fmax(found[own], 0)
        own = own[ends[own] - starts[own] > MEETING_S]  # shorter ones meet nobody
        began_before = np.searchsorted(np.sort(starts[own]), ends[own] - MEETING_S, side="right")
        over_by_then = np.searchsorted(np.sort(ends[own]), starts[own] + MEETING_S, side="left")
        found[own] = np.fmax(found[own], began_before - over_by_then - 1)
    return [float(each) for each in found]


def _end_s(record: TrialRecord) -> float:
    try:
        return datetime.fromisoformat(record.finished_at).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan
