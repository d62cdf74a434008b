"""A sweep, and the trials it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeps import batch as batches
from sweeps.axes import Axes, Point, axes_mistakes, distinct, points, size
from sweeps.gang import INDEPENDENT, UNEQUAL, gang
from sweeps.identity import digest, without
from sweeps.lr_rule import learning_rate
from sweeps.mistakes import MistakesError
from sweeps.number import is_endless, is_number, is_whole
from sweeps.setup import Setup
from sweeps.trial import Batch, Gang, LearningRate, TrialSpec

STANDARD_AXES = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", "lr_multiplier", "seed")
"""Axes with a meaning of their own; every other axis is a config key or a config group."""

MOST_TRIALS = 100_000
"""A larger sweep means minutes of planning and weeks of training: most likely a slip."""

DEFAULTS: Mapping[str, Any] = {"gpus": 1, "lr_rule": "none", "lr_multiplier": 1.0, "seed": 0}
"""The value of a standard axis that a sweep does not have."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to vary. Each axis is a plain list of values."""

    name: str
    axes: Axes
    zip: Sequence[Sequence[str]] = ()
    exclude: Sequence[Mapping[str, Any]] = ()


def trials(sweep: Sweep, setup_of: Callable[[Point], Setup]) -> list[TrialSpec]:
    """Every trial of the sweep, in grid order.

    `setup_of` gives the setup for a point's config axes; it is called once for each of their combinations.
    Raises MistakesError with every mistake in any of them.
    """
    mistakes = list(axes_mistakes(sweep.axes, sweep.zip, sweep.exclude))
    if not sweep.axes.get("device_batch_size") and not sweep.axes.get("global_batch_size"):
        raise MistakesError([*mistakes, f"give one side of the batch: {' or '.join(_BATCH_AXES)}"])
    # Mistakes in the axes leave no grid, but the values can still be checked.
    axes = _usable(sweep.axes) if mistakes else sweep.axes
    if too_many := _too_many(axes, () if mistakes else sweep.zip):
        raise MistakesError([*mistakes, too_many])
    grid = points(axes) if mistakes else points(axes, sweep.zip, sweep.exclude)
    setups: dict[str, Setup | None] = {}
    found: list[TrialSpec] = []
    for point in grid:
        config_axes = {axis: value for axis, value in point.items() if axis not in STANDARD_AXES}
        try:
            key = digest(config_axes)
            if key not in setups:
                setups[key] = None  # else a mistake would be reported twice
                setups[key] = setup_of(config_axes)
            if setup := setups[key]:
                found.append(_trial(sweep.name, point, setup))
        except MistakesError as error:
            mistakes += error.mistakes
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise MistakesError(mistakes)
    return found


def _usable(axes: Axes) -> Axes:
    """The axes without empty ones, repeated values and non-numbers, which have been reported already."""
    finite = {axis: [value for value in values if not is_endless(value)] for axis, values in axes.items()}
    return {axis: distinct(values) for axis, values in finite.items() if values}


def _too_many(axes: Axes, zipped: Sequence[Sequence[str]]) -> str:
    """A message if the grid is too large to be expanded; else empty."""
    if (count := size(axes, zipped)) <= MOST_TRIALS:
        return ""
    product = " × ".join(f"{len(values):,} {axis}" for axis, values in axes.items() if len(values) > 1)
    return f"{count:,} combinations ({product}) are more than the {MOST_TRIALS:,} trials that a sweep may have"


_BATCH_AXES = ("sweep.axes.device_batch_size", "sweep.axes.global_batch_size")


def _trial(sweep: str, point: Point, setup: Setup) -> TrialSpec:
    asked = {**DEFAULTS, **point}
    mistakes = list(_value_mistakes(asked, setup))
    if mistakes:  # with valid placeholder numbers, other mistakes still show
        asked |= {"lr_multiplier": 1.0}
        setup = replace(setup, reference_lr=1.0, reference_batch_size=1)
    held, batch, lr = None, None, None
    try:
        held = _gang(asked, setup)
    except ValueError as error:
        mistakes.append(str(error))
    try:
        # Without a gang, one rank's batch still shows whether the batch itself makes sense.
        batch = _batch(asked, held or _ONE_RANK, setup)
    except ValueError as error:
        mistakes.append(str(error))
    try:
        size = batch.global_batch_size if batch else setup.reference_batch_size
        models = held.ranks if held and setup.strategy == INDEPENDENT else 1
        lr = _learning_rate(asked, size // models, setup)
    except ValueError as error:
        mistakes.append(str(error))
    if mistakes or held is None or batch is None or lr is None:
        raise MistakesError(mistakes)
    strategy = setup.strategy if setup.strategy != "auto" else ("single" if held.ranks == 1 else "ddp")
    return TrialSpec(
        trial_id=digest({"is": "trial", "axes": asked, "setup": setup.identity}),
        cell_id=digest({"is": "cell", "axes": without(asked, ["seed"]), "setup": setup.identity}),
        sweep=sweep,
        axes=point,
        gpus=asked["gpus"],
        gang=held,
        device=setup.device,
        strategy=strategy,
        timing=setup.timing,
        batch=batch,
        lr=lr,
        seed=asked["seed"],
        trainable=setup.trainable,
        config={**setup.config, "optimizer": {**setup.optimizer, **lr.optimizer}},
    )


def _gang(asked: Mapping[str, Any], setup: Setup) -> Gang:
    held = gang(
        asked["gpus"],
        strategy=setup.strategy,
        device=setup.device,
        gpus_per_worker=setup.gpus_per_worker,
        cpus_per_worker=setup.cpus_per_worker,
        cores_per_gpu=setup.cores_per_gpu,
    )
    return replace(held, gpu_types=setup.gpu_types)


def _learning_rate(asked: Mapping[str, Any], global_batch_size: int, setup: Setup) -> LearningRate:
    return learning_rate(
        asked["lr_rule"],
        reference=setup.reference_lr,
        reference_batch_size=setup.reference_batch_size,
        global_batch_size=global_batch_size,
        multiplier=asked["lr_multiplier"],
        warmup_epochs=setup.warmup_epochs,
        optimizer=setup.optimizer,
    )


_ONE_RANK = Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=1)


def _batch(asked: Mapping[str, Any], held: Gang, setup: Setup) -> Batch:
    ranks, each, accumulate = held.ranks, held.devices_per_rank, setup.grad_accum_steps
    if asked.get("device_batch_size") is None:
        return batches.divide_global(
            asked["global_batch_size"],
            ranks,
            devices_per_rank=each,
            grad_accum_steps=accumulate,
            uneven=setup.uneven_batch or setup.strategy == UNEQUAL,
        )
    size = asked["device_batch_size"]
    batch = batches.multiply_device(size, ranks, devices_per_rank=each, grad_accum_steps=accumulate)
    if asked.get("global_batch_size") not in (None, batch.global_batch_size):
        devices = f"{ranks} ranks" if each == 1 else f"{ranks * each} devices"
        raise ValueError(
            f"device_batch_size={size} × {devices} × {accumulate} accumulation steps is"
            f" {batch.global_batch_size}, not global_batch_size={asked['global_batch_size']}"
        )
    return batch


def _value_mistakes(asked: Mapping[str, Any], setup: Setup) -> Iterator[str]:
    for key, value in (("lr_multiplier", asked["lr_multiplier"]), ("trainable.lr", setup.reference_lr)):
        if not is_number(value) or value <= 0:
            yield f"{key} must be a number above 0, not {value!r}"
    for key, value, least in (("seed", asked["seed"], 0), ("reference_batch_size", setup.reference_batch_size, 1)):
        if not is_whole(value) or value < least:
            yield f"{key} must be a whole number of at least {least}, not {value!r}"
