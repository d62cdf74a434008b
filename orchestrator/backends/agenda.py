"""What a back end is to do next: which trial starts, where, and when none may start any more."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from orchestrator.backends.arrival import can_run, patience_s
from orchestrator.backends.equal_failures import EqualFailures
from orchestrator.journal.durations import Durations
from orchestrator.journal.outcome import Outcome
from sweeps.feasibility import Node, why_infeasible
from sweeps.limit import Allowance
from sweeps.placement import Shape
from sweeps.scheduler import Scheduler, Start
from sweeps.seats import seats
from sweeps.status import Status
from sweeps.trial import Gang, TrialSpec
from sweeps.upcoming import Upcoming

REVISIONS = 100
"""How often a sweep's schedule takes the durations of finished trials into account; each time takes O(trials)."""


AHEAD = 64
"""Gangs that a cluster is asked to make room for at a time: as their nodes come, it is asked for the next ones."""

WORTH_S = 120.0
"""What is expected to be done sooner anyway asks for no further nodes: they would take about as long to come."""


class Rounds(Protocol):
    """Where further trials come from while an agenda lasts."""

    def again(self) -> Sequence[TrialSpec]:
        """Trials whose attempt has ended since this was asked last, and which are to have another at once."""

    def next(self, left_out: Sequence[tuple[TrialSpec, Outcome]]) -> Sequence[TrialSpec]:
        """Nothing runs or waits: the next round; empty where there is none. `left_out` did not start in the last."""


class OneRound:
    """The trials that an agenda has are all."""

    def again(self) -> Sequence[TrialSpec]:
        """No trial has another attempt."""
        return ()

    def next(self, left_out: Sequence[tuple[TrialSpec, Outcome]]) -> Sequence[TrialSpec]:
        """There is no other round."""
        return ()


class Agenda:
    """The trials of one run. A back end tells it its nodes, asks it for trials, and tells it of their ends.

    Seconds are those of the back end's monotonic clock.
    """

    def __init__(
        self,
        trials: Sequence[TrialSpec],
        *,
        durations: Durations | None = None,
        allowance: Allowance | None = None,
        wait_s: float = 0.0,
        waited_s: float = 0.0,
        rounds: Rounds | None = None,
        equal_failures: int | None = None,
    ) -> None:
        """`wait_s`: how long trials that fit no nodes wait for some; those that fit none at first have, for `waited_s`.

        `equal_failures`: how many cells may fail alike before the rest is left alone; None: all.
        """
        self._trials = list(trials)
        self._durations = durations or Durations()
        self._allowance = allowance or Allowance()
        self._gpu_s = self._allowance.gpu_s
        self._wait_s = wait_s
        self._waited_s = waited_s
        self._rounds = rounds or OneRound()
        self._failures = EqualFailures(equal_failures)
        self._held: list[TrialSpec] = []
        self._again: list[TrialSpec] = []
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._scheduler: Scheduler | None = None
        self._shapes: set[Shape] = set()
        self._nodes: Sequence[Node] = ()
        self._began_s = 0.0
        self._homeless_since_s: dict[str, float] = {}
        self._reasons: dict[Gang, str] = {}
        """Why a gang fits no nodes, of those that there were last; else empty."""
        self._last_node_s: float | None = None
        self._ends = 0
        self._told = 0
        self.left_out: list[tuple[TrialSpec, Outcome]] = []
        """Trials that will not start, and why."""
        self.deserted = False
        """Whether for long there has been no node to run on: what waits can wait no longer, and has no end either."""
        self.hopeless = ""
        """Why whatever has not run would fail, too, so that it does not: the reason of all that has."""
        self.over = False
        """Whether nothing runs, and nothing will."""

    def __len__(self) -> int:
        """How many trials wait for their start."""
        return len(self._trials) if self._scheduler is None else len(self._scheduler) + len(self._held)

    def on(self, nodes: Sequence[Node], now_s: float) -> None:
        """These nodes there are now; call it again when they change, or to let a wait for nodes end."""
        if self._scheduler is None:
            by_seed = self._allowance.limit.is_set
            self._scheduler = Scheduler((), nodes, self._durations.expected_s, seed_by_seed=by_seed)
            self._add(self._trials)
            self._began_s = now_s - self._allowance.wall_s
        elif list(nodes) != list(self._nodes):
            self._scheduler.moved(nodes)
        self._nodes = nodes
        if can_run(nodes) or self._last_node_s is None:
            self._last_node_s = now_s
        self.deserted = now_s - self._last_node_s >= patience_s(self._wait_s)
        self._give_up_homeless(now_s)
        self._waited_s = 0.0

    def next(self, now_s: float) -> Start | None:
        """The trial to start now, if any; where there is none for good, this is `over`."""
        scheduler = self._placed()
        while not self.over:
            if self.deserted:
                self.over = not self._running
                return None
            self._try_again()
            self._doubt()
            if self.hopeless:
                self.over = not self._running
                return None
            reason = self._allowance.limit.reached(gpu_s=self.gpu_s(now_s), wall_s=now_s - self._began_s)
            if reason:
                self._let_go()
                self._leave_out((trial, _skipped(reason)) for trial in scheduler.waiting())
            if start := scheduler.next(now_s):
                self._running[start.trial.trial_id] = (start.trial, now_s)
                return start
            if self._running or len(scheduler) or self._again or self._held:
                return None
            self._begin_round(now_s)
        return None

    def ended(self, trial_id: str, now_s: float, outcome: Outcome | None = None) -> None:
        """The trial is over; None where nobody knows how."""
        trial, started_s = self._running.pop(trial_id)
        self._gpu_s += trial.gpus_held * (now_s - started_s)
        self._placed().ended(trial_id)
        if outcome and outcome.status is Status.OK and not trial.probes:
            self._durations.add(trial.cell_id, trial.axes, outcome.wall_s)
        self._failures.ended(trial, outcome)
        self._ends += 1
        if self._ends % max(1, len(self._trials) // REVISIONS) == 0:
            self._placed().revise()

    def again(self, trial: TrialSpec) -> None:
        """The trial could not begin, and waits once more."""
        self._again.append(trial)

    def gpu_s(self, now_s: float) -> float:
        """GPU-seconds that were held so far."""
        return self._gpu_s + sum(trial.gpus_held * (now_s - start_s) for trial, start_s in self._running.values())

    def is_timed(self, trial: TrialSpec) -> bool:
        """Whether a trial that is about as fast has ended well."""
        return self._durations.expected_s(trial) is not None

    def wanted(self, now_s: float) -> list[Shape]:
        """For which gangs there should be further nodes: the first that wait, where there is time to wait for nodes.

        Those that fit no nodes there are, and those that others keep from starting, unless all is done soon.
        """
        if not self._wait_s:
            return []
        worth = self._placed().left_s(now_s) > WORTH_S
        waiting = [each for each in self._placed().waiting() if worth or each.trial_id in self._homeless_since_s]
        return [Shape.of(trial) for trial in waiting[:AHEAD]]

    @property
    def threads(self) -> set[int]:
        """Of each rank, over all trials so far."""
        return {shape.gang.cpus_per_rank for shape in self._shapes}

    def upcoming(self) -> Upcoming | None:
        """The gangs that start next, where that takes processes that nobody has."""
        return self._placed().upcoming()

    @property
    def needs_gangs(self) -> bool:
        """Whether a trial waits that could run on the nodes there are, and perhaps on a gang that idles."""
        return len(self) > len(self._homeless_since_s)

    def untold(self) -> Sequence[tuple[TrialSpec, Outcome]]:
        """What was left out since the last round began; where none begins any more somebody has to ask."""
        told, self._told = self._told, len(self.left_out)
        return self.left_out[told:]

    def seats(self, start: Start) -> Gang:
        """The gang whose processes the trial takes: its own, or a larger one's that is kept."""
        return seats(Shape.of(start.trial), self._shapes, start.nodes)

    def _placed(self) -> Scheduler:
        if self._scheduler is None:
            raise RuntimeError("the agenda was not told of any nodes")
        return self._scheduler

    def _add(self, trials: Sequence[TrialSpec]) -> None:
        self._shapes.update(map(Shape.of, trials))
        self._placed().add(trials)

    def _try_again(self) -> None:
        """Other attempts come before what else waits in their shape, once the last one has left its place."""
        self._again += self._rounds.again()
        for trial in [each for each in self._again if each.trial_id not in self._running]:
            self._again.remove(trial)
            self._failures.again(trial)
            self._placed().again(trial)

    def _doubt(self) -> None:
        """Where all fails alike, hold the others back until some that are unlike those have been tried, too."""
        scheduler, doubted = self._placed(), self._failures.doubted
        if not doubted:
            self._let_go()
        if doubted and not self._held and len(scheduler):
            self._held = scheduler.take_back()
        if doubted and not self._running and not len(scheduler):
            tried = self._failures.witnesses(self._held)
            self._held = [trial for trial in self._held if trial not in tried]
            scheduler.add(tried)
            self.hopeless = "" if tried or not self._held else self._failures.reason

    def _let_go(self) -> None:
        """Those that were held back wait like all others."""
        held, self._held = self._held, []
        if held:
            self._placed().add(held)

    def _begin_round(self, now_s: float) -> None:
        trials = self._rounds.next(self.untold())
        self.over = not trials
        self._add(trials)
        self._give_up_homeless(now_s)

    def _give_up_homeless(self, now_s: float) -> None:
        """Trials that fit no nodes there are, as after a loss, wait for others only so long.

        That counts from when nothing runs: until then others have what an autoscaler could exchange for their nodes.
        Where there is no node at all that tells nothing of the trials: who waited goes on, for the reason of before.
        """
        waiting = self._placed().waiting()
        if can_run(self._nodes):
            self._reasons = {gang: why_infeasible(gang, self._nodes) for gang in {trial.gang for trial in waiting}}
            known = {} if self._running else self._homeless_since_s
            homeless = [each.trial_id for each in waiting if self._reasons[each.gang]]
            self._homeless_since_s = {each: known.get(each, now_s - self._waited_s) for each in homeless}
        waited = f"; no node for it came within cluster.wait_s={self._wait_s:g}" if self._wait_s else ""
        since = self._homeless_since_s
        in_vain = [each for each in waiting if now_s - since.get(each.trial_id, math.inf) >= self._wait_s]
        self._leave_out(
            (trial, Outcome(status=Status.INFEASIBLE, note=self._reasons[trial.gang] + waited, wall_s=0.0))
            for trial in [*in_vain, *self._take_held({trial.gang for trial in in_vain})]
        )

    def _take_held(self, gangs: Collection[Gang]) -> list[TrialSpec]:
        """Those of such gangs that are held back: what one of them waited for would not come for the others either."""
        taken = [trial for trial in self._held if trial.gang in gangs]
        self._held = [trial for trial in self._held if trial.gang not in gangs]
        self._placed().add(taken)
        return taken

    def _leave_out(self, trials: Iterable[tuple[TrialSpec, Outcome]]) -> None:
        for trial, outcome in list(trials):
            self._placed().drop(trial)
            self.left_out.append((trial, outcome))


def _skipped(reason: str) -> Outcome:
    return Outcome(status=Status.SKIPPED, note=reason, wall_s=0.0, skipped_by="budget")
