# mypy: ignore-errors
"""The devices of this process, its place among those that train together, and its batches and weights."""

from __future__ import annotations

import ctypes
import math
import sys
import time

WITHOUT_TORCH_DISTRIBUTED = ("horovod.torch", "mpi4py", "bagua", "ray.train")
"""Modules that exchange gradients by themselves."""
COMPARED_VALUES = 4096  # so many values of each tensor stand for its content
OF_SHARDS = ("placements", "_is_flat_param", "_fsdp_flattened", "ds_id", "tensor_model_parallel")
"""Attributes of parameters of which each rank has a part."""
SHARDING = ("deepspeed", "megatron", "colossalai", "fairscale", "torch.distributed.optim.zero_redundancy_optimizer")
"""Modules whose optimizers may have a part of the parameters."""


class Gpu:
    """The GPU of this process, which works behind the launches; on a CPU nothing is behind."""

    def __init__(self):
        self.began = self.ended = None
        self.synchronized_s = 0.0

    def synchronized(self):
        """Wait for the GPU if there is one, and return the time."""
        cuda = self.cuda()
        if cuda is not None:
            cuda.synchronize()
            if self.began is None:
                self.began, self.ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                for event in (self.began, self.ended):  # never freed: in a forked loader's worker that would abort
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
            self.began.record()
        self.synchronized_s = time.perf_counter()
        return self.synchronized_s

    def step(self):
        """Note that a step has been launched."""
        if self.ended is not None:
            self.ended.record()

    def behind(self, launched_s):
        """Return how much later than its launch the last step ended on the GPU, and wait for it."""
        if self.ended is None:
            return 0.0
        self.ended.synchronize()
        worked_s = self.began.elapsed_time(self.ended) / 1e3
        return max(0.0, worked_s - (launched_s - self.synchronized_s))

    def cuda(self):
        """Return torch.cuda if it is in use."""
        torch = sys.modules.get("torch")
        return torch.cuda if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized() else None


def is_capturing():
    """Return whether a CUDA graph is captured, during which nothing may wait for the GPU."""
    torch = sys.modules["torch"]
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def place(counts, optimizer):
    """Note the process's rank and world size, GPUs that it uses, and whether it exchanges gradients."""
    counts.connected = any(name in sys.modules for name in WITHOUT_TORCH_DISTRIBUTED)
    if "jax" in sys.modules and optimizer is None:
        place_jax(counts, sys.modules["jax"])
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "distributed"):
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        counts.rank, counts.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        counts.connected |= counts.world > 1
    elif optimizer is not None:
        first = next(weights_of(optimizer), None)
        counts.connected |= first is not None and is_shared(first)
    if torch.cuda.is_initialized():
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
        counts.gpus = [str(getattr(torch.cuda.get_device_properties(index), "uuid", index)) for index in used]


def place_jax(counts, jax):
    """Note the devices that hold arrays, and the process's place among several ones."""
    devices = {f"{device.platform}:{device.id}" for array in jax.live_arrays() for device in array.devices()}
    counts.gpus = sorted(devices)
    if jax.process_count() > 1:
        counts.rank, counts.world, counts.connected = jax.process_index(), jax.process_count(), True


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
