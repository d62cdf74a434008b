"""Divided models: torch's `fully_shard` (FSDP2), its passes without communication, and tensor parallelism.

Each unit of a model, one of its blocks, is gathered as a whole before it computes; what is left belongs to the root.
With tensor parallelism a rank gathers no more than its part of the layers that the model's plan names.

FSDP2 and divided tensors are imported where a model is divided: their import takes seconds, which all ranks would pay.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from sweeps.layout import Layout
from trainables.models import tensor_plan
from trainables.torch_private import FsdpCollectives

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

SMALLEST_UNIT = 1e-3
"""The least share of a model's parameters that is gathered by itself; a gather of less costs more than it saves."""


def units(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are gathered one at a time: the members of the outermost lists and sequences.

    For a transformer these are its layers, for a ResNet its residual blocks.
    """
    least = SMALLEST_UNIT * sum(parameter.numel() for parameter in model.parameters())

    def members(module: nn.Module, *, is_member: bool) -> Iterator[nn.Module]:
        holds_members = isinstance(module, nn.ModuleList | nn.Sequential)
        if is_member and not holds_members:
            if sum(parameter.numel() for parameter in module.parameters()) >= least:
                yield module
            return
        for child in module.children():
            yield from members(child, is_member=holds_members)

    return list(members(model, is_member=False))


def shard(
    model: nn.Module, layout: Layout, mesh: DeviceMesh, *, computes_in: torch.dtype | None, sends: torch.dtype
) -> None:
    """Divide the parameters of a model on its device among the shards of the mesh, in place.

    All ranks have the same parameters before, or the parts that `divide_layers` has given them. The model computes in
    `computes_in` (None: as its parameters are) on copies of the parameters, and gradients are averaged in the format
    `sends`.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=sends)
    if layout.tensor > 1:
        mesh = mesh["replicas", "shards"] if layout.replicas > 1 else mesh["shards"]
    for unit in units(model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=not layout.keeps_parameters)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def divide_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the layers that the model's plan names among the ranks of the mesh, in place (tensor parallelism).

    Every rank computes all other layers, whose parameters become copies that the mesh knows of. Raises RequestError for
    a model without a plan.
    """
    from torch.distributed.tensor import DTensor, distribute_module
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners[parameter].append((module, name))
    parallelize_module(model, mesh, {name: styles[kind]() for name, kind in tensor_plan(model).items()})
    # Clipping, fused optimizers and checkpoints need all parameters on one mesh.
    copied = {
        module: None
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
        if not isinstance(parameter, DTensor)
    }
    for module in copied:
        distribute_module(module, mesh, input_fn=_as_copies, output_fn=_own_copy)  # type: ignore[arg-type]
    for places in owners.values():  # parameters that layers have shared
        first = getattr(*places[0])
        for module, name in places[1:]:
            module.register_parameter(name, first)


def _as_copies(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    from torch.distributed.tensor import DTensor, Replicate

    return tuple(DTensor.from_local(value, mesh, [Replicate()], run_check=False) for value in inputs)


def _own_copy(module: nn.Module, outputs: Any, mesh: DeviceMesh) -> Any:
    return outputs.to_local()


def sharded_parts(model: nn.Module) -> list[FSDPModule]:
    """Return the root and the units of a sharded model; empty for other models."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)] if fsdp else []


@contextmanager
def without_reduction(model: FSDPModule) -> Iterator[None]:
    """Let the passes of this block add up gradients on each rank, without exchanging them."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@contextmanager
def without_communication(model: nn.Module) -> Iterator[None]:
    """Replace the collectives of a sharded model, if it is one, by copies of the rank's own part, without meaning.

    Kernels and memory are those of a real pass.
    """
    # One rank can measure a pass, or run out of memory, without the others, which would wait for it forever.
    parts = sharded_parts(model)
    collectives = FsdpCollectives(parts)
    for part in parts:
        part.set_custom_all_gather(_OwnGather())  # type: ignore[arg-type]
        part.set_custom_reduce_scatter(_OwnReduceScatter())  # type: ignore[arg-type]
    # Without `set_requires_all_reduce(False)`, which leaves parameters without gradients and so without updates.
    collectives.leave_replicas()
    try:
        yield
    finally:
        collectives.restore()
        for part in parts:
            part.reshard()  # what was gathered here must not be computed on later


def free_gathered(model: nn.Module) -> None:
    """Free gathered parameters that a forward pass without a backward pass has left."""
    for part in sharded_parts(model):
        part.reshard()


class _Buffers:
    """Memory for a collective, as torch's own collectives allocate it."""

    def allocate(self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _OwnGather(_Buffers):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        # The input is usually a row of the output.
        for row in output_tensor.view(group.size(), -1):
            if row.data_ptr() != input_tensor.data_ptr():
                row.copy_(input_tensor.view(-1))


class _OwnReduceScatter(_Buffers):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        own_row = input_tensor.view(group.size(), -1)[group.rank()]
        output_tensor.copy_(own_row.view_as(output_tensor))
