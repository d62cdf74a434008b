"""Trials that fit none of the current nodes: why, since when, and which have waited for one in vain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.backends.arrival import can_run, patience_s
from orchestrator.journal.outcome import Outcome
from orchestrator.scheduling.node import Node, why_infeasible
from sweeps.status import Status
from sweeps.trial import Gang, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long trials that fit no nodes wait for some."""

    wait_s: float = 0.0
    waited_s: float = 0.0
    """How long those that fit none at first have done so already."""


class Unplaced:
    """Those of one agenda; seconds are those of its clock.

    A trial's time counts from when nothing runs: until then others have what an autoscaler could exchange for their
    nodes. Where there is no node at all that tells nothing of the trials: who waited goes on, for the reason of before.
    """

    def __init__(self, patience: Patience) -> None:
        self._wait_s, self._waited_s = patience.wait_s, patience.waited_s
        self._nodes: Sequence[Node] = ()
        self._last_node_s: float | None = None
        self._since_s: dict[str, float] = {}
        self._reasons: dict[Gang, str] = {}
        """Why a gang fits no nodes, of those that there were last; else empty."""

    def __len__(self) -> int:
        return len(self._since_s)

    def __contains__(self, trial: TrialSpec) -> bool:
        return trial.trial_id in self._since_s

    def deserted(self, nodes: Sequence[Node], now_s: float) -> bool:
        """These nodes there are now; whether for long there has been none to run on."""
        self._nodes = nodes
        if can_run(nodes) or self._last_node_s is None:
            self._last_node_s = now_s
        return now_s - self._last_node_s >= patience_s(self._wait_s)

    def in_vain(self, waiting: Sequence[TrialSpec], now_s: float, *, running: bool) -> list[TrialSpec]:
        """The trials that have waited long enough, and wait no more; `running`: whether others run."""
        if can_run(self._nodes):
            self._reasons = {gang: why_infeasible(gang, self._nodes) for gang in {trial.gang for trial in waiting}}
            known = {} if running else self._since_s
            unplaced = [trial.trial_id for trial in waiting if self._reasons[trial.gang]]
            self._since_s = {each: known.get(each, now_s - self._waited_s) for each in unplaced}
        self._waited_s = 0.0
        since_s = self._since_s
        given_up = [each for each in waiting if now_s - since_s.get(each.trial_id, math.inf) >= self._wait_s]
        for trial in given_up:
            del since_s[trial.trial_id]
        return given_up

    def end(self, trial: TrialSpec) -> Outcome:
        """That of one that has waited in vain, or of another of its gang."""
        waited = f"; no node for it came within cluster.wait_s={self._wait_s:g}" if self._wait_s else ""
        return Outcome(status=Status.INFEASIBLE, note=self._reasons[trial.gang] + waited, wall_s=0.0)
