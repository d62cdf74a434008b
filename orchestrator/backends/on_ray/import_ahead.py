"""What a process of Ray's that was started ahead does before anybody needs it: it imports what takes long.

What that is the driver says, in the cluster's key-value store; where it says nothing the process does nothing. No
device is touched: which ones the process will have is not known yet. Nor is anything imported where memory is short:
that can only be seen on the process' own node, and a trial that is beside it needs it more.
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
"""For Ray's own setting that calls a function in every new process of a driver's."""
PRELOAD = "orchestrator.backends.on_ray.preload"
ADDED_PATH = "ORCHESTRATOR_ADDED_PATH"
"""Names what PYTHONPATH begins with only so that this module is found."""

PROCESS_GB = 1.0
"""What a process that has imported torch takes, generously."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Libraries that compute read these when they are imported, and never again."""
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))


def preloading(environment: Mapping[str, str], code: str) -> dict[str, str]:
    """Environment variables with which Ray starts so that all its processes call `prepare`.

    The setting above would start a second interpreter in each of them. `code` is the folder of the three rooms.
    """
    first = {"PYTHONPATH": os.pathsep.join(filter(None, [code, environment.get("PYTHONPATH")])), ADDED_PATH: code}
    # Ray's own first processes would be taken before those that are prepared.
    return {"RAY_preload_python_modules": PRELOAD, "RAY_prestart_worker_first_driver": "0", **first}


def ask_for(modules: Sequence[str], threads: int) -> None:
    """Have this driver's processes import these modules as they start from now on, for ranks of so many threads."""
    request = json.dumps({"modules": list(modules), "threads": threads})
    internal_kv._internal_kv_put(_key(get_runtime_context().get_job_id()), request.encode(), True, namespace=SPACE)


def prepare() -> None:
    """Do what was asked for. What cannot be imported fails later on, in the trial, where it is told."""
    _forget_added_path()
    # Before its first call a process knows only from its environment whose it is, if it is anybody's.
    request = internal_kv._internal_kv_get(_key(os.environ.get("RAY_JOB_ID", "")), namespace=SPACE)
    if not request or not has_room(estimate_available_memory() / 2**30, os.cpu_count() or 1):
        return
    asked = json.loads(request)
    limit_threads(asked["threads"])
    with suppress(Exception):
        for module in ("orchestrator.backends.on_ray.rank", *asked["modules"]):
            import_module(module)


def has_room(free_gb: float, cores: int) -> bool:
    """Whether a node with so much free memory has enough for as many processes as may start at a time: one a core."""
    return free_gb >= PROCESS_GB * cores


def _key(driver: str) -> bytes:
    return f"prepare {driver}".encode()


def _forget_added_path() -> None:
    """The environment is what trials inherit, and whatever they start."""
    if os.environ.pop(ADDED_PATH, None) is None:
        return
    kept = os.environ["PYTHONPATH"].split(os.pathsep)[1:]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        del os.environ["PYTHONPATH"]
