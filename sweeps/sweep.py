"""A sweep expanded to its trials: the grid, each trial's gang, batch and learning rate, and its id.

global_batch_size = device_batch_size × data_parallel_size × grad_accum_steps: see `sweeps.layout.Layout`. A rank is a
process; it drives one device, or divides its share of the batch among several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sweeps.axes import Axes, Point, axes_errors, grid_size, is_number, is_whole, points, valid_part
from sweeps.errors import ConfigError, collected
from sweeps.identity import digest, without
from sweeps.layout import ONE_PROCESS, OWN_RANKS, Gang, Layout, layout_of, least_nodes
from sweeps.lr_rule import learning_rate
from sweeps.trial import Batch, TrialSpec


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
    strategy: str  # one of `sweeps.layout.STRATEGIES`, or `auto`
    fsdp_size: int | None = None  # shards of each replica: see `layout_of`
    device: str
    nodes: int | None = None  # nodes that have equally many of the GPUs; None: see `Gang.nodes`, and `node_sizes`
    node_sizes: tuple[int, ...] = ()
    """The GPUs of each node, if trials with more GPUs than a node has are spread over several."""
    gpu_types: tuple[str, ...] = ()  # required types of GPUs; empty for any
    cpus_per_worker: int | None  # None: the share of the cores that belongs to a rank's GPUs
    cores_per_gpu: int
    timing: str
    grad_accum_steps: int
    model_parallel: Mapping[str, int] = field(default_factory=dict)
    """Devices in each direction in which a replica of the model is divided: see `MODEL_PARALLEL`."""
    uneven_batch: bool
    warmup_epochs: float
    identity: Mapping[str, Any]
    """The config's part of a trial's identity: the request as written, and versions of sources and data."""


def divide_global(
    global_batch_size: int, ranks: int, *, parts_per_rank: int = 1, grad_accum_steps: int = 1, uneven: bool = False
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
        parts_per_rank=parts_per_rank,
    )


def multiply_device(device_batch_size: int, ranks: int, *, parts_per_rank: int = 1, grad_accum_steps: int = 1) -> Batch:
    """Return the batch in which every part has `device_batch_size` samples per pass."""
    _check_positive("device_batch_size", device_batch_size)
    share = device_batch_size * parts_per_rank
    return Batch(
        global_batch_size=share * ranks * grad_accum_steps,
        grad_accum_steps=grad_accum_steps,
        shares=(share,) * ranks,
        parts_per_rank=parts_per_rank,
    )


def _check_positive(name: str, value: int) -> None:
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


STANDARD_AXES: Mapping[str, Any] = {
    "gpus": 1,
    "device_batch_size": None,
    "global_batch_size": None,
    "lr_rule": "none",
    "lr_multiplier": 1.0,
    "seed": 0,
}
"""Axes that the project defines, with the value that trials have if a sweep has not the axis; every other axis is a
config key or a config group."""

MOST_TRIALS = 100_000  # a larger sweep means minutes of planning and weeks of training: most likely a typing error


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
        axes, zipped = valid_part(axes, zipped)
    if (count := grid_size(axes, zipped)) > MOST_TRIALS:
        product = " × ".join(f"{len(values):,} {axis}" for axis, values in axes.items() if len(values) > 1)
        errors.append(f"{count:,} combinations ({product}) are more than the {MOST_TRIALS:,} trials of a sweep")
        raise ConfigError(errors)
    # A setup is composed by Hydra, which takes longer than everything else here.
    setups: dict[str, Setup | None] = {}
    specs: list[TrialSpec] = []
    for point in points(axes, zipped, exclude):
        config_axes = {axis: value for axis, value in point.items() if axis not in STANDARD_AXES}
        with collected(errors):
            key = digest(config_axes)
            if key not in setups:
                setups[key] = None  # otherwise an error would be reported twice
                setups[key] = setup_of(config_axes)
            if setup := setups[key]:
                specs.append(_trial(sweep.name, point, setup))
    if not specs and not errors:
        errors = ["sweep.exclude leaves no trial of the sweep"]
    if errors:
        raise ConfigError(errors)
    return specs


def _trial(sweep: str, point: Point, setup: Setup) -> TrialSpec:
    # A side of the batch that the sweep does not give is no part of the trial's identity.
    values = {axis: value for axis, value in STANDARD_AXES.items() if value is not None} | dict(point)
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
    # Each part is tried even if another is wrong.
    held, layout, batch, lr = None, None, None, None
    with collected(errors):
        held = gang_of(values["gpus"], setup)
        layout = layout_of(
            held, strategy=setup.strategy, model_parallel=setup.model_parallel, fsdp_size=setup.fsdp_size
        )
    with collected(errors):
        # Without a layout, one rank's batch still shows whether the batch itself makes sense.
        batch = _batch(values, layout or Layout(), held.ranks if held else 1, setup)
    with collected(errors):
        # Independent models see only their share of the batch, and need the rate for that.
        models = layout.models if layout else 1
        samples = (batch.global_batch_size if batch else setup.reference_batch_size) // models
        lr = learning_rate(values["lr_rule"], values["lr_multiplier"], samples, setup)
    if errors or held is None or layout is None or batch is None or lr is None:
        raise ConfigError(errors)
    return TrialSpec(
        trial_id=digest({"is": "trial", "axes": values, "setup": setup.identity}),
        cell_id=digest({"is": "cell", "axes": without(values, ["seed"]), "setup": setup.identity}),
        sweep=sweep,
        axes=point,
        gpus=values["gpus"],
        gang=held,
        device=setup.device,
        layout=layout,
        timing=setup.timing,
        batch=batch,
        lr=lr,
        seed=values["seed"],
        trainable=setup.trainable,
        # A rule may change betas, weight decay or the optimizer itself, besides the rate.
        config={**setup.config, "optimizer": {**setup.optimizer, **lr.optimizer}},
    )


def gang_of(gpus: float, setup: Setup) -> Gang:
    """Return the gang of a trial with this many GPUs; on `cpu`, `gpus` counts worker processes.

    gpus = ranks × gpus_per_rank. Raises ValueError if no such gang exists. A gang that the nodes cannot have in equal
    parts is not `is_divisible`.
    """
    strategy, on_cpu = setup.strategy, setup.device == "cpu"
    if not is_number(gpus) or gpus <= 0:
        hint = ": sweep.axes.gpus=auto tries 1, 2, 4 … up to all GPUs" if isinstance(gpus, str) else ""
        raise ValueError(f"gpus must be a number above 0, not {gpus!r}{hint}")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"gpus={gpus:g} is neither a fraction of one GPU nor a whole number of GPUs")
    if strategy == "data_parallel" and on_cpu:
        raise ValueError("strategy=data_parallel drives GPUs from one process, but there are none here: use ddp")
    if strategy == "single" and gpus > 1:
        raise ValueError(f"strategy=single is one process on one device, not gpus={gpus:g}: use ddp or data_parallel")
    if on_cpu and gpus != int(gpus):
        raise ValueError(f"gpus={gpus:g} does not fit a machine without GPUs, where it counts worker processes")
    nodes = setup.nodes
    if nodes is None:
        least = least_nodes(gpus, setup.node_sizes)
        # On one node, the gang is the same as without a number of nodes.
        nodes = None if least == 1 else least
    if strategy in ONE_PROCESS:
        per_rank = gpus
    elif strategy == OWN_RANKS and gpus % (nodes or 1) == 0:
        per_rank = gpus / (nodes or 1)
    else:
        # NCCL refuses two ranks on one device, so that a fraction of a GPU is one rank.
        per_rank = min(1, gpus)
    held = Gang(ranks=int(gpus / per_rank), gpus_per_rank=per_rank, cpus_per_rank=1, nodes=nodes)
    # Without GPUs, a rank that would drive several starts as many processes, each with its own cores.
    if on_cpu:
        workers = int(per_rank)
        cores = workers * (setup.cpus_per_worker or 1)
        return replace(held, gpus_per_rank=0, cpus_per_rank=cores, workers_per_rank=workers)
    cores = setup.cpus_per_worker or max(1, int(setup.cores_per_gpu * per_rank))
    return replace(held, cpus_per_rank=cores, gpu_types=setup.gpu_types)


def _batch(values: Mapping[str, Any], layout: Layout, ranks: int, setup: Setup) -> Batch:
    """Return the batch of one step from either side that the sweep gives. Raises ValueError if it does not divide."""
    accumulate = setup.grad_accum_steps
    # A command divides its batch itself, among all of its nodes.
    data_ranks = 1 if layout.starts_ranks else min(ranks, layout.data_parallel_size)
    parts = layout.data_parallel_size // data_ranks
    size: Any = values.get("device_batch_size")
    whole: Any = values.get("global_batch_size")
    if size is None:
        uneven = setup.uneven_batch or layout.shares_follow_speed
        return divide_global(whole, data_ranks, parts_per_rank=parts, grad_accum_steps=accumulate, uneven=uneven)
    batch = multiply_device(size, data_ranks, parts_per_rank=parts, grad_accum_steps=accumulate)
    if whole not in (None, batch.global_batch_size):
        devices = f"{data_ranks} ranks" if parts == 1 else f"{layout.data_parallel_size} replicas"
        raise ValueError(
            f"device_batch_size={size} × {devices} × {accumulate} accumulation steps is"
            f" {batch.global_batch_size}, not global_batch_size={whole}"
        )
    return batch
