"""The interface through which a back end reports what happens to trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orchestrator.store.record import TrialOutcome
from sweeps.trial import TrialSpec


class Listener(Protocol):
    """Receives the events of trials. Called from the driver's main thread only; an exception ends the sweep."""

    def started(self, trial: TrialSpec) -> None:
        """The trial's gang has its resources and was told to start."""

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rank 0 reported rows, one per epoch, each exactly once and in order."""

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """The attempt has ended. The end is acknowledged once this returns."""

    def ticked(self) -> None:
        """Called at least once a second while trials run, for clocks and displays."""

    def stopping(self) -> bool:
        """Return whether no further trial may start and running ones must stop."""
