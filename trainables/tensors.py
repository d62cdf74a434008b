"""Tensors in nested values, and the parts of them that a rank holds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def _is_divided(tensor: Tensor) -> TypeGuard[DTensor]:
    # Its import takes seconds, and without it no tensor is divided.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the rank's own part of a tensor, which shares its memory; the tensor itself if it is not divided."""
    return tensor.to_local() if _is_divided(tensor) else tensor


def groups_of_parts(tensor: Tensor) -> list[dist.ProcessGroup]:
    """Return the groups of ranks over which a sum of the parts is that of the whole; empty if it is not divided."""
    if not _is_divided(tensor):
        return []
    mesh = tensor.device_mesh
    return [mesh.get_group(axis) for axis, placement in enumerate(tensor.placements) if placement.is_shard()]


def split(tree: Any, path: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Return nested dicts and lists with None in the place of each tensor, and the tensors by dotted path."""
    if isinstance(tree, Tensor):
        return None, {path: tree}
    if not isinstance(tree, dict | list | tuple):
        return tree, {}
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    parts = {key: split(value, f"{path}.{key}" if path else str(key)) for key, value in items}
    tensors = {name: tensor for _, own in parts.values() for name, tensor in own.items()}
    plain = {key: value for key, (value, _) in parts.items()}
    return (plain if isinstance(tree, dict) else list(plain.values())), tensors


def join(plain: Any, tensors: Mapping[str, Tensor], path: str = "") -> Any:
    """Return what `split` has split."""
    if path in tensors:
        return tensors[path]
    if isinstance(plain, dict):
        return {key: join(value, tensors, f"{path}.{key}" if path else str(key)) for key, value in plain.items()}
    if isinstance(plain, list):
        return [join(value, tensors, f"{path}.{index}" if path else str(index)) for index, value in enumerate(plain)]
    return plain
