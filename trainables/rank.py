"""One rank's process: from a request to what became of it.

The process sees only its own devices. A trainable's module imports what it computes with at its top: torch and numpy
are seeded for every trial once they are there, and a trainable that needs neither does not pay for their import.

What became of one call of a trainable, told by the exception it ended with.

A rank's place in its gang as torchrun would tell it, for frameworks that look for it in the environment.
"""

from __future__ import annotations

import errno
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainables import device_memory, isolation, provenance
from trainables.context import (
    Batch,
    Context,
    DivergedError,
    GivenUpError,
    LearningRate,
    RequestError,
    TrialTimeoutError,
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
"""What CUDA and NVML say of a GPU that is gone or broken (CUDA runtime errors 214, 220, 714, 46 and 100)."""
NOTE_LENGTH = 300

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How the call ended: `status` is `ok`, `oom`, `diverged`, `timeout`, `skipped` or `failed`."""

    status: str
    cause: str = ""
    """`error`, `request` (no trial can go better), `device` (a GPU is lost), `device_memory`, `host_memory`, `disk`
    (full, or takes no writes); empty for what is a result."""
    note: str = ""
    """The exception in one line; for `ok` what the trainable remarked, mostly nothing."""
    trace: str = ""

    @staticmethod
    def of(error: BaseException) -> RankExit:
        """The ending that this exception means, whichever wrapper (a compiler's, say) it arrived in."""
        status, cause = _kind(error)
        return RankExit(
            status=status,
            cause=cause,
            note=str(error) if status == "skipped" else _one_line(error),
            trace="" if status == "skipped" else "".join(traceback.format_exception(error)),
        )


def _kind(error: BaseException) -> tuple[str, str]:
    """Status and cause."""
    for cause in _causes(error):
        if isinstance(cause, DivergedError):
            return "diverged", ""
        if isinstance(cause, TrialTimeoutError):
            return "timeout", "time_limit"
        if isinstance(cause, GivenUpError):
            return "skipped", ""
        if _is_out_of_memory(cause):
            on_host = isinstance(cause, MemoryError) or "can't allocate memory" in str(cause)
            return "oom", "host_memory" if on_host else "device_memory"
        if isinstance(cause, RequestError | ImportError | SyntaxError):
            return "failed", "request"
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return "failed", "disk"
        if isinstance(cause, RuntimeError) and any(text in str(cause) for text in LOST_DEVICE_TEXTS):
            return "failed", "device"
    return "failed", "error"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # an error of torch's cannot come from a process that never imported it
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY_TEXTS)


def _one_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # Python's own account begins with the place, and names the error lines below
        return f"{type(error).__name__}: {error}"[:NOTE_LENGTH]
    if isinstance(error, RequestError):  # says all by itself
        return str(error).splitlines()[0][:NOTE_LENGTH]
    text = "".join(traceback.format_exception_only(error)).strip()
    if type(error).__module__.startswith("trainables."):  # where one of ours is defined helps no reader
        text = text.removeprefix(f"{type(error).__module__}.")
    return text.splitlines()[0][:NOTE_LENGTH]


Emit = Callable[[dict[str, Any]], None]
Trainable = Callable[[Mapping[str, Any], Context], None]


def run(
    request: Mapping[str, Any],
    emit: Emit,
    should_stop: Callable[[], bool],
    observe: Callable[[str], None] = lambda phase: None,
) -> dict[str, Any]:
    """Call the trainable as this rank, from a clean slate; never raises for what the trainable did.

    `observe` is called with the trial's phases: see `Context.phase`.

    Returns JSON values: `status` (ok, oom, diverged, skipped, failed), `cause` (as in `RankExit`), `note`, `trace`,
    `rank`, `metrics`, `provenance`, and `reusable`: whether this process may take another trial.
    """
    before = BackgroundWork.now()
    context = context_of(request, emit, should_stop)
    context.observe = observe
    try:
        metrics = _train(request, context)
        ending = RankExit(status="ok", note="; ".join(context.remarks))
    except (Exception, SystemExit) as error:
        ending = _within(request, RankExit.of(error))
        metrics = plain(context.metrics) if ending.status == "skipped" else {}
    memory, about, broken = _leave(context)
    if broken and ending.status == "ok":
        ending, metrics = broken, {}
    elif metrics:
        metrics = memory | metrics
    return {
        "status": ending.status,
        "cause": ending.cause,
        "note": ending.note,
        "trace": ending.trace,
        "rank": context.rank,
        "metrics": metrics,
        "provenance": about,
        "reusable": ending.status in ("ok", "skipped") and not BackgroundWork.now().grown_since(before),
    }


def _within(request: Mapping[str, Any], ending: RankExit) -> RankExit:
    """The ending, its note with the part of a device that the trial ran out of."""
    share = request.get("memory_share")
    if ending.cause != "device_memory" or share is None:
        return ending
    return replace(ending, note=f"in {share:g} of the GPU's memory: {ending.note}")


def _leave(context: Context) -> tuple[dict[str, float], dict[str, Any], RankExit | None]:
    """What the trial took of its device, what it ran on, and the end of a process that cannot be tidied.

    Some CUDA errors meet all that follows.
    """
    memory: dict[str, float] = {}
    about: dict[str, Any] = {}
    try:
        memory = device_memory.taken(context.device)
        about = provenance.collect(context.device)
        isolation.leave()
    except Exception as error:
        return memory, about, RankExit.of(error)
    return memory, about, None


def _train(request: Mapping[str, Any], context: Context) -> dict[str, Any]:
    trainable = resolve(request["trainable"])
    isolation.enter(request["trainable"], seed=context.seed, threads=context.threads)
    device_memory.limit(context.device, request.get("memory_share"))
    returned: Any = trainable(request["config"], context)  # None, but for those who come from Ray Tune
    if isinstance(returned, Mapping):
        context.summarize(returned)
    metrics = plain(context.metrics)
    for name in ("accuracy", "val_accuracy"):
        value = metrics.get(name)
        if isinstance(value, int | float) and value > 1:
            percent = ": for percentages, set scale: 0.01 (commands), or divide by 100" if value <= 100 else ""
            context.remark(f"{name}={value:g} is not between 0 and 1, as tables and report.margin expect{percent}")
    return metrics


def resolve(path: str) -> Trainable:
    """The function at `package.module:function`. Raises ImportError, SyntaxError, or RequestError, naming the path."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise RequestError(f"trainable={path!r} is not of the form package.module:function")
    try:
        function = getattr(import_module(module_name), name)
    except (ImportError, SyntaxError):
        raise
    except Exception as error:  # whatever somebody's module does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"trainable {path!r} cannot be imported: {reason}") from error
    if not callable(function):
        raise RequestError(f"trainable={path!r} is a {type(function).__name__}, not a function")
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise RequestError(f"trainable={path!r} cannot be called as train(config, context): {error}") from error
    except ValueError:  # of built-in functions, which do not tell what they take
        pass
    trainable: Trainable = function
    return trainable


_AS_REQUESTED = (
    *("trial_id", "rank", "world_size", "gpus_per_rank", "threads", "seed", "strategy", "rendezvous", "gang_id"),
)
"""Fields of the context that the request has under the same name."""


def context_of(request: Mapping[str, Any], emit: Emit, should_stop: Callable[[], bool]) -> Context:
    """The rank's view of its trial; rows it reports are made JSON values on their way out."""
    batch, lr, trial_dir = request["batch"], request["lr"], request["trial_dir"]
    return Context(
        **{name: request[name] for name in _AS_REQUESTED},
        device="cuda:0" if request["device"] == "cuda" else "cpu",
        batch=Batch(**{**batch, "shares": tuple(batch["shares"])}),
        lr=LearningRate(**{each.name: lr[each.name] for each in fields(LearningRate)}),
        trial_dir=Path(trial_dir) if trial_dir else None,
        emit=lambda row: emit(plain(row)),
        stop_requested=should_stop,
    )


def rank_environment(context: Context) -> Mapping[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, …, MASTER_ADDR and MASTER_PORT, for `os.environ.update`; empty for a single rank.

    Each rank sees only its own device, and so it is rank 0 of a node of its own. A process that takes further trials
    gets its own environment back between them. ValueError where several ranks have no rendezvous `tcp://host:port`.
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
