"""One trial in a rank's process: call the trainable, and say how the call ended.

The process sees only its own devices. A trainable's module imports its libraries at the top: torch and numpy are seeded
for every trial if they are loaded, and a trainable that needs neither does not pay for their import.
"""

from __future__ import annotations

import errno
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sweeps.axes import is_number
from trainables import device_memory, isolation, provenance
from trainables.context import (
    Batch,
    Context,
    DivergedError,
    GivenUpError,
    LearningRate,
    RequestError,
    TrialTimeoutError,
    UntrainedError,
    plain,
)
from trainables.isolation import BackgroundWork

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA, cuDNN, NCCL and the caching allocator, in their several wordings
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",  # torch's CPU allocator
)
LOST_DEVICE_TEXTS = (
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
    "GPU is lost",
    "fallen off the bus",
)
"""Messages of CUDA and NVML about a lost or broken GPU (CUDA runtime errors 214, 220, 714, 46 and 100)."""
NOTE_LENGTH = 300

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How the call of a trainable ended: `status` is `ok`, `oom`, `diverged`, `timeout`, `skipped` or `failed`."""

    status: str
    cause: str = ""
    """`error`, `request` (wrong for every trial), `device` (a GPU is lost), `device_memory`, `host_memory`, `disk`
    (full or read-only); empty for a result."""
    note: str = ""
    """The exception in one line; for `ok` the trainable's remarks."""
    trace: str = ""

    @staticmethod
    def of(error: BaseException) -> RankExit:
        """Classify an exception, or its cause if another library wraps it (a compiler, for example)."""
        status, cause = _classified(error)
        return RankExit(
            status=status,
            cause=cause,
            note=str(error) if status == "skipped" else _one_line(error),
            trace="" if status == "skipped" else "".join(traceback.format_exception(error)),
        )


def _classified(error: BaseException) -> tuple[str, str]:
    """Return the status and the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DivergedError):
            return "diverged", ""
        if isinstance(cause, TrialTimeoutError):
            return "timeout", "time_limit"
        if isinstance(cause, GivenUpError):
            return "skipped", ""
        torch = sys.modules.get("torch")  # without torch there is no error of torch
        if (
            isinstance(cause, MemoryError)
            or (torch is not None and isinstance(cause, torch.OutOfMemoryError))
            or (isinstance(cause, RuntimeError) and any(text in str(cause) for text in OUT_OF_MEMORY_TEXTS))
        ):
            on_host = isinstance(cause, MemoryError) or "can't allocate memory" in str(cause)
            return "oom", "host_memory" if on_host else "device_memory"
        if isinstance(cause, RequestError | ImportError | SyntaxError):
            return "failed", "request"
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
            return "failed", "disk"
        if isinstance(cause, RuntimeError) and any(text in str(cause) for text in LOST_DEVICE_TEXTS):
            return "failed", "device"
        cause = cause.__cause__
    return "failed", "error"


def _one_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # Python's text begins with the place, and names the error lines below
        return f"{type(error).__name__}: {error}"[:NOTE_LENGTH]
    if isinstance(error, RequestError):  # its message is complete
        return str(error).splitlines()[0][:NOTE_LENGTH]
    text = "".join(traceback.format_exception_only(error)).strip()
    if type(error).__module__.startswith("trainables."):  # the module of our own errors helps no reader
        text = text.removeprefix(f"{type(error).__module__}.")
    return text.splitlines()[0][:NOTE_LENGTH]


Emit = Callable[[dict[str, Any]], None]
Trainable = Callable[[Mapping[str, Any], Context], None]


def run(
    request: Mapping[str, Any],
    emit: Emit,
    should_stop: Callable[..., bool],
    observe: Callable[[str], None] = lambda phase: None,
) -> dict[str, Any]:
    """Call the trainable as this rank, isolated from earlier trials; never raises an error of the trainable.

    `observe` is called with the trial's phases: see `Context.phase`.

    Returns JSON values: the fields of `RankExit`, `rank`, `metrics`, `provenance`, and `reusable`: whether this process
    may run another trial.
    """
    before = BackgroundWork.now()
    context = context_of(request, emit, should_stop)
    context.observe = observe
    try:
        metrics = _train(request, context)
        rank_exit = RankExit(status="ok", note="; ".join(context.remarks))
    except (Exception, SystemExit) as error:
        rank_exit, share = RankExit.of(error), request.get("memory_share")
        if rank_exit.cause == "device_memory" and share is not None:
            rank_exit = replace(rank_exit, note=f"in {share:g} of the GPU's memory: {rank_exit.note}")
        metrics = plain(context.metrics) if rank_exit.status == "skipped" else {}
    memory: dict[str, float] = {}
    about: dict[str, Any] = {}
    broken = None
    try:
        memory = device_memory.taken(context.device)
        about = provenance.collect(context.device)
        isolation.leave()
    except Exception as error:  # some CUDA errors are sticky: every later call in the process fails, too
        broken = RankExit.of(error)
    if broken and rank_exit.status == "ok":
        rank_exit, metrics = broken, {}
    elif metrics:
        metrics = memory | metrics
    return {
        "status": rank_exit.status,
        "cause": rank_exit.cause,
        "note": rank_exit.note,
        "trace": rank_exit.trace,
        "rank": context.rank,
        "metrics": metrics,
        "provenance": about,
        "reusable": rank_exit.status in ("ok", "skipped") and not BackgroundWork.now().grown_since(before),
    }


def _train(request: Mapping[str, Any], context: Context) -> dict[str, Any]:
    trainable = resolve(request["trainable"])
    isolation.enter(request["trainable"], seed=context.seed, threads=context.threads)
    device_memory.limit(context.device, request.get("memory_share"))
    returned: Any = trainable(request["config"], context)  # None, except from functions written for Ray Tune
    if isinstance(returned, Mapping):
        context.summarize(returned)
    metrics = plain(context.metrics)
    for name in ("steps", "samples"):
        if is_number(metrics.get(name)) and metrics[name] == 0:
            raise UntrainedError(f"the training ended with {name}=0")
    for name in ("accuracy", "val_accuracy"):
        value = metrics.get(name)
        if isinstance(value, int | float) and value > 1:
            percent = ": for percentages, set scale: 0.01 (commands), or divide by 100" if value <= 100 else ""
            context.remark(f"{name}={value:g} is not between 0 and 1, as tables and report.margin expect{percent}")
    return metrics


def resolve(path: str) -> Trainable:
    """Import `package.module:function`. Raises ImportError, SyntaxError or RequestError, naming the path."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise RequestError(f"trainable={path!r} is not of the form package.module:function")
    try:
        function = getattr(import_module(module_name), name)
    except (ImportError, SyntaxError):
        raise
    except Exception as error:  # the user's module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"trainable {path!r} cannot be imported: {reason}") from error
    if not callable(function):
        raise RequestError(f"trainable={path!r} is a {type(function).__name__}, not a function")
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise RequestError(f"trainable={path!r} cannot be called as train(config, context): {error}") from error
    except ValueError:  # a built-in function without a signature
        pass
    trainable: Trainable = function
    return trainable


_SAME_NAMES = (
    *("trial_id", "rank", "world_size", "gpus_per_rank", "threads", "seed", "strategy", "rendezvous", "gang_id"),
)
"""Fields that context and request have under the same name."""


def context_of(request: Mapping[str, Any], emit: Emit, should_stop: Callable[..., bool]) -> Context:
    """Make the rank's context from a request; reported rows become JSON values."""
    batch, lr, trial_dir = request["batch"], request["lr"], request["trial_dir"]
    return Context(
        **{name: request[name] for name in _SAME_NAMES},
        device="cuda:0" if request["device"] == "cuda" else "cpu",
        batch=Batch(**{**batch, "shares": tuple(batch["shares"])}),
        lr=LearningRate(**{each.name: lr[each.name] for each in fields(LearningRate)}),
        trial_dir=Path(trial_dir) if trial_dir else None,
        emit=lambda row: emit(plain(row)),
        stop_requested=should_stop,
    )


def rank_environment(context: Context) -> Mapping[str, str]:
    """Return torchrun's variables (RANK, WORLD_SIZE, …, MASTER_PORT) for `os.environ.update`; {} for a single rank.

    Each rank sees only its own device, and therefore has local rank 0. The environment is restored between trials.
    Raises ValueError if several ranks have no rendezvous `tcp://host:port`.
    """
    if context.world_size == 1:
        return {}
    meeting = urlsplit(context.rendezvous or "")
    if not meeting.hostname or not meeting.port:
        raise ValueError(f"rendezvous={context.rendezvous!r}: {context.world_size} ranks need tcp://host:port")
    return {
        "RANK": str(context.rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(context.rank),
        "GROUP_RANK": str(context.rank),
        "MASTER_ADDR": meeting.hostname,
        "MASTER_PORT": str(meeting.port),
    }
