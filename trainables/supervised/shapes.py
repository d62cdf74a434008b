"""The rehearsal of a trial from the shapes of its tensors alone, for a GPU that this machine lacks.

The trial is prepared as always, and takes its steps on tensors without data. `Meter` counts the memory that they would
take, and their time by a roofline: an operation takes as long as its FLOPs or its bytes, whichever is longer (Williams
et al. 2009). What compilers save is not seen, nor the memory in which convolutions compute.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry

from sweeps.forecast import SHAPES_OF
from sweeps.gpus import Gpu, gpu_named
from trainables import process_group
from trainables.context import Context, RequestError
from trainables.inputs.inputs import Minibatch, Part
from trainables.inputs.sequences import Sequences
from trainables.step.sharding import free_gathered
from trainables.supervised.evaluation import Evaluation
from trainables.supervised.rehearsal import EVALUATED, MemoryPeaks, parts_of_memory, size_of
from trainables.supervised.replica import Replica
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.training import SupervisedTrial, prepared
from trainables.torch_private import dispatch_mode, fake_tensors, forget_conversions

ON_CPU: Mapping[str, Any] = {"compile": "off", "cuda_graph": "off", "fp8": "off", "branch_base": ""}
"""Settings without those that need a GPU, a compiler or a checkpoint."""
AS_LARGE = {"fp16": "bf16", "tf32": "fp32"}
"""Precisions that a CPU lacks, and others with the same sizes."""
SUSTAINED_FLOPS, SUSTAINED_BYTES = 0.7, 0.85
"""The shares of a data sheet's rates that large operations reach."""
LAUNCH_S = 30e-6
"""The host's seconds for an operation."""
START_S = 10.0
"""Seconds in which a process loads its libraries and data, and as many in which its first step chooses algorithms."""
BLOCK = 512
"""The bytes that torch's allocator for GPUs rounds up to."""
WORKSPACES = 72 * 2**20
"""The bytes in which cuBLAS computes."""


def rehearse(config: Mapping[str, Any], context: Context) -> None:
    """Rehearse the trial of this config for the GPU `config[SHAPES_OF]`, and summarize the figures."""
    gpu = gpu_named(config[SHAPES_OF])
    if gpu is None:
        raise RequestError(f"{config[SHAPES_OF]!r} is not a known GPU")
    # The settings that were asked decide the figures; those that this machine can prepare have tensors of equal size.
    asked = TrainingSettings.of(config["trainable"])
    precision = AS_LARGE.get(asked.precision, asked.precision)
    prepared_here = {**config, "trainable": {**config["trainable"], **ON_CPU, "precision": precision}}
    meter = Meter(gpu, has_tf32=asked.precision not in ("fp32", "fp64"))
    peaks = MemoryPeaks(meter.take_gb)
    with ExitStack() as stack:

        def replica(*whole: Any, **options: Any) -> Replica:
            # Data and a mesh are made before, because their values count.
            if context.layout.is_sharded or context.layout.tensor > 1:
                process_group.mesh(context.layout, context.device)
            meter.fake = stack.enter_context(fake_tensors())
            stack.enter_context(meter)
            stack.enter_context(autocast_of_gpus())
            return ShapedReplica(*whole, **options)

        # Preparation.
        trial = stack.enter_context(prepared(prepared_here, context, replica_type=replica))
        split = trial.workload.split
        meter.beside += _bytes_beside(trial, config, context, asked)
        peaks.end("setup")
        figures: dict[str, Any] = {"setup_s": START_S, "first_step_s": START_S}
        validation = _evaluation(trial, split.validation)

        # The first step makes the states of the optimizer, and divided tensors plan each operation once, with tensors
        # of the whole size. Only the second one is like all later ones.
        trial.loop.step()
        meter.take_gb()
        meter.take_s()
        stack.enter_context(peaks.watched())
        trial.loop.step()
        launched_s = 0.0 if asked.cuda_graph == "on" else LAUNCH_S * meter.launches
        device_s = meter.take_s()
        figures |= {"step_s": max(device_s, launched_s), "device_step_s": device_s}
        peaks.end("passes")

        # Evaluation.
        figures |= {"validation_s": _evaluation_s(trial, validation, meter)}
        del validation
        figures |= {"test_s": _evaluation_s(trial, _evaluation(trial, split.test), meter)}
        peaks.end("evaluation")

        figures |= size_of(trial, context, asked)
        figures |= parts_of_memory(trial, peaks, device_gb=gpu.memory_gb, device_name=config[SHAPES_OF])
    context.summarize(figures)


def _bytes_beside(trial: SupervisedTrial, config: Mapping[str, Any], context: Context, asked: TrainingSettings) -> int:
    """Return the bytes that no operation of a step makes: data on the GPU, and a buffer of the exchange."""
    size = 0
    if config["data"]["name"] == "synthetic":  # made on the GPU, where it stays
        split = trial.workload.split
        size += sum(
            part.images.nbytes for part in (split.train, split.validation, split.test) if isinstance(part, Part)
        )
    has_buckets = context.layout.strategy.startswith("ddp") and context.world_size > 1
    if has_buckets and asked.compile in ("off", "blocks"):
        size += _exchange_in_buckets(trial.replica.model)
    return size


def _exchange_in_buckets(model: nn.Module) -> int:
    """Let gradients take no memory beside the buffer of their exchange; return the bytes of another such buffer.

    DistributedDataParallel keeps them in its buckets; those of the first step stay when it makes others.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def leave_bucket(parameter: Tensor) -> None:
        parameter.grad = parameter.detach()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(leave_bucket)
    return sum(parameter.nbytes for parameter in parameters)


def _evaluation(trial: SupervisedTrial, part: Part | Sequences) -> Evaluation | None:
    if not len(part):
        return None
    return trial.evaluation(ShapedSequences(part) if isinstance(part, Sequences) else part)


def _evaluation_s(trial: SupervisedTrial, evaluation: Evaluation | None, meter: Meter) -> float:
    """Return the seconds of a whole evaluation, from a few of its batches."""
    if evaluation is None:
        return 0.0
    evaluated = evaluation.first(EVALUATED)
    meter.take_s()
    trial.replica.model.eval()
    evaluated.sums(trial.replica.model)
    trial.replica.model.train()
    free_gathered(trial.replica.model)
    return meter.take_s() * evaluation.batches / evaluated.batches


class ShapedReplica(Replica):
    """A replica whose tensors have no data."""

    def batches(self, start: int) -> Iterator[Minibatch]:
        """See `Replica`."""
        sequences = self._workload.split.train
        if not isinstance(sequences, Sequences):
            yield from super().batches(start)
            return
        while True:
            yield ShapedSequences(sequences).take(slice(max(self._context.batch.shares)))


class ShapedSequences(Sequences):
    """As many sequences as others, without their tokens, which are read by numbers that are unknown here."""

    def __init__(self, sequences: Sequences) -> None:
        self.length, self._numbers = sequences.length, range(len(sequences))

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self, index: Tensor | slice) -> Tensor:
        """Return int64 N×(length + 1)."""
        assert isinstance(index, slice)
        return torch.zeros(len(self._numbers[index]), self.length + 1, dtype=torch.int64)


READ_IN_PART = ("embedding", "gather", "index", "index_select")
"""Operations that read as much as they write."""


class Meter(dispatch_mode()):  # type: ignore[misc]
    """Counts the bytes of what operations have made and that is alive, and the time that a GPU takes for them."""

    def __init__(self, gpu: Gpu, *, has_tf32: bool) -> None:
        super().__init__()
        single = gpu.tf32 if has_tf32 and not math.isnan(gpu.tf32) else gpu.fp32
        self._half, self._single = SUSTAINED_FLOPS * gpu.half, SUSTAINED_FLOPS * single
        self._bytes_per_s = SUSTAINED_BYTES * gpu.bytes_per_s
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._peak, self._seconds = 0, 0.0
        self.fake: Any = None
        """The mode in which tensors have no data."""
        self.beside = WORKSPACES
        """Bytes beside those of operations."""
        self.launches = 0
        """Operations that compute, since the time was taken."""

    def take_gb(self) -> float:
        """Return the peak in GiB since the last call."""
        peak, self._peak = self._peak, self._count()
        return (peak + self.beside) / 2**30

    def take_s(self) -> float:
        """Return the seconds since the last call; count launches from 0 again."""
        seconds, self._seconds, self.launches = self._seconds, 0.0, 0
        return seconds

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry an operation out, and count it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes again with this rank's parts
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        forget_conversions(self.fake)
        taken, made = (list(_tensors(tree)) for tree in (args, result))
        known = {tensor.untyped_storage()._cdata for tensor in taken}
        is_new = False
        for tensor in made:
            storage = tensor.untyped_storage()
            key = storage._cdata
            is_new = is_new or key not in known
            if key not in self._alive:
                self._alive[key] = weakref.ref(storage, partial(self._forget, key))
        if is_new:
            self._peak = max(self._peak, self._count())
        if is_new or func._schema.is_mutable:  # others are views
            self.launches += 1
            self._seconds += self._roofline_s(func.overloadpacket, taken, made, args, kwargs, result)
        return result

    def _forget(self, key: int, _: object) -> None:
        self._alive.pop(key, None)

    def _count(self) -> int:
        # Counted anew, because sharding frees and fills storages in place.
        storages = [storage for reference in self._alive.values() if (storage := reference()) is not None]
        return sum(-(-storage.nbytes() // BLOCK) * BLOCK for storage in storages)

    def _roofline_s(
        self, operation: Any, taken: Sequence[Tensor], made: Sequence[Tensor], args: Any, kwargs: Any, result: Any
    ) -> float:
        name = operation.__name__
        if name.startswith(("empty", "new_empty")):
            return 0.0
        written = sum(tensor.nbytes for tensor in made)
        read = written if name in READ_IN_PART else sum(tensor.nbytes for tensor in taken)
        count = flop_registry.get(operation)
        flops = count(*args, **kwargs, out_val=result) if count else 0
        rate = self._half if made and made[0].element_size() == 2 else self._single
        return max(flops / rate, (read + written) / self._bytes_per_s)


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, or in the lists of an operation's arguments or results."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)


IN_FP32 = ("group_norm", "layer_norm", "log_softmax", "rms_norm", "softmax")
"""Functions that autocast computes in float32 on GPUs, and in half formats on CPUs."""


@contextmanager
def autocast_of_gpus() -> Iterator[None]:
    """Follow autocast's rules for GPUs on a CPU in this block, with each norm in one operation."""
    # A mode for functions would end where a backward pass computes blocks again.
    originals = {name: getattr(nn.functional, name) for name in IN_FP32}
    for name, original in originals.items():
        setattr(nn.functional, name, partial(_as_on_gpus, original))
    nn.functional.rms_norm = partial(_rms_norm, nn.functional.layer_norm)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(nn.functional, name, original)


def _as_on_gpus(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    if not torch.is_autocast_enabled("cpu"):
        return function(*args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return function(*map(_wide, args), **{key: _wide(value) for key, value in kwargs.items()})


def _rms_norm(
    layer_norm: Callable[..., Tensor],
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    # Many operations on a CPU; the kernel for GPUs keeps what that of layer norm keeps.
    return layer_norm(input, normalized_shape, weight)


def _wide(value: Any) -> Any:
    is_half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_half else value
