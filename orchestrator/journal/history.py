"""Continuing a sweep: what was asked before, and whether this is still the same question.

The journal holds a `sweep` record for every time a driver took the sweep up, with the config outside `sweep.axes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.journal.journal import terminal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.spending import with_earlier
from sweeps.dotted import flat


def latest(records: Iterable[Record]) -> Mapping[str, Any] | None:
    """What was asked the last time; None in a fresh journal."""
    asked = [record.value["asked"] for record in records if record.kind == Kind.SWEEP]
    return asked[-1] if asked else None


def probes_under(records: Iterable[Record], asked: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By what trials of a speed have in common, the last probe of one that was run while the same was asked."""
    found: dict[str, Mapping[str, Any]] = {}
    same = False
    for record in records:
        if record.kind == Kind.SWEEP:
            same = record.value["asked"] == asked
        elif same and record.kind == Kind.PROBED:
            found[record.value["speed"]] = record.value
    return found


def ends_under(records: Iterable[Record], asked: Mapping[str, Any]) -> dict[str, TrialRecord]:
    """How each trial ended that was run while the same was asked; widened axes ask the same."""
    records = list(records)
    kept: list[Record] = []
    same = False
    for record in records:
        if record.kind == Kind.SWEEP:
            same = record.value["asked"] == asked
        if same or record.kind == Kind.SWEEP:
            kept.append(record)
    return with_earlier(terminal(kept), records)


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for every dotted key that changed: `config.budget.epochs: 10 → 20`."""
    old, new = dict(flat(before)), dict(flat(now))
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [f"{key}: {_shown(old, key)} → {_shown(new, key)}" for key in changed]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "(absent)"
