"""The private names of Ray Tune that this project uses. One more, `SearchAlgorithm._finished`, is read in `backend.py`.

Tune's controller starts our gangs instead of Tune's trainables, which would take twice as long to start. Its loop
calls `TuneController.step`, which in this order

1. asks the queue for trials (`_update_trial_queue`),
2. stages them: the cache counts a gang that is wanted, and the trial takes a kept gang (`_schedule_trial_reset`) or a
   new one (`_schedule_trial_actor`), for which the actor manager requests resources,
3. handles one event of an actor (`_actor_manager.next`), such as bundles that are ready, or a trial's end, after which
   its gang goes into the cache,
4. ends gangs that the cache gives up, and forgets trials (`on_step_end`).

After the last step it ends all gangs (`_cleanup_trials`). The comment above an override says who calls it. Checked
with Ray 2.59.0 and 2.60.0; `test_private.py` inspects every name and fails if Ray changes one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Protocol

import ray
from ray import tune
from ray.air._internal import usage
from ray.air.execution import AcquiredResources, ResourceManager
from ray.air.execution.resources.placement_group import PlacementGroupAcquiredResources
from ray.exceptions import RayError
from ray.tune import PlacementGroupFactory
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup

from orchestrator.backends.ray.private import patched
from orchestrator.backends.ray.supervisor import Supervisor
from orchestrator.end_process import GANGS_END_S

CONFIG_ATTRIBUTES = ("config", "_Trial__unresolved_config")  # attributes in which a Tune trial holds its config

ASK_QUEUE_EVERY_S = 0.2  # how often to ask the queue for a trial while nothing runs
POLL_BUNDLES_S = 0.02  # how often to ask Ray whether a gang's bundles are reserved


class Key(Protocol):
    """The key of a kept gang: its bundles."""

    def may_hold(self, other: Any) -> bool:
        """Return whether this gang might occupy a node that the other one needs."""


class KeptGangs:
    """A cache of gangs whose trial has ended; it has the methods of Tune's `_ObjectCache`.

    Tune's cache drops a gang at once if a gang of another footprint waits to start. Starting takes seconds, in which
    many gangs could be dropped and started again although the next trial has their footprint. Here a gang is kept until
    the queue has had one chance to give it another trial. It then ends only if another gang waits for one of its nodes.
    """

    def __init__(self, needed: Callable[[], bool] = lambda: True) -> None:
        """`needed`: whether any trial could still use a kept gang; if not, its nodes are released."""
        self._needed = needed
        self._kept: dict[Any, list[Any]] = {}
        self._wanted: Counter[Any] = Counter()
        self._new: list[Any] = []

    # Step 2 asks for trials that could take a kept gang only if there is one.
    @property
    def num_cached_objects(self) -> int:
        """The number of kept gangs."""
        return sum(map(len, self._kept.values()))

    # Step 4 of a finished queue ends all kept gangs if this is 0.
    @property
    def total_max_objects(self) -> int:
        """The number of trials that wait for a gang."""
        return sum(self._wanted.values())

    # Called when a trial is staged.
    def increase_max(self, key: Key, by: int = 1) -> None:
        """More trials wait for such a gang."""
        self._wanted[key] += by

    # Called when a staged trial has got its gang, or is given up.
    def decrease_max(self, key: Key, by: int = 1) -> None:
        """Fewer trials wait for such a gang."""
        self._wanted[key] -= by

    # Called when a trial is staged, and for each footprint of gang that trials wait for.
    def has_cached_object(self, key: Key) -> bool:
        """Return whether such a gang is kept."""
        return bool(self._kept.get(key))

    # Called when a trial has ended, before its gang would be stopped.
    def cache_object(self, key: Key, obj: Any) -> bool:
        """Keep the gang; always succeeds."""
        self._kept.setdefault(key, []).append(obj)
        self._new.append(obj)
        return True

    # Called for a staged trial after `has_cached_object`.
    def pop_cached_object(self, key: Key) -> Any | None:
        """Remove and return the gang that has been kept longest; None if there is none."""
        return self._kept[key].pop(0) if self.has_cached_object(key) else None

    # Called in step 4, and with `force_all` at the end of the sweep.
    def flush_cached_objects(self, force_all: bool = False) -> Iterator[Any]:
        """Yield the gangs to end now."""
        # A gang that has just become free gets one turn of the queue.
        new, self._new = self._new, []
        unneeded = force_all or not self._needed()
        waiting = [key for key, count in self._wanted.items() if count > 0]
        for key, kept in self._kept.items():
            if not unneeded and not any(key.may_hold(other) for other in waiting):
                continue
            wanted = 0 if unneeded else self._wanted[key]
            old = [gang for gang in kept if force_all or not any(gang is one for one in new)]
            for gang in old[: max(0, len(kept) - wanted)]:
                kept.remove(gang)
                yield gang


class PolledPlacementGroups(ResourceManager):  # type: ignore[misc]
    """Placement groups that are polled: Ray's own manager starts a process in each to learn that it is ready."""

    def __init__(self, update_interval_s: float = 0.1) -> None:
        self._interval_s, self._updated_s = update_interval_s, -math.inf
        self._staged: dict[PlacementGroupFactory, set[PlacementGroup]] = defaultdict(set)
        self._ready: dict[PlacementGroupFactory, set[PlacementGroup]] = defaultdict(set)
        self._acquired: set[PlacementGroup] = set()

    # Called by the actor manager for a trial that takes a new gang.
    def request_resources(self, resource_request: PlacementGroupFactory) -> None:
        """Have Ray reserve the bundles."""
        self._staged[resource_request].add(resource_request.to_placement_group())

    # Called if the trial takes a kept gang after all, or is stopped.
    def cancel_resource_request(self, resource_request: PlacementGroupFactory) -> None:
        """Remove one group, preferably one that still waits for its bundles."""
        _remove((self._staged[resource_request] or self._ready[resource_request]).pop())

    # Called in step 3 for each request that waits.
    def has_resources_ready(self, resource_request: PlacementGroupFactory) -> bool:
        """Return whether a group has its bundles."""
        if not self._ready[resource_request] and time.monotonic() > self._updated_s + self._interval_s:
            self.update_state()
        return bool(self._ready[resource_request])

    # Called after `has_resources_ready`, to start the gang's supervisor in the group.
    def acquire_resources(self, resource_request: PlacementGroupFactory) -> AcquiredResources | None:
        """Hand out a group that has its bundles."""
        if not self.has_resources_ready(resource_request):
            return None
        group = self._ready[resource_request].pop()
        self._acquired.add(group)
        return PlacementGroupAcquiredResources(placement_group=group, resource_request=resource_request)

    # Called when the supervisor has ended.
    def free_resources(self, acquired_resource: PlacementGroupAcquiredResources) -> None:
        """Remove a group that was handed out."""
        self._acquired.remove(acquired_resource.placement_group)
        _remove(acquired_resource.placement_group)

    # Called in step 3, which waits for these and for the answers of actors.
    def get_resource_futures(self) -> Sequence[Any]:
        """Return no futures; pause briefly, because a caller that waits for nothing else would ask again at once."""
        if any(self._staged.values()):
            time.sleep(POLL_BUNDLES_S)
        return []

    # Tune calls it once a future is ready, of which there are none here.
    def update_state(self) -> None:
        """Find out which groups have their bundles."""
        self._updated_s = time.monotonic()
        for request, staged in self._staged.items():
            for group in [group for group in staged if placement_group_table(group)["state"] == "CREATED"]:
                staged.remove(group)
                self._ready[request].add(group)

    # Called by `_actor_manager.cleanup` at the end of the sweep.
    def clear(self) -> None:
        """Remove all groups."""
        if not ray.is_initialized():
            return
        for group in [*chain(*self._staged.values(), *self._ready.values()), *self._acquired]:
            _remove(group)
        for groups in (self._staged, self._ready, self._acquired):
            groups.clear()


def _remove(group: PlacementGroup) -> None:
    """Have Ray remove the group, without waiting: Ray's head does not answer if it was interrupted, too."""

    def remove() -> None:
        # Once the driver has left the cluster, Ray removes what is left of its groups.
        with suppress(RayError):
            ray.util.remove_placement_group(group)

    threading.Thread(target=remove, daemon=True, name="remove bundles").start()


class GangController(TuneController):  # type: ignore[misc]
    """Tune's controller; it starts and resets supervisors, which do not import Tune."""

    def __init__(self, *args: Any, search_alg: Any, **kwargs: Any) -> None:
        """Accept Tune's arguments; `search_alg` is a QueueSearch."""
        super().__init__(*args, search_alg=search_alg, resource_manager_factory=PolledPlacementGroups, **kwargs)
        self._supervisor = ray.remote(Supervisor)
        self._actor_cache = KeptGangs(search_alg.gangs_needed)

    # Called last in each step.
    def on_step_end(self) -> None:
        """Forget the trials that have ended, unless the user's callbacks or storage are to get them.

        The journal has them. Tune would keep 10 kB of each, and go through all of them several times a step.
        """
        super().on_step_end()
        if self._search_alg.keeps_ended:
            return
        for ended in (self._stopped_trials, self._failed_trials):
            # A trial whose gang is still ending is needed for that. Tune looks at the first trial if nothing can start.
            for trial in ended - self._trial_to_actor.keys() - set(self._trials[-1:]):
                ended.remove(trial)
                self._trials.remove(trial)
                self._trials_to_cache.discard(trial)

    # Called in step 2 for each trial that is staged.
    def _schedule_trial_actor(self, trial: Trial) -> None:
        """Give the trial a kept gang, or a new one as soon as Ray has reserved its bundles."""
        trial.init_local_path()
        if self._maybe_reuse_cached_actor(trial):
            return
        gang = self._actor_manager.add_actor(
            cls=self._supervisor,
            resource_request=trial.placement_group_factory,
            kwargs={"config": trial.config},
            on_start=self._actor_started,
            on_stop=self._actor_stopped,
            on_error=self._actor_failed,
        )
        self._trial_to_actor[trial], self._actor_to_trial[gang] = gang, trial

    # Called by `_maybe_reuse_cached_actor` for a trial that takes a kept gang.
    def _schedule_trial_reset(self, trial: Trial, new_config: Mapping[str, Any], new_experiment_tag: str) -> None:
        """Send the trial to the gang's supervisor."""
        trial.set_experiment_tag(new_experiment_tag)
        self._resetting_trials.add(trial)
        self._schedule_trial_task(
            trial=trial,
            method_name="reset",
            args=(new_config,),
            on_result=self._on_trial_reset,
            on_error=self._trial_task_failure,
        )

    # Called once, after the last step.
    def _cleanup_trials(self) -> None:
        """End all gangs, within GANGS_END_S even if a supervisor does not answer: Tune would wait for 15 s."""
        # All stop at the same time, so that GANGS_END_S is enough for all.
        for actor in list(self._actor_to_trial):
            self._schedule_trial_stop(self._actor_to_trial[actor])
        self._cleanup_cached_actors(force_all=True)
        until = time.monotonic() + GANGS_END_S
        while self._actor_manager.num_total_actors and (left_s := until - time.monotonic()) > 0:
            self._actor_manager.next(timeout=left_s)
        # What has not ended by now is killed.
        self._actor_force_cleanup_timeout = 0
        self._cleanup_stopping_actors(force_all=True)
        self._actor_manager.cleanup()

    # Called first in each step, until it returns False or enough trials are pending.
    def _update_trial_queue(self, blocking: bool = False, timeout: int = 0) -> bool:
        """Ask the queue once, without blocking.

        If nothing runs, Tune would ask once a second for ten minutes and do nothing else: idle gangs would keep
        nodes that nothing needs, and neither time limits nor callbacks would be served.
        """
        has_trial = bool(super()._update_trial_queue())
        # Without a pause the controller would use a whole core.
        if blocking and not has_trial:
            time.sleep(ASK_QUEUE_EVERY_S)
        return has_trial


class Unprinted(TrialProgressCallback):  # type: ignore[misc]
    """Takes the place of Tune's printer of results, which would keep every trial; it prints nothing."""

    def log_result(self, trial: Trial, result: Mapping[str, Any], error: bool = False) -> None:
        """Print nothing."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Print nothing."""


@contextmanager
def gangs_in_tune() -> Iterator[None]:
    """Make `tune.run` use GangController, and import no tracker for its usage statistics, which takes seconds."""
    with (
        patched(usage, "tag_callbacks", lambda callbacks: False),
        patched(tune.tune, "TuneController", GangController),
    ):
        yield
