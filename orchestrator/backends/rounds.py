"""Where further trials come from while an agenda lasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.journal.outcome import Outcome
from sweeps.trial import TrialSpec


class Rounds(Protocol):
    """A round begins when nothing of the one before runs or waits."""

    def again(self) -> Sequence[TrialSpec]:
        """Trials whose attempt has ended since this was asked last, and which are to have another at once."""

    def next(self, left_out: Sequence[tuple[TrialSpec, Outcome]]) -> Sequence[TrialSpec]:
        """The next round; empty where there is none. `left_out` did not start in the last."""


class OneRound:
    """The trials that an agenda has are all."""

    def again(self) -> Sequence[TrialSpec]:
        """No trial has another attempt."""
        return ()

    def next(self, left_out: Sequence[tuple[TrialSpec, Outcome]]) -> Sequence[TrialSpec]:
        """There is no other round."""
        return ()
