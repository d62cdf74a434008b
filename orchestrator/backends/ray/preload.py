"""Lets Ray processes that were started ahead import what takes long before they are needed.

The driver says what to import in the cluster's key-value store; if it says nothing, nothing is imported. No device is
touched, because the process does not know its devices yet. Nothing is imported if memory is short, which only a
process on the node itself can see: running trials need the memory more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module

from ray._private.utils import estimate_available_memory
from ray.experimental import internal_kv
from ray.runtime_context import get_runtime_context

SPACE = b"orchestrator"
PREPARE = f"{__name__}.prepare"
"""The function that Ray's setting `worker_process_setup_hook` calls in every new process of a driver."""
PRELOAD = "orchestrator.backends.ray.preload_hook"
ADDED_PATH = "ORCHESTRATOR_ADDED_PATH"
"""Environment variable with the folder that was put in front of PYTHONPATH to make this module importable."""

PROCESS_GB = 1.0
"""Memory of a process that has imported torch, estimated generously."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Set the thread variables, which numerical libraries read only when they are imported."""
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))


def preloading(environment: Mapping[str, str], code: str) -> dict[str, str]:
    """Environment variables for Ray's start that make all its processes call `prepare`.

    `worker_process_setup_hook` would start a second interpreter in each. `code` is the folder of the three packages.
    """
    first = {"PYTHONPATH": os.pathsep.join(filter(None, [code, environment.get("PYTHONPATH")])), ADDED_PATH: code}
    # Processes that Ray starts by itself at first would be used before the prepared ones.
    return {"RAY_preload_python_modules": PRELOAD, "RAY_prestart_worker_first_driver": "0", **first}


def ask_for(modules: Sequence[str], threads: int) -> None:
    """Make this driver's future processes import these modules when they start, for ranks with this many threads."""
    request = json.dumps({"modules": list(modules), "threads": threads})
    internal_kv._internal_kv_put(_key(get_runtime_context().get_job_id()), request.encode(), True, namespace=SPACE)


def prepare() -> None:
    """Import what the driver asked for. Whatever cannot be imported fails again in the trial, which reports it."""
    _forget_added_path()
    # Before its first call, a process knows only from its environment which driver it belongs to, if any.
    request = internal_kv._internal_kv_get(_key(os.environ.get("RAY_JOB_ID", "")), namespace=SPACE)
    if not request or not has_room(estimate_available_memory() / 2**30, os.cpu_count() or 1):
        return
    asked = json.loads(request)
    limit_threads(asked["threads"])
    with suppress(Exception):
        for module in ("orchestrator.backends.ray.rank", *asked["modules"]):
            import_module(module)


def has_room(free_gb: float, cores: int) -> bool:
    """Whether the free memory suffices for all processes that may start at a time: one per core."""
    return free_gb >= PROCESS_GB * cores


def _key(driver: str) -> bytes:
    return f"prepare {driver}".encode()


def _forget_added_path() -> None:
    """Restore PYTHONPATH, because trials and the processes they start inherit it."""
    if os.environ.pop(ADDED_PATH, None) is None:
        return
    kept = os.environ["PYTHONPATH"].split(os.pathsep)[1:]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        del os.environ["PYTHONPATH"]
