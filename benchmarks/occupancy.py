"""Compute from a sweep's journal how much of the GPUs' time its trials held. The goal is at most a tenth idle.

    python -m benchmarks.occupancy RESULTS/journal.jsonl [--gpus 4] [--apart-s 60] [--out FILE.json]

The time runs from the start of the first trial to the end of the last. If nothing ran for longer than `--apart-s`,
the sweep was interrupted and continued, and its parts are reported separately. A gang holds its GPUs also while its
processes start. Ends are known to the second, so a part should last for minutes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import tell
from orchestrator.store.journal import replay
from orchestrator.store.record import Kind, TrialRecord
from orchestrator.store.record_checks import checked_record


@dataclass(frozen=True, kw_only=True)
class ScheduledTrial:
    """One attempt on its GPUs, in seconds since the epoch."""

    start_s: float
    end_s: float
    gpus: float


def stay(record: TrialRecord) -> ScheduledTrial:
    """Return when and on how many GPUs a trial ran."""
    end_s = datetime.fromisoformat(record.finished_at).timestamp()
    return ScheduledTrial(start_s=end_s - record.wall_s, end_s=end_s, gpus=record.gpus_held or record.gpus)


def parts(stays: Iterable[ScheduledTrial], apart_s: float) -> list[list[ScheduledTrial]]:
    """Split the trials where nothing ran for longer than `apart_s`."""
    groups: list[list[ScheduledTrial]] = []
    until = -math.inf
    for stay in sorted(stays, key=lambda one: one.start_s):
        if stay.start_s > until + apart_s:
            groups.append([])
        groups[-1].append(stay)
        until = max(until, stay.end_s)
    return groups


def occupancy(stays: Sequence[ScheduledTrial], gpus: float) -> dict[str, Any]:
    """Return the figures of one part."""
    span_s = max(one.end_s for one in stays) - min(one.start_s for one in stays)
    held_s = math.fsum((one.end_s - one.start_s) * one.gpus for one in stays)
    sizes = sorted({one.gpus for one in stays})
    return {
        "trials": {f"{size:g}": sum(one.gpus == size for one in stays) for size in sizes},
        "gpus": gpus,
        "span_s": round(span_s, 1),
        "idle_share": round(1 - held_s / (gpus * span_s), 4),
        "trials_an_hour": round(3600 * len(stays) / span_s, 1),
    }


def main() -> None:
    """Read, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--gpus", type=float, help="of the machine; by default what the largest trial held")
    parser.add_argument("--apart-s", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    records = replay(given.journal).records
    ends = [checked_record(record.value)[0] for record in records if record.kind == Kind.FINISHED]
    stays = [stay(end) for end in ends if end]
    gpus = given.gpus or max(stay.gpus for stay in stays)
    told = [occupancy(part, gpus) for part in parts(stays, given.apart_s)]
    tell({"parts": told, "wanted": {"idle_share": 0.1}}, given.out)


if __name__ == "__main__":
    main()
