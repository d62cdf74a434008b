"""The back end that runs trials on a Ray cluster, as one Tune experiment: Tune asks `QueueSearch` for each trial.

Each Tune trial is one attempt at one of our trials, with its gang in one placement group.
"""

from __future__ import annotations

import logging
import math
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Experiment, Stopper
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import SearchAlgorithm

from orchestrator.backends.backend import GuardedListener, Listener, NotSaved
from orchestrator.backends.gpu_quarantine import Quarantine
from orchestrator.backends.ray.autoscaler import Demand
from orchestrator.backends.ray.cluster import Cluster, handler_kept
from orchestrator.backends.ray.early_stop import EarlyStop
from orchestrator.backends.ray.head import head_watched
from orchestrator.backends.ray.local_cluster import environment
from orchestrator.backends.ray.private_tune import Unprinted, gangs_in_tune
from orchestrator.backends.ray.tune import Attempt, Bundles, GangTrainable, Relay, Starting
from orchestrator.backends.ray.tune_extensions import Extensions
from orchestrator.config.request import Request
from orchestrator.schedule.cluster import Footprint, Node
from orchestrator.schedule.queue import TrialQueue
from orchestrator.schedule.scheduler import Start
from orchestrator.telemetry.sampler import Sampling
from orchestrator.trackers.tracking import run_of
from sweeps.rank_exit import Cause
from sweeps.trial import RankRequest


class RayBackend:
    """Runs trials on a Ray cluster, until `close`.

    Callbacks of the `extensions` are called after the listener; an exception in one of them ends the sweep.
    """

    def __init__(self, request: Request, here: Node, *, extensions: Extensions | None = None) -> None:
        """`here` is this machine, with the resources of a cluster that is started here."""
        self._request = request
        self._extensions = extensions or Extensions()
        self._cluster = Cluster(request.settings, here)
        self._quarantine = Quarantine()
        self._demand = Demand(request.settings.cluster.labels, self._quarantine) if request.waits else None

    @property
    def dashboard_url(self) -> str:
        """URL of Ray's dashboard; empty if there is none."""
        return self._cluster.dashboard_url

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's living nodes with the requested labels, without lost GPUs."""
        return self._quarantine.without(self._cluster.nodes())

    def ask_for(self, footprints: Sequence[Footprint]) -> None:
        """Ask the autoscaler for nodes for these gangs, in addition to the existing ones."""
        if self._demand is not None:
            self._demand.update(footprints, self.nodes())

    def run(self, trial_queue: TrialQueue, results_dir: Path, listener: Listener) -> None:
        """Run the trials; see `Backend`. An exception from the listener is raised here, after everything has ended."""
        guarded = GuardedListener(listener)
        extensions, settings = self._extensions, self._request.settings
        with ExitStack() as stack:
            # The listener's exception comes last, when nothing runs or is requested any more.
            stack.callback(guarded.reraise)
            if self._demand is not None:
                stack.callback(self._demand.close)
            stop = _Stop(guarded)
            # The folder is absolute, because supervisors have another current folder.
            starting = Starting(
                results_dir=results_dir.absolute(),
                driver_node=ray.get_runtime_context().get_node_id(),
                settings=settings,
                quarantine=self._quarantine,
                secrets=extensions.secrets,
            )
            shown = bool(extensions.callbacks or extensions.storage_path)
            queue = QueueSearch(trial_queue, self.nodes, starting, stop.stop_all, self._demand, keeps_ended=shown)
            early_stop = EarlyStop(self._request, trial_queue.is_timed) if settings.sweep.early_stop else None
            printer = [] if settings.verbose else [Unprinted()]
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(environment(_TUNE))
            stack.enter_context(gangs_in_tune())
            if not settings.verbose:
                # The listener learns of every end, and Tune would print it once more.
                logger = logging.getLogger("ray.tune")
                stack.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.CRITICAL)
            stack.enter_context(handler_kept(signal.SIGUSR1))
            stack.enter_context(head_watched())
            tune.run(
                GangTrainable,
                name=extensions.name(results_dir),
                storage_path=extensions.storage_path or scratch,
                search_alg=queue,
                scheduler=QueueScheduler(queue.stranded, early_stop),
                stop=stop,
                callbacks=[Relay(guarded, self._quarantine), *extensions.callbacks, *printer],
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=2 if settings.verbose else 0,
            )

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        self._cluster.close()


NODES_EVERY_S = 2.0  # how often to ask the cluster for its nodes, which may be lost or added


class QueueSearch(NotSaved, SearchAlgorithm):  # type: ignore[misc]
    """Tune's source of trials.

    Tune starts trials in whatever order resources become free, and keeps idle actors only for trials it already knows.
    Therefore it gets each trial only when the trial can start: the queue decides on order and waiting, and an idle
    gang is either used by the next trial of its footprint or ends for a gang of another one. If there are several
    nodes, each gang names its nodes, because the queue relies on them.
    """

    def __init__(
        self,
        trial_queue: TrialQueue,
        nodes: Callable[[], Sequence[Node]],
        starting: Starting,
        stopping: Callable[[], bool] = lambda: False,
        demand: Demand | None = None,
        keeps_ended: bool = True,
    ) -> None:
        """`stopping`: whether the sweep is to end; while it waits for its first trial, Tune asks only this queue.

        `demand` asks for further nodes; None if the cluster has no others. `keeps_ended`: whether Tune is to keep
        trials that have ended.
        """
        self.keeps_ended = keeps_ended
        self._stopping = stopping
        self._demand = demand
        self._trial_queue = trial_queue
        self._nodes = nodes
        self._starting = starting
        self._given: list[tuple[Attempt, Start]] = []
        self._taken_back: set[str] = set()
        self._count = 0
        self._several = False
        self._alive: Sequence[Node] = ()
        self._asked = False
        self._set_nodes()

    @property
    def total_samples(self) -> int:
        """The total number of trials."""
        return len(self._trial_queue) + self._count

    def add_configurations(self, experiments: list[Experiment]) -> None:
        """Remember Tune's experiment, to which its trials belong."""
        self._experiment = experiments[0]

    def next_trial(self) -> Attempt | None:
        """Return the next trial, if one may start now."""
        now_s = time.monotonic()
        self._note_ends(now_s)
        if self._stopping():
            return None
        if now_s - self._looked_s > NODES_EVERY_S:
            self._set_nodes()
        start = self._trial_queue.next(now_s)
        if start is None:
            if self._demand is not None and not self._asked:  # once after each look at the nodes
                self._demand.update(self._trial_queue.wanted(now_s), self._alive)
                self._asked = True
            return None
        trial, starting = start.trial, self._starting
        trial_dir = starting.results_dir / "trials" / trial.trial_id
        attempt = Attempt(
            self._experiment.spec["run"],
            trial,
            given={
                "request": RankRequest(trial=trial, trial_dir=trial_dir, driver_node=starting.driver_node),
                "settings": starting.settings,
                # Made here, because it names the driver, whose load is not foreign.
                "sampling": Sampling(),
                "lost": sorted(starting.quarantine.devices),
            },
            shown={"params": dict(run_of(trial, starting.secrets).params)},
            trial_id=f"{trial.trial_id}-{self._count}",  # to Tune, each attempt is a separate trial
            storage=self._experiment.storage,
            placement_group_factory=self._bundles(start),
        )
        self._given.append((attempt, start))
        self._count += 1
        return attempt

    def _note_ends(self, now_s: float) -> None:
        """Tell the queue which attempts have ended."""
        for attempt, start in [(attempt, start) for attempt, start in self._given if attempt.is_finished()]:
            self._given.remove((attempt, start))
            self._trial_queue.ended(start.trial.trial_id, now_s, attempt.outcome, is_retried=attempt.is_retried)
            # It never started: the queue must not count this as a failure of the trial.
            if attempt.trial_id in self._taken_back:
                self._trial_queue.retry(start.trial)
            elif attempt.outcome is None or attempt.outcome.cause is Cause.NODE:
                self._looked_s = -math.inf  # look again, so that the next attempt avoids a lost node

    def stranded(self) -> list[Trial]:
        """Return trials that have not started and whose node is gone; they are queued again."""
        alive = {node.node_id for node in self._alive}
        stranded = [
            attempt
            for attempt, start in self._given
            if attempt.status == Trial.PENDING and not {node.node_id for node in start.nodes} <= alive
        ]
        self._taken_back.update(attempt.trial_id for attempt in stranded)
        return stranded

    def is_finished(self) -> bool:
        """Return whether no further trial will come."""
        return self._finished or self._trial_queue.over or self._stopping()

    def gangs_needed(self) -> bool:
        """Return whether to keep idle gangs; on an autoscaled cluster, only if a trial could use one."""
        return self._demand is None or self._trial_queue.needs_gangs

    def _set_nodes(self) -> None:
        self._looked_s, self._asked = time.monotonic(), False
        before, self._alive = self._alive, self._nodes()
        if self._demand is not None and before != self._alive:
            self._demand.close()  # the requested nodes may have arrived, and must be free for the trials
        # Never reset: gangs kept on the last remaining node name it, and would no longer match.
        self._several = self._several or len(self._alive) > 1
        self._trial_queue.set_nodes(self._alive, self._looked_s)

    def _bundles(self, start: Start) -> Bundles:
        """Return the bundles of the gang that the trial uses, which may be larger than its own."""
        # Fresh workers end with their trial, so that a larger gang's processes would be of no use to later ones.
        own = start.trial.gang
        place = own if self._starting.settings.workers == "fresh" else self._trial_queue.kept_gang(start)
        nodes = start.nodes[:1] * place.ranks if place != own else start.nodes
        return Bundles(place.occupying(start.trial.timing), nodes if self._several else ())


class QueueScheduler(NotSaved, FIFOScheduler):  # type: ignore[misc]
    """Tune's scheduler: first come, first served; it takes back trials that would wait for a lost node forever."""

    def __init__(self, stranded: Callable[[], Sequence[Trial]], early_stop: EarlyStop | None = None) -> None:
        """`stranded` returns those trials and queues them again."""
        super().__init__()
        self._stranded = stranded
        self._early_stop = early_stop

    def on_trial_result(self, tune_controller: Any, trial: Attempt, result: dict[str, Any]) -> str:
        """Continue; the supervisor stops a trial early, because it keeps the processes and reports the outcome."""
        if why := self._reason_to_stop(trial, result.get("rows", ())):
            trial.temporary_state.ray_actor.give_up.remote(trial.spec.trial_id, why)
        return str(super().on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Attempt, result: dict[str, Any]) -> None:
        """Take the last rows into account: other trials are compared with them, and a short trial has no others."""
        self._reason_to_stop(trial, trial.rows)
        super().on_trial_complete(tune_controller, trial, result)

    def _reason_to_stop(self, trial: Attempt, rows: Sequence[Mapping[str, Any]]) -> str:
        return self._early_stop.reason_to_stop(trial, rows) if self._early_stop else ""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The first waiting trial."""
        for trial in self._stranded():
            tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)


_TUNE = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # the journal decides what is done, not Tune's experiment state
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # QueueSearch holds trials back, not Tune
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}


class _Stop(Stopper):  # type: ignore[misc]
    """Ends the whole experiment when the listener asks to stop."""

    def __init__(self, guarded: GuardedListener) -> None:
        self._guarded = guarded

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with self._guarded.listening() as listener:
            return listener.stopping()
