"""Tune's controller with our gangs instead of Tune's trainables, which take twice as long to start."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import ray
from ray.air.execution import PlacementGroupResourceManager
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.execution.tune_controller import TuneController
from ray.tune.utils.object_cache import _ObjectCache
from ray.util import placement_group_table

from orchestrator.backends.on_ray.attempt import Attempt
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.on_ray.supervisor import Supervisor

LOOK_EVERY_S = 0.2
"""How often to ask the queue for a trial while nothing runs."""
BUNDLES_S = 0.02
"""How often to ask Ray whether a gang's bundles are reserved."""


class GangTrainable(Trainable):  # type: ignore[misc]
    """Only a name for Tune: the trial's processes belong to a `Supervisor`."""


class GangController(TuneController):  # type: ignore[misc]
    """Starts and resets supervisors, which do not import Tune: that would take each of them seconds.

    `KeptGangs` decides how long a gang without a trial is kept.
    """

    def __init__(self, *given: Any, search_alg: TrialQueue, **named: Any) -> None:
        """The arguments are Tune's."""
        super().__init__(*given, search_alg=search_alg, resource_manager_factory=PolledPlacementGroups, **named)
        self._supervisor = ray.remote(Supervisor)
        self._actor_cache = KeptGangs(search_alg.gangs_needed)
        search_alg.is_kept = self._actor_cache.has_cached_object

    def _schedule_trial_actor(self, trial: Attempt) -> None:
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

    def _schedule_trial_reset(self, trial: Attempt, new_config: Mapping[str, Any], new_experiment_tag: str) -> None:
        trial.set_experiment_tag(new_experiment_tag)
        self._resetting_trials.add(trial)
        self._schedule_trial_task(
            trial=trial,
            method_name="reset",
            args=(new_config,),
            on_result=self._on_trial_reset,
            on_error=self._trial_task_failure,
        )

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 0) -> bool:
        """Ask the queue once, without blocking.

        If nothing runs, Tune would ask once a second for ten minutes and do nothing else: idle gangs would keep
        nodes that nothing needs, and neither time limits nor callbacks would be served.
        """
        found = bool(super()._update_trial_queue())
        if blocking and not found:
            time.sleep(LOOK_EVERY_S)
        return found


class PolledPlacementGroups(PlacementGroupResourceManager):  # type: ignore[misc]
    """Ray's placement groups, polled: Tune would start a process in each to learn that it is ready."""

    def request_resources(self, resource_request: PlacementGroupFactory) -> None:
        """Have Ray reserve the bundles."""
        group = resource_request.to_placement_group()
        self._pg_to_request[group] = resource_request
        self._request_to_staged_pgs[resource_request].add(group)

    def get_resource_futures(self) -> Sequence[Any]:
        """No futures; pauses briefly, because a caller that waits for nothing else would ask again at once."""
        if any(self._request_to_staged_pgs.values()):
            time.sleep(BUNDLES_S)
        return []

    def update_state(self) -> None:
        """Find out which groups have their bundles."""
        self._last_update = time.monotonic()
        for request, staged in self._request_to_staged_pgs.items():
            for group in [each for each in staged if placement_group_table(each)["state"] == "CREATED"]:
                staged.remove(group)
                self._request_to_ready_pgs[request].add(group)

    def cancel_resource_request(self, resource_request: PlacementGroupFactory) -> None:
        """Remove one group, preferably one that still waits for its bundles."""
        staged, ready = self._request_to_staged_pgs[resource_request], self._request_to_ready_pgs[resource_request]
        group = (staged or ready).pop()
        del self._pg_to_request[group]
        ray.util.remove_placement_group(group)


class KeptGangs(_ObjectCache):  # type: ignore[misc]
    """Keeps a gang whose trial has ended at least until the queue has had one chance to give it another trial.

    Tune would drop it at once if a gang of another shape is waiting to start. Starting takes seconds, during which
    many gangs could be dropped and started again although the next trial has their shape. A gang that the queue did
    not use ends only if something waits for one of its nodes.
    """

    def __init__(self, needed: Callable[[], bool] = lambda: True) -> None:
        """`needed`: whether any trial could still use a kept gang; if not, its nodes are released."""
        super().__init__()
        self._needed = needed
        self._new: list[Any] = []

    def cache_object(self, key: Any, obj: Any) -> bool:
        """Keep the gang; always succeeds."""
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        self._new.append(obj)
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        """Yield the gangs to end now; Tune calls this after every turn of the queue."""
        new, self._new = self._new, []
        unneeded = force_all or not self._needed()
        waiting = [key for key, count in self._max_num_objects.items() if count > 0]
        for key, kept in self._cached_objects.items():
            if not unneeded and not any(key.may_hold(each) for each in waiting):
                continue
            wanted = 0 if unneeded else self._max_num_objects.get(key, 0)
            old = [each for each in kept if force_all or not any(each is one for one in new)]
            for each in old[: max(0, len(kept) - wanted)]:
                kept.remove(each)
                self._num_cached_objects -= 1
                yield each
