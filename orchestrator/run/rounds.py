"""The rounds of a driver. A round begins when no trial of the one before runs or waits.

The sources of trials (`round_sources.py`) are asked in order, and the first one with trials makes the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.backends.backend_choice import nodes_ready
from orchestrator.config.request import Request
from orchestrator.plan.plan import Plan
from orchestrator.run.round_sources import (
    Branches,
    FurtherSeeds,
    ProbeThenTrain,
    Repetitions,
    SeedTrials,
    SharedTimings,
    TrialSource,
    WholeGrid,
    gpu_fractions,
)
from orchestrator.run.session import Session
from orchestrator.schedule.queue import LeftOut, Patience, SweepBudget, TrialQueue
from orchestrator.store.history import History
from orchestrator.store.record import TrialOutcome
from sweeps.status import Status
from sweeps.trial import TrialSpec


class Rounds:
    """The rounds of one driver, which it supplies to the trial queue."""

    def __init__(
        self, request: Request, plan: Plan, session: Session, history: History, more_seeds: SeedTrials | None = None
    ) -> None:
        """With `more_seeds`, further seeds run until the verdict is clear."""
        self._request = request
        self._plan = plan
        self._session = session
        self._history = history
        self._waiting = plan.may_run(waits=request.waits)
        self._extra_seeds = FurtherSeeds(request, plan, more_seeds)
        self._branches = Branches(plan, self._waiting, session)
        self._timings = SharedTimings(history, plan.trials)
        repetitions = Repetitions(request, plan, self._extra_seeds)
        timings = [self._timings.next, repetitions.next]
        self._sources: list[TrialSource]
        # Repetitions come before the end: good measurements may open further cells.
        if request.settings.sweep.phases:
            probe_then_train = ProbeThenTrain(request, plan)
            self._sources = [probe_then_train.next, *timings, probe_then_train.rest]
        else:
            grid = WholeGrid(plan)
            self._sources = [grid.copies, self._branches.without_base, grid.next, *timings]
        self._sources.append(self._extra_seeds.next)

    @property
    def planned(self) -> Plan:
        """The plan with the further seeds that were added to it."""
        return replace(self._plan, trials=[*self._plan.trials, *self._extra_seeds.added.values()])

    @property
    def unsettled(self) -> str:
        """The budget that ran out before the verdict was clear; empty otherwise."""
        return self._extra_seeds.unsettled

    def queue(self, *, began_s: float) -> TrialQueue | None:
        """Return the queue of the first round, to which this object supplies the next ones; None if nothing is to run.

        The wall-clock budget counts from `began_s` on.
        """
        trials = self.next(())
        if not trials:
            return None
        request, history, nodes = self._request, self._history, self._plan.nodes
        wait_s = request.settings.cluster.wait_s
        # If the driver has waited for nodes already, the trials do not wait once more.
        patience = Patience(wait_s=wait_s, waited_s=0.0 if nodes_ready(nodes, request, wait_s) else wait_s)
        # One ok trial of an earlier run shows that the failures depend on the axes.
        has_ok_trial = any(end.status is Status.OK for end in history.ends.values())
        return TrialQueue(
            trials,
            durations=self._plan.durations,
            budget=SweepBudget(
                **vars(request.settings.sweep.budget),
                price_per_gpu_hour=request.settings.report.price_per_gpu_hour,
                used_gpu_s=history.spent_gpu_s,
                began_s=began_s,
            ),
            patience=patience,
            supplier=self,
            as_started=self._timings.as_started,
            equal_failures=None if has_ok_trial else request.settings.equal_failures,
        )

    def next(self, left_out: LeftOut) -> Sequence[TrialSpec]:
        """Journal what the last round left out. Return the trials of the next one; empty at the end of the sweep.

        Asks one source after the other until one has trials, and carries out what each of them says.
        """
        if self._session.stopping():
            return []
        self.leave_out(left_out)
        for source in self._sources:
            # A source may leave trials out, which the next one then does not see.
            answer = source(self._waiting, self._history)
            for trial, end in answer.copied:
                self._session.copied(trial, end)
                self._branches.close(trial)
            if answer.timed_with:
                self._session.timed_with(answer.timed_with)
            self._session.left_out(answer.left_out)
            gone = {trial.trial_id for trial, _ in (*answer.copied, *answer.left_out)}
            gone |= {trial.trial_id for trial in answer.trials}
            self._waiting = [trial for trial in self._waiting if trial.trial_id not in gone]
            if answer.trials:
                if answer.message:
                    self._session.queued(self._plan.shares_s_of(answer.trials), answer.message)
                # Trials that share a GPU get the fraction of it that they are known to need.
                memory = gpu_fractions(self._history)
                return [memory.placed(trial) for trial in answer.trials]
        return []

    def leave_out(self, ends: LeftOut) -> None:
        """Journal why trials will not run."""
        self._session.left_out(self._extra_seeds.leave_out(ends))
        self._session.dequeued([trial for trial, _ in ends])

    def ended(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Note the end of a trial."""
        if outcome.status.is_result():
            self._branches.close(trial)
