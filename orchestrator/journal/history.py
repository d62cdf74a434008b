"""Continuing a sweep: which config it had before, and whether it still has the same.

Each driver that takes up the sweep writes a `sweep` record with the config outside `sweep.axes`: what is `asked`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.journal.journal import terminal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.spending import with_earlier
from sweeps.dotted import flat
from sweeps.status import Status


def latest(records: Iterable[Record]) -> Mapping[str, Any] | None:
    """What the last driver was asked; None in a new journal."""
    asked = [record.value["asked"] for record in records if record.kind == Kind.SWEEP]
    return asked[-1] if asked else None


def changed(records: Iterable[Record], asked: Mapping[str, Any]) -> list[str]:
    """The differences from what the last driver was asked; none in a new journal."""
    before = latest(records)
    return difference(before, asked) if before is not None else []


def has_answers(ends: Iterable[TrialRecord]) -> bool:
    """Whether any end says something about the training; fixing the cause of a failure does not change the question.

    Without one, a changed config has nothing to be mixed up with.
    """
    return any(end.status not in _NO_ANSWER for end in ends)


_NO_ANSWER = (Status.FAILED, Status.INFEASIBLE, Status.SKIPPED)


def probes_under(records: Iterable[Record], asked: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The last probe of each speed (`durations.speed`) that was run while the same was asked."""
    found: dict[str, Mapping[str, Any]] = {}
    same = False
    for record in records:
        if record.kind == Kind.SWEEP:
            same = record.value["asked"] == asked
        elif same and record.kind == Kind.PROBED:
            found[record.value["speed"]] = record.value
    return found


def ends_under(records: Iterable[Record], asked: Mapping[str, Any]) -> dict[str, TrialRecord]:
    """How each trial that was run while the same was asked ended. Widened axes ask the same."""
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
    """A line for each change, such as `config.budget.epochs: 10 → 20`, with all dotted keys that changed alike.

    Many names in the config may lead to one package, whose hash is then that of each.
    """
    old, new = dict(flat(before)), dict(flat(now))
    changes: dict[str, list[str]] = {}
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            changes.setdefault(f"{_shown(old, key)} → {_shown(new, key)}", []).append(key)
    return [f"{', '.join(keys)}: {change}" for change, keys in changes.items()]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "(absent)"
