"""Every private name of Ray, inspected: a change in Ray shows here first."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
from ray.air.execution import ResourceManager
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

from orchestrator.backends.ray import private
from orchestrator.backends.ray.private_tune import GangController, KeptGangs, PolledPlacementGroups

CALLED = {
    "ray._private.services:canonicalize_bootstrap_address": ["addr"],
    "ray._private.utils:set_sigterm_handler": ["sigterm_handler"],
    "ray._private.grpc_utils:init_grpc_channel": ["address"],
    "ray._private.state:state.get_draining_nodes": [],
    "ray._private.parameter:RayParams": [
        *("no_monitor", "include_log_monitor", "dashboard_agent_listen_port", "session_name")
    ],
    "ray.job_config:JobConfig": ["_py_driver_sys_path"],
    "ray.air._internal.usage:tag_callbacks": ["callbacks"],
    "ray.tune.execution.tune_controller:TuneController": ["search_alg", "resource_manager_factory"],
    "ray.tune.execution.tune_controller:TuneController._schedule_trial_actor": ["trial"],
    "ray.tune.execution.tune_controller:TuneController._maybe_reuse_cached_actor": ["trial"],
    "ray.tune.execution.tune_controller:TuneController._actor_started": ["tracked_actor"],
    "ray.tune.execution.tune_controller:TuneController._actor_stopped": ["tracked_actor"],
    "ray.tune.execution.tune_controller:TuneController._actor_failed": ["tracked_actor", "exception"],
    "ray.tune.execution.tune_controller:TuneController._on_trial_reset": ["trial", "success"],
    "ray.tune.execution.tune_controller:TuneController._trial_task_failure": ["trial", "exception"],
    "ray.tune.execution.tune_controller:TuneController._update_trial_queue": ["blocking", "timeout"],
    "ray.tune.execution.tune_controller:TuneController._schedule_trial_stop": ["trial"],
    "ray.tune.execution.tune_controller:TuneController._cleanup_trials": [],
    "ray.tune.execution.tune_controller:TuneController._cleanup_cached_actors": ["force_all"],
    "ray.tune.execution.tune_controller:TuneController._cleanup_stopping_actors": ["force_all"],
    "ray.air.execution._internal:RayActorManager.next": ["timeout"],
    "ray.air.execution._internal:RayActorManager.cleanup": [],
    "ray.tune.execution.tune_controller:TuneController._schedule_trial_reset": [
        *("trial", "new_config", "new_experiment_tag")
    ],
    "ray.tune.execution.tune_controller:TuneController._schedule_trial_task": [
        *("trial", "method_name", "args", "on_result", "on_error")
    ],
    "ray.air.execution._internal:RayActorManager.add_actor": [
        *("cls", "kwargs", "resource_request", "on_start", "on_stop", "on_error")
    ],
}


@pytest.mark.parametrize("name", CALLED)
def test_signature_of_private_name(name):
    parameters = inspect.signature(resolve_name(name)).parameters
    assert set(CALLED[name]) <= set(parameters)


@pytest.mark.parametrize(
    "name",
    [
        *("ray._private.ray_logging:stdout_deduplicator", "ray._private.ray_constants:ENABLE_RAY_CLUSTER"),
        "ray._private.services:ConsolePopen",
        *("ray._private.ray_constants:RAY_ENABLE_UV_RUN_RUNTIME_ENV", "ray._raylet:Config.initialize"),
        *("ray._raylet:AuthenticationTokenLoader.instance", "ray._raylet:AuthenticationTokenLoader.reset_cache"),
        "ray.core.generated.gcs_service_pb2:GetClusterIdRequest",
        *("ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceStub", "ray.tune.tune:TuneController"),
        "ray.tune.tune:TuneController._update_trial_queue",
    ],
)
def test_private_name_exists(name):
    assert resolve_name(name) is not None


def test_log_deduplicator_skips_by_pattern():
    assert hasattr(resolve_name("ray._private.ray_logging:stdout_deduplicator"), "skip_re")


@pytest.mark.parametrize(
    ("cls", "attributes"),
    [
        (TuneController, ["_actor_cache", "_actor_manager", "_trial_to_actor", "_actor_to_trial", "_resetting_trials"]),
        (TuneController, ["_actor_force_cleanup_timeout", "_trials", "_stopped_trials", "_failed_trials"]),
        (TuneController, ["_trials_to_cache", "_search_alg"]),
        (Trial, ["config", "__unresolved_config", "temporary_state", "error_file"]),
    ],
)
def test_private_attributes_are_set_by_their_class(cls, attributes):
    source = inspect.getsource(cls)
    assert not [name for name in attributes if f"self.{name}" not in source and f"def {name}" not in source]


def test_gang_cache_has_all_methods_of_tunes_cache():
    tunes = import_module("ray.tune.utils.object_cache")._ObjectCache
    for name in (name for name in vars(tunes) if not name.startswith("_")):
        theirs, ours = getattr(tunes, name), getattr(KeptGangs, name)
        if not isinstance(theirs, property):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_placement_groups_implement_rays_public_interface():
    assert not getattr(PolledPlacementGroups, "__abstractmethods__", ())
    public = {name for name in vars(ResourceManager) if not name.startswith("_")}
    assert public <= vars(PolledPlacementGroups).keys()


def test_controller_overrides_only_methods_that_tune_has():
    ours = {name for name, value in vars(GangController).items() if inspect.isfunction(value)}
    assert all(hasattr(TuneController, name) for name in ours)


def test_no_other_module_uses_private_names():
    pattern = re.compile(r"ray\._private|ray\._raylet|ray\.core\.generated|ray\.[\w.]*_internal|ray\.[\w.]* import _")
    folder = inspect.getfile(private).rpartition("/orchestrator/")[0]
    files = [file for room in ("orchestrator", "sweeps", "trainables") for file in Path(folder, room).rglob("*.py")]
    users = {file.name for file in files if pattern.search(file.read_text())}
    assert users == {"private.py", "private_tune.py"}
