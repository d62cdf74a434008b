"""Attempts at trials: how many there were, how those that failed ended, and which trials are to have another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.journal.journal import Journal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.outcome import Cause, Outcome
from sweeps.trial import TrialSpec

LOST_NODES = 5
"""Attempts that one trial may lose to nodes, and to GPUs: not its fault, but something that eats them must end."""

_CHARGED = (Cause.ERROR, Cause.CRASH)


class Attempts:
    """Those of this driver and of the ones before, as the journal tells them."""

    def __init__(self, journal: Journal, *, retries: int) -> None:
        self._numbers = journal.attempts()
        self._tried = tried_before(journal.records)
        self._retries = retries
        self._again: list[TrialSpec] = []
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        """By trial, with the time at which its attempt began, on a monotonic clock."""

    def begun(self, trial: TrialSpec) -> int:
        """Another attempt begins; its number, from 1."""
        self._numbers[trial.trial_id] = self.number(trial) + 1
        self._running[trial.trial_id] = trial, time.monotonic()
        return self.number(trial)

    def number(self, trial: TrialSpec) -> int:
        """The number of the last attempt; 0 where none has begun."""
        return self._numbers.get(trial.trial_id, 0)

    def failed(self, trial: TrialSpec, outcome: Outcome) -> dict[str, Any] | None:
        """What the journal is told of an attempt that is followed by another one; None where this was the last."""
        self._running.pop(trial.trial_id, None)
        tried = self._tried.setdefault(trial.trial_id, [])
        if not is_tried_again(outcome.cause, tried, self._retries):
            return None
        tried.append(outcome.cause)
        value = {"cause": outcome.cause.value, "note": outcome.note, "wall_s": outcome.wall_s}
        return self._described(trial) | value

    def another(self, trial: TrialSpec) -> None:
        """The journal knows: the trial may run again."""
        self._again.append(trial)

    def cut_off(self) -> list[dict[str, Any]]:
        """What the journal is told of attempts that have begun, and that nobody will hear of again."""
        now_s, running = time.monotonic(), list(self._running.values())
        self._running.clear()
        return [self._described(trial) | {"wall_s": now_s - began_s} for trial, began_s in running]

    def over(self, trial: TrialSpec) -> None:
        """The trial has ended: a further attempt, where it is asked for, starts from nothing."""
        self._running.pop(trial.trial_id, None)
        self._tried.pop(trial.trial_id, None)

    def to_run_again(self) -> list[TrialSpec]:
        """The trials that may, since this was asked last."""
        again, self._again = self._again, []
        return again

    def _described(self, trial: TrialSpec) -> dict[str, Any]:
        return {"trial_id": trial.trial_id, "attempt": self.number(trial), "gpus_held": trial.gpus_held}


def is_tried_again(cause: Cause, before: Sequence[Cause], retries: int) -> bool:
    """Whether there is another attempt after those that ended `before`, and the one that has just ended by `cause`.

    Errors and crashes have `retries` further attempts; lost nodes and GPUs are not charged, up to LOST_NODES; of a
    host that ran out of memory, which others may have filled, one. All other ends are what the trial itself came to.
    """
    if cause in (Cause.NODE, Cause.DEVICE):
        return before.count(cause) < LOST_NODES
    if cause is Cause.HOST_MEMORY:
        return Cause.HOST_MEMORY not in before
    return cause in _CHARGED and sum(each in _CHARGED for each in before) < retries


def tried_before(records: Iterable[Record]) -> dict[str, list[Cause]]:
    """By trial, how the attempts since its last terminal record ended: those of an earlier run of the driver count."""
    found: dict[str, list[Cause]] = {}
    for record in records:
        if record.kind == Kind.RETRIED:
            found.setdefault(record.value["trial_id"], []).append(Cause(record.value["cause"]))
        elif record.kind == Kind.FINISHED:
            found.pop(record.value["trial_id"], None)
    return found
