"""Attempts at trials: how many there were, how those that failed ended, and which trials are to have another."""

from __future__ import annotations

import time
from typing import Any

from orchestrator.driver.retry import is_tried_again, tried_before
from orchestrator.journal.journal import Journal
from orchestrator.journal.outcome import Outcome
from sweeps.trial import TrialSpec


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
        """Of the last attempt; 0 where none has begun."""
        return self._numbers.get(trial.trial_id, 0)

    def failed(self, trial: TrialSpec, outcome: Outcome) -> dict[str, Any] | None:
        """What the journal is told of an attempt that is followed by another one; None where this was the last."""
        self._running.pop(trial.trial_id, None)
        tried = self._tried.setdefault(trial.trial_id, [])
        if not is_tried_again(outcome.cause, tried, self._retries):
            return None
        tried.append(outcome.cause)
        told = {"cause": outcome.cause.value, "note": outcome.note, "wall_s": outcome.wall_s}
        return self._told(trial) | told

    def another(self, trial: TrialSpec) -> None:
        """The journal knows: the trial may run again."""
        self._again.append(trial)

    def cut_off(self) -> list[dict[str, Any]]:
        """What the journal is told of attempts that have begun, and that nobody will hear of again."""
        now_s, running = time.monotonic(), list(self._running.values())
        self._running.clear()
        return [self._told(trial) | {"wall_s": now_s - began_s} for trial, began_s in running]

    def over(self, trial: TrialSpec) -> None:
        """The trial has ended: a further attempt, where it is asked for, starts from nothing."""
        self._running.pop(trial.trial_id, None)
        self._tried.pop(trial.trial_id, None)

    def to_run_again(self) -> list[TrialSpec]:
        """The trials that may, since this was asked last."""
        again, self._again = self._again, []
        return again

    def _told(self, trial: TrialSpec) -> dict[str, Any]:
        return {"trial_id": trial.trial_id, "attempt": self.number(trial), "gpus_held": trial.gpus_held}
