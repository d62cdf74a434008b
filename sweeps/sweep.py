"""A sweep expanded to its trials: the grid, each trial's gang, batch and learning rate, and its id.

global_batch_size = device_batch_size × replicas × grad_accum_steps, and the number of replicas of the model is that of
devices / (tensor_parallel × context_parallel × pipeline_parallel). A rank is a process; it drives one device, or
divides its share of the batch among several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sweeps.axes import Axes, Point, axes_errors, distinct, is_not_finite, is_number, is_whole, points, size
from sweeps.errors import ConfigError
from sweeps.identity import digest, without
from sweeps.lr_rule import learning_rate
from sweeps.trial import Batch, Gang, TrialSpec


def divide_global(
    global_batch_size: int, ranks: int, *, devices_per_rank: int = 1, grad_accum_steps: int = 1, uneven: bool = False
) -> Batch:
    """Divide a global batch among the ranks. Raises ValueError if it does not divide evenly, unless `uneven`.

    Uneven shares differ by at most one sample, the larger ones first.
    """
    _check_positive("global_batch_size", global_batch_size)
    micro_batch, rest = divmod(global_batch_size, grad_accum_steps)
    if rest:
        raise ValueError(
            f"global_batch_size={global_batch_size} is not divisible by grad_accum_steps={grad_accum_steps}"
        )
    share, larger = divmod(micro_batch, ranks)
    if larger and not uneven:
        raise ValueError(
            f"global_batch_size={global_batch_size} is not divisible by {ranks} ranks × {grad_accum_steps}"
            " accumulation steps (uneven_batch=true allows unequal shares)"
        )
    if not share:
        raise ValueError(f"global_batch_size={global_batch_size} leaves some of {ranks} ranks without a sample")
    shares = tuple(share + (rank < larger) for rank in range(ranks))
    return Batch(
        global_batch_size=global_batch_size,
        grad_accum_steps=grad_accum_steps,
        shares=shares,
        devices_per_rank=devices_per_rank,
    )


def multiply_device(
    device_batch_size: int, ranks: int, *, devices_per_rank: int = 1, grad_accum_steps: int = 1
) -> Batch:
    """Return the batch in which every device takes `device_batch_size` samples per pass."""
    _check_positive("device_batch_size", device_batch_size)
    share = device_batch_size * devices_per_rank
    return Batch(
        global_batch_size=share * ranks * grad_accum_steps,
        grad_accum_steps=grad_accum_steps,
        shares=(share,) * ranks,
        devices_per_rank=devices_per_rank,
    )


def _check_positive(name: str, value: int) -> None:
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


INDEPENDENT = "independent"
"""The strategy that trains an independent model on every rank, each with its share of the batch."""

UNEQUAL = "ddp_unequal"
"""The strategy in which ranks take shares of the batch in proportion to their speed."""

STRATEGIES = ("single", "data_parallel", "ddp", UNEQUAL, INDEPENDENT, "own_ranks")
"""How the ranks of a trial train together; `trainables.step.strategies` does it."""

MODEL_PARALLEL = ("tensor_parallel", "context_parallel", "pipeline_parallel")
"""Config keys whose product is the number of devices that hold one replica of the model."""

OWN_RANKS = "own_ranks"
"""The strategy of commands, which start their ranks themselves."""

ONE_PROCESS = ("single", "data_parallel", OWN_RANKS)
"""Strategies in which a single process drives all GPUs of a trial (`own_ranks`: by starting further processes)."""


def gang(
    gpus: float,
    *,
    strategy: str,
    device: str,
    gpus_per_worker: float | None,
    cpus_per_worker: int | None,
    cores_per_gpu: int,
) -> Gang:
    """Return the gang of a trial with this many GPUs; on `cpu`, `gpus` counts worker processes.

    If `cpus_per_worker` is None, a rank gets its GPUs' share of the cores, or one core without GPUs.

    gpus = ranks × gpus_per_rank. A fraction of a GPU is one rank, because NCCL refuses two ranks on one device.
    Raises ValueError if no such gang exists.
    """
    if not is_number(gpus) or gpus <= 0:
        hint = ": sweep.axes.gpus=auto tries 1, 2, 4 … up to all GPUs" if isinstance(gpus, str) else ""
        raise ValueError(f"gpus must be a number above 0, not {gpus!r}{hint}")
    if strategy == "data_parallel" and device == "cpu":
        raise ValueError("strategy=data_parallel drives GPUs from one process, but there are none here: use ddp")
    if strategy == "single" and gpus > 1:
        raise ValueError(f"strategy=single is one process on one device, not gpus={gpus:g}: use ddp or data_parallel")
    per_rank = gpus_per_worker or (gpus if strategy in ONE_PROCESS else min(1, gpus))
    ranks = gpus / per_rank
    if ranks != int(ranks):
        raise ValueError(f"gpus={gpus:g} is not a whole number of workers with {per_rank:g} GPUs each")
    if ranks > 1 and per_rank < 1:
        raise ValueError(
            f"gpus={gpus:g} with resources.gpus_per_worker={per_rank:g} would put several ranks on one GPU;"
            f" a fraction is for a single rank: sweep.axes.gpus=[{per_rank:g}]"
        )
    if per_rank > 1 and per_rank != int(per_rank):
        raise ValueError(f"gpus={gpus:g} is neither a fraction of one GPU nor a whole number of GPUs")
    if strategy in ONE_PROCESS and ranks > 1:
        raise ValueError(f"strategy={strategy} is one process, so resources.gpus_per_worker={per_rank:g} does not fit")
    if device == "cpu" and strategy == "own_ranks" and per_rank == int(per_rank):
        workers = int(per_rank)
        cores = workers * (cpus_per_worker or 1)
        return Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=cores, workers_per_rank=workers)
    if device == "cpu" and per_rank != 1:
        raise ValueError(f"gpus={gpus:g} does not fit a machine without GPUs, where it counts worker processes")
    if device == "cpu":
        return Gang(ranks=int(ranks), gpus_per_rank=0, cpus_per_rank=cpus_per_worker or 1)
    cores = cpus_per_worker or max(1, int(cores_per_gpu * per_rank))
    return Gang(ranks=int(ranks), gpus_per_rank=per_rank, cpus_per_rank=cores)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The resolved config of all trials with the same config axes, read once."""

    trainable: str
    config: Mapping[str, Any]
    """The sections a trainable may read, including `optimizer` if the trainable has such a section."""
    reference_lr: float
    reference_batch_size: int
    optimizer: Mapping[str, Any]
    """The optimizer's config with its `name`; `unknown` for code that does not reveal its optimizer."""
    strategy: str
    """`auto`: one process for one rank, DDP for several."""
    device: str
    gpus_per_worker: float | None
    gpu_types: tuple[str, ...] = ()
    """Required types of GPUs; empty for any."""
    cpus_per_worker: int | None
    """None: the share of the cores that belongs to a rank's GPUs."""
    cores_per_gpu: int
    timing: str
    grad_accum_steps: int
    model_parallel: Mapping[str, int] = field(default_factory=dict)
    """Devices in each direction in which a replica of the model is divided: see `MODEL_PARALLEL`."""
    uneven_batch: bool
    warmup_epochs: float
    identity: Mapping[str, Any]
    """The config's part of a trial's identity: the request as written, and versions of sources and data."""


STANDARD_AXES = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", "lr_multiplier", "seed")
"""Axes that the project defines; every other axis is a config key or a config group."""

MOST_TRIALS = 100_000
"""A larger sweep means minutes of planning and weeks of training: most likely a typing error."""

DEFAULTS: Mapping[str, Any] = {"gpus": 1, "lr_rule": "none", "lr_multiplier": 1.0, "seed": 0}
"""The value of a standard axis that a sweep does not have."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The axes to vary. Each axis is a plain list of values."""

    name: str
    axes: Axes
    zip: Sequence[Sequence[str]] = ()
    exclude: Sequence[Mapping[str, Any]] = ()


def trials(sweep: Sweep, setup_of: Callable[[Point], Setup]) -> list[TrialSpec]:
    """Return every trial of the sweep, in grid order.

    `setup_of` returns the setup for a point's config axes; it is called once for each of their combinations.
    Raises ConfigError with the errors of all of them.
    """
    errors = list(axes_errors(sweep.axes, sweep.zip, sweep.exclude))
    if not sweep.axes.get("device_batch_size") and not sweep.axes.get("global_batch_size"):
        raise ConfigError(
            [*errors, "give one side of the batch: sweep.axes.device_batch_size or sweep.axes.global_batch_size"]
        )
    axes, zipped, exclude = sweep.axes, sweep.zip, sweep.exclude
    if errors:  # there is no grid, but the valid values can still be checked
        finite = {axis: [value for value in values if not is_not_finite(value)] for axis, values in axes.items()}
        axes, zipped, exclude = {axis: distinct(values) for axis, values in finite.items() if values}, (), ()
    if (count := size(axes, zipped)) > MOST_TRIALS:
        product = " × ".join(f"{len(values):,} {axis}" for axis, values in axes.items() if len(values) > 1)
        errors.append(f"{count:,} combinations ({product}) are more than the {MOST_TRIALS:,} trials of a sweep")
        raise ConfigError(errors)
    setups: dict[str, Setup | None] = {}
    specs: list[TrialSpec] = []
    for point in points(axes, zipped, exclude):
        config_axes = {axis: value for axis, value in point.items() if axis not in STANDARD_AXES}
        try:
            key = digest(config_axes)
            if key not in setups:
                setups[key] = None  # otherwise an error would be reported twice
                setups[key] = setup_of(config_axes)
            if setup := setups[key]:
                specs.append(_trial(sweep.name, point, setup))
        except ConfigError as error:
            errors += error.errors
        except ValueError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError(errors)
    return specs


def _trial(sweep: str, point: Point, setup: Setup) -> TrialSpec:
    values = {**DEFAULTS, **point}
    errors = []
    for key, value in (("lr_multiplier", values["lr_multiplier"]), ("trainable.lr", setup.reference_lr)):
        if not is_number(value) or value <= 0:
            errors.append(f"{key} must be a number above 0, not {value!r}")
    for key, value, least in (("seed", values["seed"], 0), ("reference_batch_size", setup.reference_batch_size, 1)):
        if not is_whole(value) or value < least:
            errors.append(f"{key} must be a whole number of at least {least}, not {value!r}")
    if errors:  # with valid placeholder numbers, other errors still show
        values |= {"lr_multiplier": 1.0}
        setup = replace(setup, reference_lr=1.0, reference_batch_size=1)
    held, batch, lr = None, None, None
    try:
        held = _gang(values, setup)
    except ValueError as error:
        errors.append(str(error))
    try:
        # Without a gang, one rank's batch still shows whether the batch itself makes sense.
        batch = _batch(values, held or _ONE_RANK, setup)
    except ValueError as error:
        errors.append(str(error))
    try:
        models = held.ranks if held and setup.strategy == INDEPENDENT else 1
        lr = learning_rate(
            values["lr_rule"],
            reference=setup.reference_lr,
            reference_batch_size=setup.reference_batch_size,
            global_batch_size=(batch.global_batch_size if batch else setup.reference_batch_size) // models,
            multiplier=values["lr_multiplier"],
            warmup_epochs=setup.warmup_epochs,
            optimizer=setup.optimizer,
        )
    except ValueError as error:
        errors.append(str(error))
    if errors or held is None or batch is None or lr is None:
        raise ConfigError(errors)
    strategy = setup.strategy if setup.strategy != "auto" else ("single" if held.ranks == 1 else "ddp")
    return TrialSpec(
        trial_id=digest({"is": "trial", "axes": values, "setup": setup.identity}),
        cell_id=digest({"is": "cell", "axes": without(values, ["seed"]), "setup": setup.identity}),
        sweep=sweep,
        axes=point,
        gpus=values["gpus"],
        gang=held,
        device=setup.device,
        strategy=strategy,
        timing=setup.timing,
        batch=batch,
        lr=lr,
        seed=values["seed"],
        trainable=setup.trainable,
        config={**setup.config, "optimizer": {**setup.optimizer, **lr.optimizer}},
    )


def _gang(values: Mapping[str, Any], setup: Setup) -> Gang:
    held = gang(
        values["gpus"],
        strategy=setup.strategy,
        device=setup.device,
        gpus_per_worker=setup.gpus_per_worker,
        cpus_per_worker=setup.cpus_per_worker,
        cores_per_gpu=setup.cores_per_gpu,
    )
    return replace(held, gpu_types=setup.gpu_types)


_ONE_RANK = Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=1)


def _batch(values: Mapping[str, Any], held: Gang, setup: Setup) -> Batch:
    """Return the batch of one step from either side that the sweep gives. Raises ValueError if it does not divide."""
    replicas, accumulate = _replicas(held.devices_per_rank, setup), setup.grad_accum_steps
    size: Any = values.get("device_batch_size")
    whole: Any = values.get("global_batch_size")
    if size is None:
        uneven = setup.uneven_batch or setup.strategy == UNEQUAL
        batch = divide_global(whole, held.ranks, devices_per_rank=replicas, grad_accum_steps=accumulate, uneven=uneven)
    else:
        batch = multiply_device(size, held.ranks, devices_per_rank=replicas, grad_accum_steps=accumulate)
        if whole not in (None, batch.global_batch_size):
            devices = f"{held.ranks} ranks" if replicas == 1 else f"{held.ranks * replicas} replicas"
            raise ValueError(
                f"device_batch_size={size} × {devices} × {accumulate} accumulation steps is"
                f" {batch.global_batch_size}, not global_batch_size={whole}"
            )
    sizes: dict[str, Any] = {"devices_per_rank": held.devices_per_rank, **setup.model_parallel}
    return replace(batch, **sizes)


def _replicas(devices: int, setup: Setup) -> int:
    """Return the replicas of the model on the devices of a rank. Raises ValueError, with the numbers, if none fits."""
    size = math.prod(setup.model_parallel.values())
    if size == 1:
        return devices
    text = " × ".join(f"{name}={count}" for name, count in setup.model_parallel.items() if count > 1)
    if setup.strategy != OWN_RANKS:
        raise ValueError(
            f"{text} is for commands, which start their ranks themselves, not for strategy={setup.strategy}"
        )
    if devices % size:
        raise ValueError(f"gpus={devices} is not a multiple of {text} = {size}")
    return devices // size
