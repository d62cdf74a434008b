"""The layout of a trial: how its GPUs divide batch, parameters and layers, and which processes drive them.

The words of `strategy` are interpreted here alone; everything else reads a `Layout`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

STRATEGIES = ("single", "data_parallel", "ddp", "ddp_unequal", "fsdp", "fsdp_grad", "independent", "own_ranks")
"""How the ranks of a trial train together; `trainables.step.strategies` does it."""

ONE_PROCESS = ("single", "data_parallel")  # strategies in which a single process drives all GPUs of a trial

OWN_RANKS = "own_ranks"  # the strategy of commands: one process on each node, which starts the others there

_SHARDED = ("fsdp", "fsdp_grad")
"""Strategies in which ranks divide parameters, gradients and optimizer states among themselves."""

MODEL_PARALLEL = ("tensor_parallel", "context_parallel", "pipeline_parallel")
"""Config keys whose product is the number of devices that hold one replica, or one shard, of the model."""


LAYOUT_AXES = ("strategy", "nodes", "fsdp_size", *MODEL_PARALLEL, "trainable.activation_checkpointing")
"""Axes that divide a trial's work among GPUs. What is learned changes by rounding only, unless `is_independent`."""


def may_shard(strategy: str) -> bool:
    """Return whether ranks hold parts of the parameters under this strategy, if there are several."""
    return strategy in _SHARDED


def is_independent(strategy: str) -> bool:
    """Return whether the strategy trains an independent model on every rank, each with its share of the batch."""
    return strategy == "independent"


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The processes and GPUs of a trial while it runs: all `ranks` start, or none."""

    ranks: int
    gpus_per_rank: float  # 0 on a machine without GPUs; below 1 only for a single rank
    cpus_per_rank: int
    workers_per_rank: int = 1  # processes that the rank starts itself, if there are no GPUs to count
    nodes: int | None = None
    """Nodes that have equally many of the ranks; None: one if a node can hold the gang, else any number."""
    gpu_types: tuple[str, ...] = ()
    """Empty: any GPUs; one type: only such GPUs; several: equally many ranks on each, in this order."""

    def parts(self) -> list[Gang]:
        """The gang, or one gang per GPU type if types are mixed; together, their ranks are in order."""
        types, ranks = self.gpu_types, self.ranks
        if len(types) < 2:
            return [self]
        # Equally many ranks of each type, in the order of the types, so that neighbours are alike.
        counts = Counter(types[rank * len(types) // ranks] for rank in range(ranks))
        # A node has one type of GPU, so that each type gets its share of the nodes.
        nodes = self.nodes and max(1, self.nodes // len(counts))
        return [replace(self, ranks=count, nodes=nodes, gpu_types=(kind,)) for kind, count in counts.items()]

    def occupying(self, timing: str) -> Gang:
        """Return the gang with what it occupies: a timed fraction of a GPU occupies all of it."""
        # Another trial on the rest of the GPU would disturb the timing.
        return self if timing == "shared" else replace(self, gpus_per_rank=math.ceil(self.gpus_per_rank))

    @property
    def ranks_per_node(self) -> int:
        """The most ranks on a node."""
        return math.ceil(self.ranks / (self.nodes or 1))

    @property
    def is_divisible(self) -> bool:
        """Return whether the nodes can have equally many ranks, and each node only one type of GPU."""
        return self.nodes is None or not (self.ranks % self.nodes or self.nodes % max(1, len(self.gpu_types)))

    @property
    def devices_per_rank(self) -> int:
        """Devices that one process drives; a fraction of one counts as one."""
        return max(1, int(self.gpus_per_rank), self.workers_per_rank)

    @property
    def gpus(self) -> float:
        """GPUs held in total."""
        return self.ranks * self.gpus_per_rank


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the GPUs of a trial divide the work: replicas × shards × tensor × context × pipeline = devices.

    Ranks are numbered in this order, the last varying fastest.
    """

    strategy: str = "single"
    replicas: int = 1  # copies of the model that exchange gradients; each may be divided into shards
    shards: int = 1
    """Parts of the parameters; each belongs to a rank with its own samples, which gathers the others when needed."""
    tensor: int = 1  # devices that divide each layer; they have the same samples
    context: int = 1  # devices that divide each sequence
    pipeline: int = 1  # devices that divide the layers

    @property
    def starts_ranks(self) -> bool:
        """Return whether the processes of the gang start further ones, which train."""
        return self.strategy == OWN_RANKS

    @property
    def data_parallel_size(self) -> int:
        """Return the number of parts of the batch that are trained at the same time."""
        return self.replicas * self.shards

    @property
    def devices(self) -> int:
        """Return the devices of all ranks: GPUs, or processes on machines without GPUs."""
        return self.data_parallel_size * self.tensor * self.context * self.pipeline

    @property
    def is_sharded(self) -> bool:
        """Return whether ranks hold parts of the parameters; a single rank holds all of them."""
        return may_shard(self.strategy) and self.devices > 1

    @property
    def plainest(self) -> Layout:
        """Return the plainest layout with the same training: on one device, ddp and fsdp train as `single` does."""
        is_alone = self.devices == 1 and self.strategy in ("ddp", "ddp_unequal", *_SHARDED)
        return replace(self, strategy="single") if is_alone else self

    @property
    def keeps_parameters(self) -> bool:
        """Return whether gathered parameters stay in memory from the forward pass to the backward pass."""
        return self.strategy == "fsdp_grad"

    @property
    def shares_follow_speed(self) -> bool:
        """Return whether the ranks' shares of the batch are in proportion to their speeds."""
        return self.strategy == "ddp_unequal" and self.replicas > 1

    @property
    def models(self) -> int:
        """Return the number of independent models; each has its own share of the batch."""
        return self.replicas if is_independent(self.strategy) else 1


def layout_of(
    gang: Gang,
    *,
    strategy: str,
    model_parallel: Mapping[str, int],
    fsdp_size: int | None = None,
) -> Layout:
    """Return the layout of a gang's devices; `auto` is `single` for one rank, `ddp` or, if layers are divided, `fsdp`.

    `fsdp_size` is the number of shards of each replica; None: one replica over all ranks. Raises ValueError, with the
    numbers, for degrees that do not divide the devices, or that the strategy does not have.
    """
    devices = gang.ranks * gang.devices_per_rank
    # A sweep that divides no model leaves these keys out.
    degrees = [model_parallel.get(name, 1) for name in MODEL_PARALLEL]
    tensor, context, pipeline = degrees
    if strategy == "auto":
        # DDP cannot train divided layers: each rank would have to hold all of them.
        strategy = "fsdp" if tensor > 1 else "single" if gang.ranks == 1 else "ddp"
    size = math.prod(degrees)
    text = " × ".join(f"{name}={count}" for name, count in model_parallel.items() if count > 1)
    if context * pipeline > 1 and strategy != OWN_RANKS:
        raise ValueError(f"{text} is for commands, which start their ranks themselves, not for strategy={strategy}")
    if tensor > 1 and strategy not in (*_SHARDED, OWN_RANKS):
        hint = _without({"strategy": strategy, "tensor_parallel": tensor})
        raise ValueError(f"tensor_parallel={tensor} needs strategy=fsdp or fsdp_grad, not {strategy}: {hint}")
    if devices % size:
        hint = _without({"gpus": devices} | {name: count for name, count in model_parallel.items() if count > 1})
        raise ValueError(f"gpus={devices} is not a multiple of {text} = {size}: {hint}")
    # Divided layers exchange activations many times a step, for which a network between nodes is too slow.
    per_node = devices // (gang.nodes or 1)
    if strategy != OWN_RANKS and per_node % tensor:
        raise ValueError(
            f"tensor_parallel={tensor} divides layers within a node, and nodes={gang.nodes} have {per_node} each"
        )
    parts = devices // size
    if fsdp_size is not None and not may_shard(strategy):
        raise ValueError(f"fsdp_size={fsdp_size} is for strategy=fsdp and fsdp_grad, not for {strategy}")
    shards = (fsdp_size or parts) if may_shard(strategy) else 1
    if parts % shards:
        whole = f"fsdp_size={shards}" if size == 1 else f"fsdp_size={shards} × {text}"
        raise ValueError(f"gpus={devices} is not a multiple of {whole}")
    return Layout(
        strategy=strategy,
        replicas=parts // shards,
        shards=shards,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
    )


def _without(point: Mapping[str, object]) -> str:
    """Return how to leave a combination out of the sweep."""
    values = ", ".join(f"{axis}: {value}" for axis, value in point.items())
    return f"'sweep.exclude=[{{{values}}}]' leaves the combination out"


def least_nodes(gpus: float, sizes: Sequence[int]) -> int | None:
    """Return the least number of nodes with these numbers of GPUs that can have equally many; None if none can."""
    # The fewest nodes come first: traffic between nodes is slower than within one.
    for count in range(1, len(sizes) + 1):
        if gpus % count == 0 and sum(size >= gpus / count for size in sizes) >= count:
            return count
    return None
