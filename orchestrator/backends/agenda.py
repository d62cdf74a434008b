"""Tells a back end what to do next: which trial starts where, and when none may start any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from orchestrator.backends.equal_failures import EqualFailures
from orchestrator.backends.unplaced import Patience, Unplaced
from orchestrator.journal.durations import Durations
from orchestrator.journal.outcome import Outcome
from orchestrator.scheduling.kept_gang import kept_gang
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from orchestrator.scheduling.scheduler import Scheduler, Start
from orchestrator.scheduling.upcoming import Upcoming
from sweeps.limit import Allowance
from sweeps.status import Status
from sweeps.trial import Gang, TrialSpec

REVISIONS = 100
"""How often the schedule is updated with durations of finished trials; each update takes O(trials)."""

AHEAD = 64
"""Gangs for which a cluster is asked for nodes at a time; once theirs have come, the next ones follow."""

WORTH_S = 120.0
"""Work expected to be done sooner requests no further nodes, which would take about as long to come."""


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


class Agenda:
    """The trials of one run. A back end passes it its nodes, takes trials from it, and reports their ends.

    Seconds are on the back end's monotonic clock.
    """

    def __init__(
        self,
        trials: Sequence[TrialSpec],
        *,
        durations: Durations | None = None,
        allowance: Allowance | None = None,
        patience: Patience | None = None,
        rounds: Rounds | None = None,
        equal_failures: int | None = None,
    ) -> None:
        """`equal_failures`: how many cells may fail for the same reason before the rest is not run; None: all."""
        self._trials = list(trials)
        self._durations = durations or Durations()
        self._allowance = allowance or Allowance()
        self._gpu_s = self._allowance.gpu_s
        self._patience = patience or Patience()
        self._unplaced = Unplaced(self._patience)
        self._rounds = rounds or OneRound()
        self._failures = EqualFailures(equal_failures)
        self._again: list[TrialSpec] = []
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._scheduler: Scheduler | None = None
        self._shapes: set[Shape] = set()
        self._nodes: Sequence[Node] = ()
        self._began_s = 0.0
        self._ends = self._added = 0
        self._reported = 0
        self.left_out: list[tuple[TrialSpec, Outcome]] = []
        """Trials that will not start, and why."""
        self.deserted = False
        """Whether there has been no node for too long: the waiting trials stop waiting, without an end of their own."""
        self.hopeless = ""
        """The reason for which all trials have failed so far and the rest would, too; the rest does not run."""
        self.over = False
        """Whether nothing is running and nothing will."""

    def __len__(self) -> int:
        """The number of trials waiting to start."""
        return len(self._trials) if self._scheduler is None else len(self._scheduler) + self._failures.held

    def on(self, nodes: Sequence[Node], now_s: float) -> None:
        """Set the current nodes; call again when they change, or to end a wait for nodes that has taken too long."""
        if self._scheduler is None:
            by_seed = self._allowance.limit.is_set
            self._scheduler = Scheduler((), nodes, self._durations.expected_s, seed_by_seed=by_seed)
            self._add(self._trials)
            self._began_s = now_s - self._allowance.wall_s
        elif list(nodes) != list(self._nodes):
            self._scheduler.moved(nodes)
        self._nodes = nodes
        self.deserted = self._unplaced.deserted(nodes, now_s)
        self._give_up_unplaced(now_s)

    def next(self, now_s: float) -> Start | None:
        """The trial to start now, if any; if there will be none, the agenda is `over`."""
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
            if self._running or len(scheduler) or self._again or self._failures.held:
                return None
            self._begin_round(now_s)
        return None

    def ended(self, trial_id: str, now_s: float, outcome: Outcome | None = None) -> None:
        """The trial has ended; None if its outcome is not known."""
        trial, started_s = self._running.pop(trial_id)
        self._gpu_s += trial.gpus_held * (now_s - started_s)
        self._placed().ended(trial_id)
        if outcome and outcome.status is Status.OK and not trial.probes:
            self._durations.add(trial.cell_id, trial.axes, outcome.wall_s)
        self._failures.ended(trial, outcome)
        self._ends += 1
        if self._ends % max(1, self._added // REVISIONS) == 0:
            self._placed().revise()

    def again(self, trial: TrialSpec) -> None:
        """The trial could not start and waits again."""
        self._again.append(trial)

    def gpu_s(self, now_s: float) -> float:
        """GPU-seconds that were held so far."""
        return self._gpu_s + sum(trial.gpus_held * (now_s - start_s) for trial, start_s in self._running.values())

    def is_timed(self, trial: TrialSpec) -> bool:
        """Whether a trial with about the same speed has ended well."""
        return self._durations.expected_s(trial) is not None

    def wanted(self, now_s: float) -> list[Shape]:
        """Gangs for which further nodes should be requested: the first that wait, if nodes may be waited for.

        Those that fit no nodes there are, and those that others keep from starting, unless all is done soon.
        """
        if not self._patience.wait_s:
            return []
        worth = self._placed().left_s(now_s) > WORTH_S
        waiting = [each for each in self._placed().waiting() if worth or each in self._unplaced]
        return [Shape.of(trial) for trial in waiting[:AHEAD]]

    @property
    def threads(self) -> set[int]:
        """The numbers of threads that ranks have, over all trials so far."""
        return {shape.gang.cpus_per_rank for shape in self._shapes}

    def upcoming(self) -> Upcoming | None:
        """The gangs that start next, if that takes processes that do not exist yet."""
        return self._placed().upcoming()

    @property
    def needs_gangs(self) -> bool:
        """Whether a trial waits that could run on the nodes there are, and perhaps on a gang that idles."""
        return len(self) > len(self._unplaced)

    def newly_left_out(self) -> Sequence[tuple[TrialSpec, Outcome]]:
        """What was left out since the last call; needed after the last round, when no further one asks."""
        reported, self._reported = self._reported, len(self.left_out)
        return self.left_out[reported:]

    def kept_gang(self, start: Start) -> Gang:
        """The gang whose processes the trial uses: its own, or a larger one's that is kept."""
        return kept_gang(Shape.of(start.trial), self._shapes, start.nodes)

    def _placed(self) -> Scheduler:
        if self._scheduler is None:
            raise RuntimeError("the agenda was not told of any nodes")
        return self._scheduler

    def _add(self, trials: Sequence[TrialSpec]) -> None:
        self._added += len(trials)
        self._shapes.update(map(Shape.of, trials))
        self._placed().add(trials)

    def _try_again(self) -> None:
        """Retries come before other trials of their shape, once the last attempt has freed its place."""
        self._again += self._rounds.again()
        for trial in [each for each in self._again if each.trial_id not in self._running]:
            self._again.remove(trial)
            self._failures.again(trial)
            self._placed().again(trial)

    def _doubt(self) -> None:
        """If all trials fail for one reason, hold the others back until some that differ have been tried, too."""
        scheduler, failures = self._placed(), self._failures
        if not failures.doubted:
            self._let_go()
            return
        if not failures.held and len(scheduler):
            failures.hold(scheduler.take_back())
        if not self._running and not len(scheduler):
            tried = failures.witnesses()
            scheduler.add(tried)
            self.hopeless = "" if tried or not failures.held else failures.reason

    def _let_go(self) -> None:
        """Return trials that were held back to the queue."""
        if held := self._failures.let_go():
            self._placed().add(held)

    def _begin_round(self, now_s: float) -> None:
        trials = self._rounds.next(self.newly_left_out())
        self.over = not trials
        self._add(trials)
        self._give_up_unplaced(now_s)

    def _give_up_unplaced(self, now_s: float) -> None:
        """Leave out what waited in vain, and what is held back of such gangs: for that nothing would come either."""
        in_vain = self._unplaced.in_vain(self._placed().waiting(), now_s, running=bool(self._running))
        if not in_vain:
            return
        alike = self._failures.let_go({trial.gang for trial in in_vain})
        self._placed().add(alike)
        self._leave_out((trial, self._unplaced.end(trial)) for trial in [*in_vain, *alike])

    def _leave_out(self, trials: Iterable[tuple[TrialSpec, Outcome]]) -> None:
        for trial, outcome in list(trials):
            self._placed().drop(trial)
            self.left_out.append((trial, outcome))


def _skipped(reason: str) -> Outcome:
    return Outcome(status=Status.SKIPPED, note=reason, wall_s=0.0, skipped_by="budget")
