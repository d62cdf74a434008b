"""Attempts at trials: how many there were, how failed ones ended, and which trials get another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.journal.journal import Journal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.outcome import Cause, Outcome
from sweeps.trial import TrialSpec

LOST_NODES = 5
"""Attempts that one trial may lose to nodes or GPUs: not its fault, but one that breaks them must stop sometime."""

_CHARGED = (Cause.ERROR, Cause.CRASH)


class Attempts:
    """Attempts made by this driver and, according to the journal, by earlier ones."""

    def __init__(self, journal: Journal, *, retries: int) -> None:
        self._numbers = journal.attempts()
        self._tried = tried_before(journal.records)
        self._retries = retries
        self._again: list[TrialSpec] = []
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        """Running attempts: by trial, the start on a monotonic clock."""

    def begun(self, trial: TrialSpec) -> int:
        """Note that an attempt has begun; return its number, counted from 1."""
        self._numbers[trial.trial_id] = self.number(trial) + 1
        self._running[trial.trial_id] = trial, time.monotonic()
        return self.number(trial)

    def number(self, trial: TrialSpec) -> int:
        """The number of the last attempt; 0 where none has begun."""
        return self._numbers.get(trial.trial_id, 0)

    def failed(self, trial: TrialSpec, outcome: Outcome) -> dict[str, Any] | None:
        """The journal record of an attempt that will be followed by another; None if this was the last."""
        self._running.pop(trial.trial_id, None)
        tried = self._tried.setdefault(trial.trial_id, [])
        if not is_tried_again(outcome.cause, tried, self._retries):
            return None
        tried.append(outcome.cause)
        value = {"cause": outcome.cause.value, "note": outcome.note, "wall_s": outcome.wall_s}
        return self._described(trial) | value

    def another(self, trial: TrialSpec) -> None:
        """Call once the failure is journalled: the trial may run again."""
        self._again.append(trial)

    def cut_off(self) -> list[dict[str, Any]]:
        """Journal records of attempts that have begun and whose end nobody will report."""
        now_s, running = time.monotonic(), list(self._running.values())
        self._running.clear()
        return [self._described(trial) | {"wall_s": now_s - began_s} for trial, began_s in running]

    def over(self, trial: TrialSpec) -> None:
        """The trial has ended: if another attempt is requested, counting starts afresh."""
        self._running.pop(trial.trial_id, None)
        self._tried.pop(trial.trial_id, None)

    def to_run_again(self) -> list[TrialSpec]:
        """The trials that may run again, new since the last call."""
        again, self._again = self._again, []
        return again

    def _described(self, trial: TrialSpec) -> dict[str, Any]:
        return {"trial_id": trial.trial_id, "attempt": self.number(trial), "gpus_held": trial.gpus_held}


def is_tried_again(cause: Cause, before: Sequence[Cause], retries: int) -> bool:
    """Whether another attempt follows after those that ended `before` and the one that has just ended by `cause`.

    Errors and crashes get `retries` further attempts. Lost nodes and GPUs are not charged, up to LOST_NODES. A host
    that ran out of memory, possibly because of other processes, grants one. All other ends are the trial's own result.
    """
    if cause in (Cause.NODE, Cause.DEVICE):
        return before.count(cause) < LOST_NODES
    if cause is Cause.HOST_MEMORY:
        return Cause.HOST_MEMORY not in before
    return cause in _CHARGED and sum(each in _CHARGED for each in before) < retries


def tried_before(records: Iterable[Record]) -> dict[str, list[Cause]]:
    """By trial, how its attempts since the last terminal record ended, including those of earlier drivers."""
    found: dict[str, list[Cause]] = {}
    for record in records:
        if record.kind == Kind.RETRIED:
            found.setdefault(record.value["trial_id"], []).append(Cause(record.value["cause"]))
        elif record.kind == Kind.FINISHED:
            found.pop(record.value["trial_id"], None)
    return found
