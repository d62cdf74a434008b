"""What a sweep runs, round by round: what was planned, further seeds where the answer is open, spoiled trials again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from orchestrator import phases
from orchestrator.backend import Outcome
from orchestrator.plan import Plan
from orchestrator.record import TrialRecord
from orchestrator.request import Request
from orchestrator.session import Session
from orchestrator.spoiled import once_more
from sweeps.trial import TrialSpec


class Rounds:
    """The source of an agenda's trials; a round begins when nothing of the one before runs or waits."""

    def __init__(
        self, request: Request, planned: Plan, session: Session, ends: Callable[[], Mapping[str, TrialRecord]]
    ) -> None:
        """`ends` reads from the journal how each trial ended, as far as that stands."""
        self._request = request
        self._planned = planned
        self._session = session
        self._ends = ends
        self._checked = False
        self.first: Sequence[TrialSpec] = _feasible(planned, request.wait_s)
        """What the first round runs."""
        self._later: Sequence[TrialSpec] = ()
        if request.phases:
            self.first, self._later = phases.probe(self.first, planned.trials)

    def __bool__(self) -> bool:
        """Whether there is anything to run."""
        return bool(self.first or self._later)

    def again(self) -> Sequence[TrialSpec]:
        """Trials whose attempt failed, and which are to have another."""
        return self._session.to_run_again()

    def next(self, left_out: Sequence[tuple[TrialSpec, Outcome]]) -> Sequence[TrialSpec]:
        """The next round, once it is in the journal what the last one left out; empty at the end of the sweep."""
        if self._session.stopping():
            return ()
        for trial, outcome in left_out:
            self._session.left_out(trial, outcome)
        return self._further_seeds() or self._spoiled()

    def _further_seeds(self) -> Sequence[TrialSpec]:
        """The next seed of every cell that is still open; where none is, the rest is skipped."""
        if not self._later:
            return ()
        found = phases.still_open(self._request, self._ends())
        to_run, self._later = phases.next_seeds(found, self._later)
        if not to_run:
            for trial in self._later:
                self._session.left_out(trial, phases.skipped(found.answer))
            self._later = ()
        return to_run

    def _spoiled(self) -> Sequence[TrialSpec]:
        """Once: of the trials that ran those whose timing something spoiled."""
        if self._checked:
            return ()
        self._checked = True
        share, count = self._request.rerun_invalid, len(self._planned.trials)
        spoiled = once_more(self._planned.to_run, self._ends(), share=share, planned=count)
        if spoiled:
            self._session.found_spoiled(spoiled)
        return spoiled


def _feasible(planned: Plan, wait_s: float) -> list[TrialSpec]:
    """What may run: also what has no room yet, where it may wait for some."""
    return planned.to_run + ([trial for trial, _ in planned.without_room] if wait_s else [])
