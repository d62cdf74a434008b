"""How long trials occupied their devices in all attempts, not only in the one that is their row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.journal.line import Kind, Record
from orchestrator.journal.record import TrialRecord

_ENDS = (Kind.RETRIED, Kind.CUT_OFF, Kind.FINISHED)


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The attempts at a trial since its previous end, without the one that ended it."""

    wall_s: float = 0.0
    untold: int = 0
    """Attempts of unknown length: the driver was killed, or did not record it (earlier versions)."""


def earlier(records: Iterable[Record]) -> dict[tuple[str, int], Earlier]:
    """By trial id and number of the attempt that ended it. Records may be of any form."""
    so_far: dict[str, Earlier] = {}
    running: set[str] = set()
    found: dict[tuple[str, int], Earlier] = {}
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id, attempt, wall_s = str(value.get("trial_id")), value.get("attempt"), value.get("wall_s")
        if record.kind not in (Kind.STARTED, *_ENDS) or not isinstance(attempt, int):
            continue
        before = so_far.setdefault(trial_id, Earlier())
        if record.kind == Kind.STARTED:
            so_far[trial_id] = replace(before, untold=before.untold + (trial_id in running))
            running.add(trial_id)
            continue
        running.discard(trial_id)
        if record.kind == Kind.FINISHED:
            found[trial_id, attempt] = so_far.pop(trial_id)
        elif isinstance(wall_s, (int, float)):
            so_far[trial_id] = replace(before, wall_s=before.wall_s + wall_s)
        else:
            so_far[trial_id] = replace(before, untold=before.untold + 1)
    return found


def with_earlier(ends: Mapping[str, TrialRecord], records: Iterable[Record]) -> dict[str, TrialRecord]:
    """The ends, completed with the time that earlier attempts took."""
    before = earlier(records)
    return {trial_id: _with(end, before.get((trial_id, end.attempt), Earlier())) for trial_id, end in ends.items()}


def _with(end: TrialRecord, before: Earlier) -> TrialRecord:
    return replace(end, earlier_s=before.wall_s, untold_attempts=before.untold)


def spent_gpu_s(records: Iterable[Record]) -> float:
    """GPU-seconds (or worker-seconds) that all probes, repetitions and attempts have occupied, under any config.

    Journals of earlier versions do not say how many GPUs a retried attempt occupied: as many as the last attempt.
    """
    ends = [record.value for record in records if record.kind in (Kind.PROBED, Kind.TIMED, *_ENDS)]
    of_trial = {end.get("trial_id"): _held(end) for end in ends}
    return float(sum((_held(end) or of_trial[end.get("trial_id")]) * end["wall_s"] for end in ends))


def _held(end: Mapping[str, Any]) -> float:
    return float(end.get("gpus_held") or end.get("gpus") or 0.0)
