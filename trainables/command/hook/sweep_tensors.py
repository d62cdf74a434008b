# mypy: ignore-errors
"""Sizes and contents of batches and of an optimizer's weights."""

from __future__ import annotations

import math
import sys

COMPARED_VALUES = 4096
"""So many values of each tensor stand for its content."""
OF_SHARDS = ("placements", "_is_flat_param", "_fsdp_flattened", "ds_id", "tensor_model_parallel")
"""Attributes of parameters of which each rank has a part."""
SHARDING = ("deepspeed", "megatron", "colossalai", "fairscale", "torch.distributed.optim.zero_redundancy_optimizer")
"""Modules whose optimizers may have a part of the parameters."""


def weights_of(optimizer):
    """Yield the parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def length_of(iterator):
    """Return the samples of the data set of a loader's iterator; 0 if it is not known."""
    try:
        return len(iterator._dataset)
    except Exception:  # a stream has no length
        return 0


def count_of(optimizer):
    """Return the number of parameters that an optimizer trains; 0 if each rank has a part of them."""
    parameters = list(weights_of(optimizer))
    # A DTensor of FSDP2 tells the size of the whole.
    has_parts = any(is_shard(weights) and not hasattr(weights, "placements") for weights in parameters)
    return 0 if has_parts else sum(weights.numel() for weights in parameters)


def is_shard(weights):
    """Return whether each rank may have a part of this parameter."""
    return any(hasattr(weights, name) for name in OF_SHARDS) or any(name in sys.modules for name in SHARDING)


def is_shared(weights):
    """Return whether processes share the memory of these weights, as in Hogwild."""
    return weights.device.type == "cpu" and weights.is_shared()


def checksum(optimizer):
    """Return the sum of the first weights, which replicas have in common; None for a shard, or for shared memory."""
    first = next(weights_of(optimizer), None)
    if first is None or is_shared(first) or is_shard(first):
        return None
    return float(first.detach().double().sum())


def size_of(batch):
    """Return the samples of a batch, from its first tensor, and its tokens, if it has `input_ids`."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        ids, mask = (batch[name] if name in batch else None for name in ("input_ids", "attention_mask"))
        if hasattr(ids, "shape") and len(ids.shape):
            on_host = hasattr(mask, "shape") and getattr(getattr(mask, "device", None), "type", "") == "cpu"
            return int(ids.shape[0]), int(mask.sum()) if on_host else math.prod(ids.shape)
        batch = [batch[key] for key in batch.keys()]
    if hasattr(batch, "shape"):
        return (int(batch.shape[0]), 0) if len(batch.shape) else (0, 0)
    if isinstance(batch, (list, tuple)):
        for part in batch:
            samples, tokens = size_of(part)
            if samples:
                return samples, tokens
    return 0, 0


def content_of(batch):
    """Return the sum of the first values of each tensor of a batch; None if it has no tensors."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        batch = [batch[key] for key in batch.keys()]
    if isinstance(batch, (list, tuple)):
        sums = [content for content in map(content_of, batch) if content is not None]
        return sum(sums) if sums else None
    try:
        return float(batch.reshape(-1)[:COMPARED_VALUES].double().sum())
    except Exception:  # no tensor, or one of an unusual kind
        return None
