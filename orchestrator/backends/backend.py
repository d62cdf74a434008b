"""The interface of back ends: the nodes they have, and trials run on them. The contract suite tests each one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.journal.listener import Listener
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from sweeps.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.backends.agenda import Agenda

RANK_ENTRY = "trainables.rank:run"
"""The function every rank's process calls: `(request, emit, should_stop, observe) -> outcome`, plain values all."""


class NotStartedError(RuntimeError):
    """The back end could not be started although the request is valid; trying again may help."""


class Backend(Protocol):
    """Where trials run."""

    @property
    def dashboard_url(self) -> str:
        """URL of a dashboard; empty if there is none."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes available now."""

    def ask_for(self, shapes: Sequence[Shape]) -> None:
        """Ask an autoscaler for nodes for these gangs, until others are asked for or `run` ends."""

    def run(self, trials: Sequence[TrialSpec] | Agenda, results_dir: Path, listener: Listener) -> None:
        """Run the trials as the agenda says, and tell the listener; trials without an agenda make one of their own.

        `results_dir/trials/<trial_id>/` is where the ranks write their logs. Returns when every trial was reported as
        finished, or when the listener asked to stop and nothing runs any more; a trial given up so is not finished.
        """

    def close(self) -> None:
        """Release everything; nothing of this back end keeps running."""
