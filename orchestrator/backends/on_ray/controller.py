"""Tune's controller, with gangs of ours in the place of its trainables: their start takes half as long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.air.execution import PlacementGroupResourceManager
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.execution.tune_controller import TuneController
from ray.util import placement_group_table

from orchestrator.backends.on_ray.attempt import Attempt
from orchestrator.backends.on_ray.kept_gangs import KeptGangs
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.on_ray.supervisor import Supervisor

LOOK_EVERY_S = 0.2
"""How often the queue is asked for a trial where nothing runs."""
BUNDLES_S = 0.02
"""How often Ray is asked whether it has a gang's bundles."""


class GangTrainable(Trainable):  # type: ignore[misc]
    """What a trial is to Tune: a name. Its processes are a `Supervisor`'s."""


class GangController(TuneController):  # type: ignore[misc]
    """Starts and resets supervisors, which have no use for Tune's own things: to import them takes a process seconds.

    A gang that has ended a trial is kept by our rule.
    """

    def __init__(self, *given: Any, search_alg: TrialQueue, **named: Any) -> None:
        """What is given is Tune's own."""
        super().__init__(*given, search_alg=search_alg, resource_manager_factory=PolledPlacementGroups, **named)
        self._supervisor = ray.remote(Supervisor)
        self._actor_cache = KeptGangs(search_alg.gangs_needed)
        search_alg.is_kept = self._actor_cache.has_cached_object

    def _schedule_trial_actor(self, trial: Attempt) -> None:
        """Give the trial a gang that is kept, or a new one as soon as Ray has its bundles."""
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
        """Where nothing runs, Tune would ask for a trial once a second for ten minutes, and do nothing else meanwhile.

        Gangs that idle would stay on nodes that nothing needs, and clocks and callbacks stand still.
        """
        found = bool(super()._update_trial_queue())
        if blocking and not found:
            time.sleep(LOOK_EVERY_S)
        return found


class PolledPlacementGroups(PlacementGroupResourceManager):  # type: ignore[misc]
    """Ray's placement groups, polled: Tune would start a process in each, to hear that it is there."""

    def request_resources(self, resource_request: PlacementGroupFactory) -> None:
        """Have Ray reserve the bundles."""
        group = resource_request.to_placement_group()
        self._pg_to_request[group] = resource_request
        self._request_to_staged_pgs[resource_request].add(group)

    def get_resource_futures(self) -> Sequence[Any]:
        """There are none. Who waits for nothing else would ask without a pause."""
        if any(self._request_to_staged_pgs.values()):
            time.sleep(BUNDLES_S)
        return []

    def update_state(self) -> None:
        """Look which groups have their bundles."""
        self._last_update = time.monotonic()
        for request, staged in self._request_to_staged_pgs.items():
            for group in [each for each in staged if placement_group_table(each)["state"] == "CREATED"]:
                staged.remove(group)
                self._request_to_ready_pgs[request].add(group)

    def cancel_resource_request(self, resource_request: PlacementGroupFactory) -> None:
        """One group fewer is wanted: of those that wait for their bundles if there are any."""
        staged, ready = self._request_to_staged_pgs[resource_request], self._request_to_ready_pgs[resource_request]
        group = (staged or ready).pop()
        del self._pg_to_request[group]
        ray.util.remove_placement_group(group)
