"""What every back end offers: the nodes it has, and trials run on them. The contract suite holds each to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.cause import Cause
from sweeps.feasibility import Node
from sweeps.status import Status
from sweeps.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.agenda import Agenda

RANK_ENTRY = "trainables.rank:run"
"""The function every rank's process calls: `(request, emit, should_stop, observe) -> outcome`, plain values all."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt at a trial ended."""

    status: Status
    cause: Cause = Cause.NONE
    """What was at the root of it, for whoever decides whether to try again."""
    note: str = ""
    """One line for the tables: empty for a plain `ok`."""
    trace: str = ""
    """The whole traceback of the rank at the root of a failure."""
    wall_s: float
    """From the moment the gang was asked to start this trial to its last rank's answer; monotonic."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The trial's figures by their column names in `tables/trials.csv`; absent means not measured."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The hardware and software that produced them."""
    skipped_by: str = ""
    """The rule of the sweep that skipped the trial: `budget`, `early_stop`, `phases` or `search`."""
    lost_devices: Sequence[str] = ()
    """Of cause DEVICE: the GPUs that are not to be used any more, as `orchestrator.quarantine` names them."""


class Listener(Protocol):
    """Who is told what happens. Called from the driver's main thread only; an exception ends the sweep."""

    def started(self, trial: TrialSpec) -> None:
        """The trial's gang has its resources and was told to start."""

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rank 0 reported rows, one an epoch, each exactly once and in order."""

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        """The attempt is over. The end is acknowledged once this returns."""

    def ticked(self) -> None:
        """Called at least once a second while trials run, for clocks and displays."""

    def stopping(self) -> bool:
        """Whether no further trial may start, and running ones are to be given up."""


class Backend(Protocol):
    """Where trials run."""

    def nodes(self) -> tuple[Node, ...]:
        """What there is to run on, now."""

    def run(self, trials: Sequence[TrialSpec] | Agenda, results_dir: Path, listener: Listener) -> None:
        """Run the trials as the agenda says, and tell the listener; trials without an agenda make one of their own.

        `results_dir/trials/<trial_id>/` is where the ranks write their logs. Returns when every trial was reported as
        finished, or when the listener asked to stop and nothing runs any more; a trial given up so is not finished.
        """

    def close(self) -> None:
        """Give everything back; nothing of this back end is left running."""
