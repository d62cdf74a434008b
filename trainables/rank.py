"""One rank's process: from a request to what became of it.

The process sees only its own devices. A trainable's module imports what it computes with at its top: torch and numpy
are seeded for every trial once they are there, and a trainable that needs neither does not pay for their import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from trainables import clean_slate, device_memory, provenance
from trainables.clean_slate import Company
from trainables.context import Batch, Context, LearningRate, RequestError
from trainables.json_values import plain
from trainables.outcome import Ending

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

    Returns JSON values: `status` (ok, oom, diverged, skipped, failed), `cause` (as in `Ending`), `note`, `trace`,
    `rank`, `metrics`, `provenance`, and `reusable`: whether this process may take another trial.
    """
    before = Company.now()
    context = context_of(request, emit, should_stop)
    context.observe = observe
    try:
        metrics = _train(request, context)
        ending = Ending(status="ok", note="; ".join(context.remarks))
    except (Exception, SystemExit) as error:
        ending = _within(request, Ending.of(error))
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
        "reusable": ending.status in ("ok", "skipped") and not Company.now().grown_since(before),
    }


def _within(request: Mapping[str, Any], ending: Ending) -> Ending:
    """The ending, its note with the part of a device that the trial ran out of."""
    share = request.get("memory_share")
    if ending.cause != "device_memory" or share is None:
        return ending
    return replace(ending, note=f"in {share:g} of the GPU's memory: {ending.note}")


def _leave(context: Context) -> tuple[dict[str, float], dict[str, Any], Ending | None]:
    """What the trial took of its device, what it ran on, and the end of a process that cannot be tidied.

    Some CUDA errors meet all that follows.
    """
    memory: dict[str, float] = {}
    about: dict[str, Any] = {}
    try:
        memory = device_memory.taken(context.device)
        about = provenance.collect(context.device)
        clean_slate.leave()
    except Exception as error:
        return memory, about, Ending.of(error)
    return memory, about, None


def _train(request: Mapping[str, Any], context: Context) -> dict[str, Any]:
    trainable = resolve(request["trainable"])
    clean_slate.enter(request["trainable"], seed=context.seed, threads=context.threads)
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
