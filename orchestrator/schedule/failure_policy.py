"""Detects that all trials of a sweep fail for one reason that does not depend on their axes.

Until that is decided, trials are held back, and a few that differ from the failed ones are tried.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.store.record import Cause, TrialOutcome
from sweeps.status import Status
from sweeps.trial import Gang, TrialSpec

_OWN = (Cause.ERROR, Cause.CRASH)
"""What a trial can be blamed for; nodes, GPUs and their like fail by themselves."""

_ELSEWISE = (Status.OOM, Status.INFEASIBLE, Status.SKIPPED)
"""Statuses that show neither that trials can succeed nor that they cannot."""

_RANK = re.compile(r"^rank \d+: ")
_NUMBER = re.compile(r"\d+")

Value = tuple[str, str]
"""An axis, and one of its values as text."""


class SystematicFailures:
    """What is known of it in one run of a driver. A seed is no difference between trials, the other axes are."""

    def __init__(self, cells: int | None) -> None:
        """`cells`: how many have to fail alike before the others are doubted; None: they never are."""
        self._cells = cells
        self._failed: dict[str, tuple[str, TrialSpec]] = {}
        self._off = cells is None
        self._held: list[TrialSpec] = []

    @property
    def held(self) -> int:
        """The number of trials held back."""
        return len(self._held)

    def ended(self, trial: TrialSpec, outcome: TrialOutcome | None) -> None:
        """The trial is over; None where nobody knows how."""
        if outcome is None or outcome.status in _ELSEWISE or trial.probes:
            return
        if outcome.status is Status.FAILED and outcome.cause not in _OWN:
            return
        if outcome.status is not Status.FAILED:
            self._off = True
            return
        self._failed[trial.cell_id] = (_reason(outcome), trial)
        self._off |= len({_without_sizes(reason, whose) for reason, whose in self._failed.values()}) > 1

    def again(self, trial: TrialSpec) -> None:
        """It has another attempt: what it came to is open."""
        self._failed.pop(trial.cell_id, None)

    @property
    def doubted(self) -> bool:
        """Whether so many cells have failed, all of them alike, and none has come to anything else."""
        return not self._off and self._cells is not None and len(self._failed) >= self._cells

    @property
    def reason(self) -> str:
        """The reason for which all of them failed, once they are doubted."""
        return next(iter(self._failed.values()))[0]

    def hold(self, trials: Sequence[TrialSpec]) -> None:
        """Hold these back until it is decided."""
        self._held += trials

    def let_go(self, gangs: Collection[Gang] | None = None) -> list[TrialSpec]:
        """All that were held back, or those of such gangs; they are not any more."""
        held, self._held = self._held, []
        if gangs is None:
            return held
        self._held = [trial for trial in held if trial.gang not in gangs]
        return [trial for trial in held if trial.gang in gangs]

    def witnesses(self) -> list[TrialSpec]:
        """The few trials held back that are tried first: once they have failed, too, every value of every axis has."""
        seen = {value for _, trial in self._failed.values() for value in _values(trial)}
        unseen, found = {value for trial in self._held for value in _values(trial)} - seen, list[TrialSpec]()
        while unseen:
            found.append(max(self._held, key=lambda trial: len(unseen & _values(trial))))
            unseen -= _values(found[-1])
        self._held = [trial for trial in self._held if trial not in found]
        return found


def _values(trial: TrialSpec) -> set[Value]:
    axes: Mapping[str, Any] = trial.axes
    return {(axis, str(value)) for axis, value in axes.items() if axis != "seed"}


def _reason(outcome: TrialOutcome) -> str:
    """Its first line; which of the ranks said so does not matter."""
    return _RANK.sub("", (outcome.note.splitlines() or [""])[0])


def _without_sizes(reason: str, trial: TrialSpec) -> str:
    """The reason without the trial's own batch: shapes that do not fit are told with it, and fit at no other either."""
    own = {str(trial.batch.global_batch_size), str(trial.batch.device_batch_size)}
    return _NUMBER.sub(lambda found: "batch" if found[0] in own else found[0], reason)
