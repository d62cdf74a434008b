"""One trial in a rank's process: call the trainable, and say how the call ended.

The process sees only its own devices. A trainable's module imports its libraries at the top: torch and numpy are seeded
for every trial if they are loaded, and a trainable that needs neither does not pay for their import.
"""

from __future__ import annotations

import errno
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from sweeps.axes import is_number
from sweeps.metric import is_higher_better
from sweeps.rank_exit import NOTE_LENGTH, Cause, RankExit
from sweeps.status import Status
from sweeps.trial import RankRequest, TrialSpec
from trainables import device_memory, isolation, provenance
from trainables.context import (
    Context,
    DeviceMemoryError,
    DivergedError,
    GivenUpError,
    Mailbox,
    PortInUseError,
    RequestError,
    TrialTimeoutError,
    UntrainedError,
    master_of,
    of_python,
    plain,
)
from trainables.isolation import BackgroundWork

DEVICE_MEMORY_TEXTS = (
    "out of memory",  # CUDA, cuDNN, NCCL and the caching allocator, in their several wordings
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
HOST_MEMORY_TEXT = "can't allocate memory"
"""What torch's CPU allocator says."""
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
PORT_IN_USE = re.compile(r"\bEADDRINUSE\b|[Aa]ddress already in use")
"""Messages of Python and torch.distributed about a port that another process listens on."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def exit_by(error: BaseException, rank: int) -> RankExit:
    """Return the exit of a rank whose trainable raised this."""
    cause = _cause_of(error)
    if cause is Cause.GIVEN_UP:
        return RankExit(rank=rank, cause=cause, note=str(error))
    # The note has one line; the trace has the whole story.
    trace = "".join(traceback.format_exception(error))
    return RankExit(rank=rank, cause=cause, note=_one_line(error), trace=trace)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error, or one that it wraps, is a lack of memory."""
    return _cause_of(error).status is Status.OOM


_CAUSES: Sequence[tuple[tuple[type[BaseException], ...], Cause]] = (
    ((DivergedError,), Cause.DIVERGED),
    ((TrialTimeoutError,), Cause.TIME_LIMIT),
    ((GivenUpError,), Cause.GIVEN_UP),
    ((DeviceMemoryError,), Cause.DEVICE_MEMORY),
    ((PortInUseError,), Cause.PORT),
    ((RequestError, ImportError, SyntaxError), Cause.REQUEST),
)
"""Errors whose class alone tells the cause."""


def _cause_of(error: BaseException) -> Cause:
    """Return the cause that an error stands for, or the error that it wraps, as a compiler's errors do."""
    wrapped: BaseException | None = error
    while wrapped is not None:
        by_class = next((cause for classes, cause in _CAUSES if isinstance(wrapped, classes)), Cause.NONE)
        if cause := by_class or _cause_in_text(wrapped):
            return cause
        wrapped = wrapped.__cause__
    return Cause.ERROR


def _cause_in_text(error: BaseException) -> Cause:
    """Return the cause that the error's text or number tells; NONE if it tells none."""
    text = str(error)
    if isinstance(error, RuntimeError | MemoryError) and HOST_MEMORY_TEXT in text:
        return Cause.HOST_MEMORY
    names_memory = isinstance(error, RuntimeError | MemoryError) and any(known in text for known in DEVICE_MEMORY_TEXTS)
    if names_memory or _is_of_torch(error):
        return Cause.DEVICE_MEMORY
    if isinstance(error, MemoryError):
        return Cause.HOST_MEMORY
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return Cause.DISK
    if PORT_IN_USE.search(text):
        return Cause.PORT
    if isinstance(error, RuntimeError) and any(known in text for known in LOST_DEVICE_TEXTS):
        return Cause.DEVICE
    return Cause.NONE


def _is_of_torch(error: BaseException) -> bool:
    """Return whether this is torch's own error of a GPU's memory."""
    torch = sys.modules.get("torch")  # without torch there is no error of torch
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def _one_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # Python's text begins with the place, and names the error lines below
        return f"{type(error).__name__}: {error}"[:NOTE_LENGTH]
    if isinstance(error, RequestError):  # its message is complete
        return str(error).splitlines()[0][:NOTE_LENGTH]
    text = "".join(traceback.format_exception_only(error)).strip()
    if type(error).__module__.startswith("trainables."):  # the module of our own errors helps no reader
        text = text.removeprefix(f"{type(error).__module__}.")
    return text.splitlines()[0][:NOTE_LENGTH]


Trainable = Callable[[Mapping[str, Any], Context], None]


def run(
    request: RankRequest,
    emit: Callable[[dict[str, Any]], None],
    should_stop: Callable[..., bool],
    observe: Callable[[str], None] = lambda phase: None,
    mailbox: Mailbox | None = None,
) -> RankExit:
    """Call the trainable as this rank, isolated from earlier trials; never raises an error of the trainable.

    `observe` is called with the trial's phases: see `Context.phase`.
    """
    # Threads and child processes that a trial leaves behind would disturb the next one.
    before = BackgroundWork.now()
    context = Context.of(request, emit=emit, stop_requested=should_stop, observe=observe, mailbox=mailbox)
    try:
        metrics = _train(request.trial, context)
        rank_exit = RankExit(rank=context.rank, note="; ".join(context.remarks), metrics=metrics)
    except (Exception, SystemExit) as error:
        rank_exit, fraction = exit_by(error, context.rank), request.trial.memory_fraction
        if rank_exit.cause is Cause.DEVICE_MEMORY and fraction is not None:
            rank_exit = replace(rank_exit, note=f"in {fraction:g} of the GPU's memory: {rank_exit.note}")
        if rank_exit.status is Status.SKIPPED:
            rank_exit = replace(rank_exit, metrics=plain(context.metrics))
    memory: dict[str, float] = {}
    about: dict[str, Any] = {}
    try:
        memory = device_memory.taken(context.device)
        about = provenance.of_process(context.device)
        isolation.leave()
    except Exception as error:  # some CUDA errors are sticky: every later call in the process fails, too
        # The trial's own error comes first: the sticky one is its consequence.
        broken = exit_by(error, context.rank) if rank_exit.status is Status.OK else rank_exit
        return replace(broken, provenance=about)
    metrics = memory | dict(rank_exit.metrics) if rank_exit.metrics else {}
    has_ended_well = rank_exit.status in (Status.OK, Status.SKIPPED)
    reusable = has_ended_well and not BackgroundWork.now().grown_since(before)
    return replace(rank_exit, metrics=metrics, provenance=about, reusable=reusable)


def _train(trial: TrialSpec, context: Context) -> dict[str, Any]:
    trainable = resolve(trial.trainable)
    isolation.enter(trial.trainable, seed=trial.seed, threads=context.threads)
    device_memory.limit(context.device, trial.memory_fraction)
    returned: Any = trainable(dict(trial.config), context)  # None, except from functions written for Ray Tune
    if isinstance(returned, Mapping):
        context.summarize(returned)
    for name, given in context.metrics.items():
        value = of_python(given)
        if isinstance(value, float) and not math.isfinite(value) and is_higher_better(name) is not None:
            raise DivergedError(f"the last {name} is {value}")
    metrics = plain(context.metrics)
    # Figures of no training would win every comparison of speed.
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


def rank_environment(context: Context) -> Mapping[str, str]:
    """Return torchrun's variables (RANK, WORLD_SIZE, …, MASTER_PORT) for `os.environ.update`; {} for a single rank.

    Each rank sees only its own device, and therefore has local rank 0. The environment is restored between trials.
    Raises ValueError if several ranks have no rendezvous `tcp://host:port`.
    """
    if context.world_size == 1:
        return {}
    host, port = master_of(context)
    return {
        "RANK": str(context.rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(context.rank),
        "GROUP_RANK": str(context.rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
