"""What a back end is to do next: which trial starts, where, and when none may start any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.backend import Outcome
from orchestrator.durations import Durations
from sweeps.feasibility import Node, why_infeasible
from sweeps.limit import Limit
from sweeps.scheduler import Scheduler, Start
from sweeps.status import Status
from sweeps.trial import TrialSpec

REVISIONS = 100
"""How often a sweep's schedule takes the durations of finished trials into account; each time takes O(trials)."""


class Agenda:
    """The trials of one run. A back end tells it its nodes, asks it for trials, and tells it of their ends.

    Seconds are those of the back end's monotonic clock.
    """

    def __init__(
        self,
        trials: Sequence[TrialSpec],
        *,
        durations: Durations | None = None,
        limit: Limit | None = None,
        spent_gpu_s: float = 0.0,
        spent_wall_s: float = 0.0,
        wait_s: float = 0.0,
    ) -> None:
        self._trials = trials
        self._durations = durations or Durations()
        self._limit = limit or Limit()
        self._spent_gpu_s = spent_gpu_s
        self._spent_wall_s = spent_wall_s
        self._wait_s = wait_s
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._scheduler: Scheduler | None = None
        self._nodes: Sequence[Node] = ()
        self._began_s = 0.0
        self._homeless_since_s: dict[str, float] = {}
        self._ends = 0
        self.left_out: list[tuple[TrialSpec, Outcome]] = []
        """Trials that will not start, and why."""

    def __len__(self) -> int:
        """How many trials wait for their start."""
        return len(self._trials) if self._scheduler is None else len(self._scheduler)

    def on(self, nodes: Sequence[Node], now_s: float) -> None:
        """These nodes there are now; call it again when they change, or to let a wait for nodes end."""
        if self._scheduler is None:
            self._scheduler = Scheduler(self._trials, nodes, self._durations.expected_s)
            self._began_s = now_s - self._spent_wall_s
        elif list(nodes) != list(self._nodes):
            self._scheduler.moved(nodes)
        self._nodes = nodes
        self._give_up_homeless(now_s)

    def next(self, now_s: float) -> Start | None:
        """The trial to start now, if any."""
        scheduler = self._placed()
        reason = self._limit.reached(gpu_s=self.gpu_s(now_s), wall_s=now_s - self._began_s)
        if reason:
            self._leave_out(scheduler.waiting(), lambda trial: _skipped(reason))
        start = scheduler.next(now_s)
        if start:
            self._running[start.trial.trial_id] = (start.trial, now_s)
        return start

    def ended(self, trial_id: str, now_s: float, outcome: Outcome | None = None) -> None:
        """The trial is over; None where nobody knows how."""
        trial, started_s = self._running.pop(trial_id)
        self._spent_gpu_s += trial.gpus * (now_s - started_s)
        self._placed().ended(trial_id)
        if outcome and outcome.status is Status.OK:
            self._durations.add(trial.cell_id, trial.axes, outcome.wall_s)
        self._ends += 1
        if self._ends % max(1, len(self._trials) // REVISIONS) == 0:
            self._placed().revise()

    def again(self, trial_id: str, now_s: float) -> None:
        """The running trial was lost through no fault of its own, and waits once more, before others of its shape."""
        trial, _ = self._running[trial_id]
        self.ended(trial_id, now_s)
        self._placed().again(trial)

    def gpu_s(self, now_s: float) -> float:
        """GPU-seconds that were used so far."""
        return self._spent_gpu_s + sum(trial.gpus * (now_s - start_s) for trial, start_s in self._running.values())

    def _placed(self) -> Scheduler:
        if self._scheduler is None:
            raise RuntimeError("the agenda was not told of any nodes")
        return self._scheduler

    def _give_up_homeless(self, now_s: float) -> None:
        """Trials that fit no nodes there are, as after a loss, wait for others only so long."""
        reasons = {gang: why_infeasible(gang, self._nodes) for gang in {t.gang for t in self._placed().waiting()}}
        homeless = [trial for trial in self._placed().waiting() if reasons[trial.gang]]
        since = {each.trial_id: self._homeless_since_s.get(each.trial_id, now_s) for each in homeless}
        self._homeless_since_s = since
        given_up = [trial for trial in homeless if now_s - since[trial.trial_id] >= self._wait_s]
        self._leave_out(given_up, lambda trial: Outcome(status=Status.INFEASIBLE, note=reasons[trial.gang], wall_s=0.0))

    def _leave_out(self, trials: Sequence[TrialSpec], outcome_of: Callable[[TrialSpec], Outcome]) -> None:
        for trial in trials:
            self._placed().drop(trial)
            self.left_out.append((trial, outcome_of(trial)))


def _skipped(reason: str) -> Outcome:
    return Outcome(status=Status.SKIPPED, note=reason, wall_s=0.0, skipped_by="budget")
