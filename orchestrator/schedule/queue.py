"""Tells a back end what to do next: which trial starts where, and when none may start any more.

Waits for nodes of a cluster: the first that could run anything, and those that an autoscaler adds.

Trials that fit none of the current nodes: why, since when, and which have waited for one in vain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.config.request import Cluster
from orchestrator.schedule.cluster import Node, Shape, kept_gang, why_infeasible
from orchestrator.schedule.failure_policy import SystematicFailures
from orchestrator.schedule.scheduler import Scheduler, Start
from orchestrator.store.history import Durations
from orchestrator.store.record import TrialOutcome
from sweeps.errors import ConfigError
from sweeps.status import Allowance, Status
from sweeps.trial import Gang, TrialSpec

ARRIVAL_S = 30.0
"""A cluster is believed to be without nodes only after so long: a busy head forgets its own, and takes it back."""

LOOK_EVERY_S = 0.5

NOWHERE = Node(name="a node to come", cpus=64, gpus=64)
"""Stands for a node that nobody knows yet, while the first is asked for: with GPUs, and few cores for each."""


def patience_s(wait_s: float) -> float:
    """Seconds for which a cluster may have no usable node if `cluster.wait_s` is this."""
    return max(ARRIVAL_S, wait_s)


def can_run(nodes: Sequence[Node]) -> bool:
    """Whether any node can run trials; the head of a cluster often has no CPUs of its own."""
    return any(node.cpus or node.gpus for node in nodes)


def nodes_ready(nodes: Sequence[Node], cluster: Cluster) -> bool:
    """Whether there is what a plan can be made for: where GPUs are asked for and may be waited for, one of those."""
    awaits_gpu = cluster.wait_s > 0 and cluster.device == "cuda"
    return any(node.gpus for node in nodes) if awaits_gpu else can_run(nodes)


def first_shape(trials: Iterable[TrialSpec]) -> Shape:
    """What a cluster without nodes is asked for first, of trials as they would be NOWHERE: room for the smallest."""
    return min(map(Shape.of, trials), key=lambda shape: shape.size)


def arrived(
    nodes: Callable[[], Sequence[Node]],
    cluster: Cluster,
    *,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Node]:
    """The nodes, once one of them can run what is asked for, or somebody wants to stop.

    After `patience_s` those that can run something else; ConfigError where there is none at all.
    """
    began_s, within_s = clock(), patience_s(cluster.wait_s)
    while not nodes_ready(found := nodes(), cluster) and not stopping():
        if clock() - began_s >= within_s:
            if can_run(found):
                return found
            raise ConfigError([_refusal(found, cluster, within_s)])
        sleep(LOOK_EVERY_S)
    return found


def _refusal(found: Sequence[Node], cluster: Cluster, within_s: float) -> str:
    where = f"cluster.address={cluster.address}: " if cluster.address else "Ray: "
    labels = f" with the labels {dict(cluster.labels)}" if cluster.labels else ""
    state = f"none of its {len(found)} nodes{labels} has CPUs" if found else f"it has no node{labels} that is alive"
    return f"{where}{state}, and none came within {within_s:g} s (cluster.wait_s waits longer)"


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

    def no_nodes(self, nodes: Sequence[Node], now_s: float) -> bool:
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

    def end(self, trial: TrialSpec) -> TrialOutcome:
        """That of one that has waited in vain, or of another of its gang."""
        waited = f"; no node for it came within cluster.wait_s={self._wait_s:g}" if self._wait_s else ""
        return TrialOutcome(status=Status.INFEASIBLE, note=self._reasons[trial.gang] + waited, wall_s=0.0)


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

    def next(self, left_out: Sequence[tuple[TrialSpec, TrialOutcome]]) -> Sequence[TrialSpec]:
        """The next round; empty where there is none. `left_out` did not start in the last."""


class OneRound:
    """The trials that an agenda has are all."""

    def again(self) -> Sequence[TrialSpec]:
        """No trial has another attempt."""
        return ()

    def next(self, left_out: Sequence[tuple[TrialSpec, TrialOutcome]]) -> Sequence[TrialSpec]:
        """There is no other round."""
        return ()


class TrialQueue:
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
        self._failures = SystematicFailures(equal_failures)
        self._again: list[TrialSpec] = []
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._scheduler: Scheduler | None = None
        self._shapes: set[Shape] = set()
        self._nodes: Sequence[Node] = ()
        self._began_s = 0.0
        self._ends = self._added = 0
        self._reported = 0
        self.left_out: list[tuple[TrialSpec, TrialOutcome]] = []
        """Trials that will not start, and why."""
        self.no_nodes = False
        """Whether there has been no node for too long: the waiting trials stop waiting, without an end of their own."""
        self.all_failing = ""
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
        self.no_nodes = self._unplaced.no_nodes(nodes, now_s)
        self._give_up_unplaced(now_s)

    def next(self, now_s: float) -> Start | None:
        """The trial to start now, if any; if there will be none, the agenda is `over`."""
        scheduler = self._placed()
        while not self.over:
            if self.no_nodes:
                self.over = not self._running
                return None
            self._try_again()
            self._doubt()
            if self.all_failing:
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

    def ended(self, trial_id: str, now_s: float, outcome: TrialOutcome | None = None) -> None:
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
    def needs_gangs(self) -> bool:
        """Whether a trial waits that could run on the nodes there are, and perhaps on a gang that idles."""
        return len(self) > len(self._unplaced)

    def newly_left_out(self) -> Sequence[tuple[TrialSpec, TrialOutcome]]:
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
            self.all_failing = "" if tried or not failures.held else failures.reason

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

    def _leave_out(self, trials: Iterable[tuple[TrialSpec, TrialOutcome]]) -> None:
        for trial, outcome in list(trials):
            self._placed().drop(trial)
            self.left_out.append((trial, outcome))


def _skipped(reason: str) -> TrialOutcome:
    return TrialOutcome(status=Status.SKIPPED, note=reason, wall_s=0.0, skipped_by="budget")
