"""Decides what runs next. `TrialQueue` is the one owner of that question; the back end and the driver ask it.

The order of trials and their places come from `scheduler`. This module adds the budget, the wait for nodes that fit,
and the doubt in a sweep whose trials all fail for one reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

from orchestrator.schedule.cluster import Footprint, Node, can_run, kept_gang, why_infeasible
from orchestrator.schedule.retries import OWN_FAULT
from orchestrator.schedule.scheduler import Scheduler, Start
from orchestrator.store.history import Durations
from orchestrator.store.record import TrialOutcome
from sweeps.gpus import cost_of
from sweeps.layout import Gang
from sweeps.rank_exit import Cause, reason_of
from sweeps.status import Status
from sweeps.trial import TrialSpec

_INCONCLUSIVE = (Status.OOM, Status.INFEASIBLE, Status.SKIPPED)
"""Statuses that show neither that trials can succeed nor that they cannot."""

_NUMBER = re.compile(r"\d+")


class SystematicFailures:
    """Detects that all trials of one driver fail for one reason that does not depend on their axes.

    Until that is decided, the other trials are held back, and a few that differ from the failed ones are tried. Trials
    that differ only by seed count once.
    """

    def __init__(self, cells: int | None) -> None:
        """`cells`: how many have to fail for the same reason before the others are doubted; None: they never are."""
        self._cells = cells
        self._failed: dict[str, tuple[str, TrialSpec]] = {}  # the reason and the trial, by its id
        self._is_off = cells is None
        self._held: list[TrialSpec] = []
        self._witnesses: set[str] = set()  # the ids of the trials that are tried

    @property
    def held(self) -> int:
        """The number of trials held back."""
        return len(self._held)

    def ended(self, trial: TrialSpec, outcome: TrialOutcome | None) -> None:
        """Take the end of a trial into account; `outcome` is None if unknown."""
        if outcome is None or outcome.status in _INCONCLUSIVE or trial.measures:
            return
        if outcome.status is Status.FAILED and outcome.cause not in (*OWN_FAULT, Cause.PORT):
            return
        if outcome.status is not Status.FAILED:
            self._is_off = True
            return
        self._failed[trial.trial_id] = (reason_of(outcome.note), trial)
        # Two reasons show that the failures depend on the axes after all.
        self._is_off |= len({_without_batch(reason, failed) for reason, failed in self._failed.values()}) > 1

    def retried(self, trial: TrialSpec) -> None:
        """Forget the trial's failure, since another attempt follows."""
        self._failed.pop(trial.trial_id, None)

    @property
    def doubted(self) -> bool:
        """True if enough cells have failed for one reason, and none has ended in another way."""
        cells = {trial.cell_id for _, trial in self._failed.values()}
        return not self._is_off and self._cells is not None and len(cells) >= self._cells

    @property
    def reason(self) -> str:
        """The reason for which all of them failed."""
        return next(iter(self._failed.values()))[0]

    def hold(self, trials: Sequence[TrialSpec]) -> list[TrialSpec]:
        """Hold these trials back until it is decided, and return those that are tried."""
        self._held += [trial for trial in trials if trial.trial_id not in self._witnesses]
        return [trial for trial in trials if trial.trial_id in self._witnesses]

    def release(self, gangs: Collection[Gang] | None = None) -> list[TrialSpec]:
        """Return the trials held back, all or those with one of these gangs; they are held back no longer."""
        released = [trial for trial in self._held if gangs is None or trial.gang in gangs]
        self._held = [trial for trial in self._held if gangs is not None and trial.gang not in gangs]
        return released

    def witnesses(self) -> list[TrialSpec]:
        """Release the few trials to try first: if they fail, too, every value of every axis has failed."""
        tried = {value for _, trial in self._failed.values() for value in _values(trial)}
        untried = {value for trial in self._held for value in _values(trial)} - tried
        witnesses: list[TrialSpec] = []
        # Greedy: the trial with the most untried values comes first, so that few trials have to fail.
        while untried:
            witnesses.append(max(self._held, key=lambda trial: len(untried & _values(trial))))
            untried -= _values(witnesses[-1])
        self._held = [trial for trial in self._held if trial not in witnesses]
        self._witnesses |= {trial.trial_id for trial in witnesses}
        return witnesses


def _values(trial: TrialSpec) -> set[tuple[str, str]]:
    """Return the axes with their values as text, without the seed."""
    return {(axis, str(value)) for axis, value in trial.axes.items() if axis != "seed"}


def _without_batch(reason: str, trial: TrialSpec) -> str:
    """Return the reason without the trial's batch size: a tensor that does not fit is reported with its size."""
    own = {str(trial.batch.global_batch_size), str(trial.batch.device_batch_size)}
    return _NUMBER.sub(lambda number: "batch" if number[0] in own else number[0], reason)


EMPTY_CLUSTER_S = 30.0
"""For how long a cluster may have no nodes before that is believed: a restarted head forgets its nodes for a while."""


def patience_s(wait_s: float) -> float:
    """Return for how many seconds a cluster may have no usable node if `cluster.wait_s` is this."""
    return max(EMPTY_CLUSTER_S, wait_s)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long trials that fit no nodes wait for some."""

    wait_s: float = 0.0
    waited_s: float = 0.0  # how long the trials that fit no nodes at first have waited already


class Unplaced:
    """The trials of one queue that fit no nodes; seconds are those of the queue's clock.

    A trial's wait counts from when nothing runs: until then, running trials hold nodes that an autoscaler could
    replace. While there is no node at all, the wait goes on for the same reason as before.
    """

    def __init__(self, patience: Patience) -> None:
        self._wait_s, self._waited_s = patience.wait_s, patience.waited_s
        self._nodes: Sequence[Node] = ()
        self._last_node_s: float | None = None
        self._since_s: dict[str, float] = {}
        self._reasons: dict[Gang, str] = {}  # why a gang fits none of the last known nodes; empty if it fits

    def __len__(self) -> int:
        return len(self._since_s)

    def __contains__(self, trial: TrialSpec) -> bool:
        return trial.trial_id in self._since_s

    def set_nodes(self, nodes: Sequence[Node], now_s: float) -> bool:
        """Set the current nodes. Return whether there has been no usable node for too long."""
        self._nodes = nodes
        # A head without CPUs is no node to run on; before the first look, the cluster has had no time to lose nodes.
        if can_run(nodes) or self._last_node_s is None:
            self._last_node_s = now_s
        return now_s - self._last_node_s >= patience_s(self._wait_s)

    def give_up(self, waiting: Sequence[TrialSpec], now_s: float, *, running: bool) -> list[TrialSpec]:
        """Return the waiting trials that have waited long enough, and forget them; `running`: whether others run."""
        if can_run(self._nodes):
            self._reasons = {gang: why_infeasible(gang, self._nodes) for gang in {trial.gang for trial in waiting}}
            # While others run, every wait begins anew: they may free a node, or an autoscaler may replace theirs.
            known = {} if running else self._since_s
            unplaced = [trial.trial_id for trial in waiting if self._reasons[trial.gang]]
            self._since_s = {trial: known.get(trial, now_s - self._waited_s) for trial in unplaced}
        self._waited_s = 0.0
        since_s = self._since_s
        given_up = [trial for trial in waiting if now_s - since_s.get(trial.trial_id, math.inf) >= self._wait_s]
        for trial in given_up:
            del since_s[trial.trial_id]
        return given_up

    def outcome(self, trial: TrialSpec) -> TrialOutcome:
        """Return the outcome of a trial that was given up, or of another trial with the same gang."""
        waited = f"; no node for it came within cluster.wait_s={self._wait_s:g}" if self._wait_s else ""
        return TrialOutcome(cause=Cause.NO_ROOM, note=self._reasons[trial.gang] + waited, wall_s=0.0)


REVISIONS = 100  # how often the schedule is updated with durations of finished trials; each update takes O(trials)

REQUESTED_AT_ONCE = 64
"""Gangs for which a cluster is asked for nodes at a time; once their nodes have come, the next ones follow."""

WORTH_S = 120.0  # work expected to be done sooner requests no further nodes, which would take about as long to come


LeftOut = Sequence[tuple[TrialSpec, TrialOutcome]]  # trials that will not start, and why


class Supplier(Protocol):
    """Adds trials to a queue whenever all of its trials have ended."""

    def next(self, left_out: LeftOut) -> Sequence[TrialSpec]:
        """Return further trials; empty if there are no others. `left_out` is new since the last call."""

    def ended(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Take the end of an attempt."""


@dataclass(frozen=True, kw_only=True)
class SweepBudget:
    """The limits of the section `sweep.budget`, where None means no limit, and what was used of them before."""

    gpu_hours: float | None = None
    """GPU-hours of all trials, including earlier runs; hours of worker processes if there are no GPUs."""
    wall_s: float | None = None  # seconds since this run began
    cost: float | None = None
    price_per_gpu_hour: float | None = None
    used_gpu_s: float = 0.0  # GPU-seconds of earlier runs
    began_s: float | None = None  # when this run began; None: with its first nodes

    def reached(self, *, gpu_s: float, wall_s: float) -> str:
        """Return a message about the first limit that this usage reaches; empty if there is none."""
        hours = gpu_s / 3600
        cost = cost_of(hours, self.price_per_gpu_hour)
        usage = (("gpu_hours", hours, self.gpu_hours), ("wall_s", wall_s, self.wall_s), ("cost", cost, self.cost))
        for name, used, limit in usage:
            if limit is not None and used >= limit:
                return f"sweep.budget.{name}={limit:g} was used up"
        return ""


class TrialQueue:
    """The trials of one run. A back end sets its nodes, takes trials, and reports their ends.

    Seconds are on the monotonic clock of this process.
    """

    def __init__(
        self,
        trials: Sequence[TrialSpec],
        *,
        durations: Durations | None = None,
        budget: SweepBudget | None = None,
        patience: Patience | None = None,
        equal_failures: int | None = None,
        supplier: Supplier | None = None,
        as_started: Callable[[Start], TrialSpec] = attrgetter("trial"),
    ) -> None:
        """`equal_failures` is how many cells may fail for one reason before the rest is not run; None: all.

        `supplier`: None: no trials follow. `as_started` returns the trial with what is known only when it starts; its
        ids and its gang stay.
        """
        self._durations = durations or Durations()
        self._budget = budget or SweepBudget()
        self._gpu_s = self._budget.used_gpu_s
        self._patience = patience or Patience()
        self._unplaced = Unplaced(self._patience)
        self._failures = SystematicFailures(equal_failures)
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._scheduler = Scheduler((), (), self._durations.expected_s)
        self._footprints: set[Footprint] = set()
        self._nodes: list[Node] | None = None
        self._supplier = supplier
        self._as_started = as_started
        self._is_closed = supplier is None
        self._began_s = 0.0
        self._ends = self._added = self._reported = 0
        self.left_out: list[tuple[TrialSpec, TrialOutcome]] = []  # trials that will not start, and why
        self.no_nodes = False
        """Whether there has been no node for too long: the waiting trials stop waiting, and have no end."""
        self.all_failing = ""
        """The reason for which all trials have failed so far and the rest would, too; the rest does not run."""
        self._add(trials)

    def __len__(self) -> int:
        """Return the number of trials waiting to start."""
        return len(self._scheduler) + self._failures.held

    @property
    def over(self) -> bool:
        """True if nothing runs and nothing will."""
        ends_early = self.no_nodes or bool(self.all_failing)
        return not self._running and (ends_early or (self._is_closed and not len(self)))

    def set_nodes(self, nodes: Sequence[Node], now_s: float) -> None:
        """Set the current nodes; call again when they change, or to end a wait for nodes that has taken too long."""
        if self._nodes is None:
            # What the driver did before its first trial counts for the budget, too.
            self._began_s = now_s if self._budget.began_s is None else self._budget.began_s
        if list(nodes) != self._nodes:
            self._scheduler.set_nodes(nodes)
            self._nodes = list(nodes)
        self.no_nodes = self._unplaced.set_nodes(nodes, now_s)
        self._give_up_unplaced(now_s)

    def next(self, now_s: float) -> Start | None:
        """Return the trial to start now, if any."""
        start = self._next_waiting(now_s)
        while start is None and self._supplier is not None and self._needs_trials:
            trials = self._supplier.next(self.newly_left_out())
            self._is_closed = not trials
            self._add(trials)
            # The budget may be used up, or no node fits: the supplier is asked again then.
            self._give_up_unplaced(now_s)
            start = self._next_waiting(now_s)
        if start is None:
            return None
        self._running[start.trial.trial_id] = (start.trial, now_s)
        return replace(start, trial=self._as_started(start))

    @property
    def _needs_trials(self) -> bool:
        """True if nothing runs or waits, and the supplier may add trials."""
        return not (self._is_closed or self._running or len(self) or self.over)

    def _next_waiting(self, now_s: float) -> Start | None:
        if self.no_nodes:
            return None
        self._hold_back_doubted()
        if self.all_failing:
            return None
        reason = self._budget.reached(gpu_s=self.gpu_s(now_s), wall_s=now_s - self._began_s)
        if reason:
            # Trials held back are left out with the others, or they would wait forever.
            self._scheduler.add(self._failures.release())
            skipped = TrialOutcome(note=reason, wall_s=0.0, skipped_by="budget")
            self._leave_out((trial, skipped) for trial in self._scheduler.waiting())
        return self._scheduler.next(now_s)

    def ended(
        self, trial_id: str, now_s: float, outcome: TrialOutcome | None = None, *, is_retried: bool = False
    ) -> None:
        """Report the end of an attempt; `outcome` is None if unknown. With `is_retried` another attempt follows."""
        trial, started_s = self._running.pop(trial_id)
        self._gpu_s += trial.gpus_held * (now_s - started_s)
        self._scheduler.ended(trial_id)
        if outcome and outcome.status is Status.OK and not trial.measures:
            self._durations.add(trial.cell_id, trial.axes, outcome.wall_s)
        self._failures.ended(trial, outcome)
        # Each revision takes O(trials), so a large sweep is not revised at every end.
        self._ends += 1
        if self._ends % max(1, self._added // REVISIONS) == 0:
            self._scheduler.revise()
        if outcome and self._supplier is not None:
            self._supplier.ended(trial, outcome)
        if outcome and is_retried:
            # The other trial with the same port may still run.
            self.retry(replace(trial, timing="exclusive") if outcome.cause is Cause.PORT else trial)

    def retry(self, trial: TrialSpec) -> None:
        """Queue a trial again that has ended or could not start; it comes before others of its footprint."""
        self._failures.retried(trial)
        self._scheduler.retry(trial)

    def gpu_s(self, now_s: float) -> float:
        """Return the GPU-seconds that were held so far."""
        return self._gpu_s + sum(trial.gpus_held * (now_s - start_s) for trial, start_s in self._running.values())

    def is_timed(self, trial: TrialSpec) -> bool:
        """Return whether a trial with about the same speed has ended well."""
        return self._durations.expected_s(trial) is not None

    def wanted(self, now_s: float) -> list[Footprint]:
        """Return the gangs for which further nodes should be requested, if nodes may be waited for.

        These are the first waiting gangs that fit no nodes, or that others keep from starting, unless all is done soon.
        """
        if not self._patience.wait_s:
            return []
        worth = self._scheduler.left_s(now_s) > WORTH_S
        waiting = [trial for trial in self._scheduler.waiting() if worth or trial in self._unplaced]
        return [Footprint.of(trial) for trial in waiting[:REQUESTED_AT_ONCE]]

    @property
    def needs_gangs(self) -> bool:
        """True if a trial that fits the current nodes waits, or may be added next, and could use an idle gang."""
        return len(self) > len(self._unplaced) or self._needs_trials

    def newly_left_out(self) -> LeftOut:
        """Return what was left out since the last call."""
        reported, self._reported = self._reported, len(self.left_out)
        return self.left_out[reported:]

    def kept_gang(self, start: Start) -> Gang:
        """Return the gang whose processes the trial uses: its own, or a larger one that is kept."""
        return kept_gang(Footprint.of(start.trial), self._footprints, start.nodes)

    def _add(self, trials: Sequence[TrialSpec]) -> None:
        self._added += len(trials)
        self._footprints.update(map(Footprint.of, trials))
        self._scheduler.add(trials)

    def _hold_back_doubted(self) -> None:
        """If all trials fail for one reason, hold the others back until some that differ have been tried, too."""
        scheduler, failures = self._scheduler, self._failures
        if not failures.doubted:
            scheduler.add(failures.release())
            return
        if not failures.held and len(scheduler):
            scheduler.add(failures.hold(scheduler.take_back()))
        if not self._running and not len(scheduler):
            tried = failures.witnesses()
            scheduler.add(tried)
            self.all_failing = "" if tried or not failures.held else failures.reason

    def _give_up_unplaced(self, now_s: float) -> None:
        """Leave out trials that have waited for nodes for too long, and those held back with the same gangs."""
        given_up = self._unplaced.give_up(self._scheduler.waiting(), now_s, running=bool(self._running))
        if not given_up:
            return
        alike = self._failures.release({trial.gang for trial in given_up})
        self._scheduler.add(alike)
        self._leave_out((trial, self._unplaced.outcome(trial)) for trial in [*given_up, *alike])

    def _leave_out(self, trials: Iterable[tuple[TrialSpec, TrialOutcome]]) -> None:
        for trial, outcome in list(trials):
            self._scheduler.drop(trial)
            self.left_out.append((trial, outcome))
