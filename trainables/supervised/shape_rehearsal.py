"""The rehearsal of a trial from the shapes of its tensors alone, for a GPU that this machine lacks.

The trial is prepared as always, and takes its steps on tensors without data. `Meter` counts the memory that they would
take, and their time by a roofline: an operation takes as long as its FLOPs or its bytes, whichever is longer (Williams
et al. 2009), at the shares of the GPU's rates that its kind reaches. What compilers save is not seen, nor the memory in
which convolutions compute.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from sweeps.gpus import SHAPES_OF, GpuModel, gpu_named
from trainables import process_group
from trainables.context import Context, RequestError
from trainables.inputs.feed import Part
from trainables.inputs.inputs import Minibatch
from trainables.inputs.sequences import Sequences
from trainables.step.sharding import free_gathered
from trainables.supervised.evaluation import Evaluation
from trainables.supervised.rehearsal import MemoryPeaks, length_and_traffic, parts_of_memory, parts_of_trial
from trainables.supervised.replica import Replica
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.training import SupervisedTrial, prepared
from trainables.torch_private import dispatch_mode, fake_tensors, forget_conversions

ON_CPU: Mapping[str, Any] = {"compile": "off", "cuda_graph": "off", "fp8": "off", "branch_base": ""}
"""Settings without those that need a GPU, a compiler or a checkpoint."""
AS_LARGE = {"fp16": "bf16", "tf32": "fp32"}
"""Precisions that a CPU lacks, and others with the same sizes."""
LAUNCH_S = 45e-6
"""The host's seconds for an operation: 40 to 53 µs in launch-bound steps of four models on one H100's host."""
SHARDED_LAUNCH = 3.2
"""An operation of a sharded model takes this many times LAUNCH_S, because hooks run between operations (gpt2-medium on
two H100)."""
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
        meter.beside += _bytes_of_data(trial, config)
        has_buckets = context.layout.strategy.startswith("ddp") and context.world_size > 1
        if has_buckets and asked.compile in ("off", "blocks"):
            _exchange_in_buckets(trial.replica.model)
        peaks.end("setup")
        figures: dict[str, Any] = {"setup_s": START_S, "first_step_s": START_S}

        def steps() -> dict[str, Any]:
            # The first step makes the states of the optimizer, and divided tensors plan each operation once, with
            # tensors of the whole size. Only the second one is like all later ones.
            trial.loop.step()
            meter.take_gb()
            stack.enter_context(peaks.watched())
            seconds, launches = meter.seconds, meter.launches
            trial.loop.step()
            device_s = meter.seconds - seconds
            launch_s = LAUNCH_S * (SHARDED_LAUNCH if context.layout.is_sharded else 1)
            launched_s = 0.0 if asked.cuda_graph == "on" else launch_s * (meter.launches - launches)
            return {"step_s": max(device_s, launched_s), "device_step_s": device_s}

        figures |= parts_of_trial(
            trial,
            peaks,
            steps=steps,
            score=partial(_score, trial.replica.model),
            read_s=lambda: meter.seconds,
            form=lambda part: ShapedSequences(part) if isinstance(part, Sequences) else part,
        )
        figures |= length_and_traffic(trial, context, asked)
        figures |= parts_of_memory(trial, peaks, device_gb=gpu.memory_gb, device_name=config[SHAPES_OF])
    context.summarize(figures)


def _bytes_of_data(trial: SupervisedTrial, config: Mapping[str, Any]) -> int:
    """Return the bytes of the data on the GPU, which no operation of a step makes."""
    if config["data"]["name"] != "synthetic":  # only such data are made on the GPU, and stay there
        return 0
    split = trial.workload.split
    return sum(part.images.nbytes for part in (split.train, split.validation, split.test) if isinstance(part, Part))


def _exchange_in_buckets(model: nn.Module) -> None:
    """Let gradients take no memory beside the buckets of DistributedDataParallel, which keeps them there."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def leave_bucket(parameter: Tensor) -> None:
        parameter.grad = parameter.detach()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(leave_bucket)


def _score(model: nn.Module, evaluation: Evaluation) -> None:
    # `Replica.score` would read the result.
    model.eval()
    evaluation.sums(model)
    model.train()
    free_gathered(model)


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


class Share(NamedTuple):
    """The shares of a data sheet's rates that a kind of operation reaches."""

    flops: float
    bytes: float  # an operation that reads its inputs twice reaches half


SHARES: Mapping[str, Share] = {
    "attention.*backward": Share(0.45, 0.85),
    "attention": Share(0.63, 0.85),
    "batch_norm.*backward": Share(1.0, 0.35),
    "batch_norm": Share(1.0, 0.47),
    "convolution_backward": Share(0.51, 0.25),
    "convolution": Share(0.53, 0.4),
    "layer_norm.*backward": Share(1.0, 0.37),
    "layer_norm": Share(1.0, 0.7),
    "softmax": Share(1.0, 0.9),
    "embedding": Share(1.0, 0.5),
    "^_fused_|^_foreach_": Share(1.0, 0.46),  # optimizers
    "^(add|b|baddb)?mm$": Share(0.77, 0.85),
    "": Share(0.7, 0.7),  # mostly element by element
}
"""Shares by a pattern of the operation's name, the first that matches, as profiles of steps on an H100 show them:
docs/results/forecast/operations.json."""
CHANNELS_LAST: Mapping[str, Share] = {
    "batch_norm": Share(1.0, 0.21),
    "convolution_backward": Share(0.51, 0.8),
    "convolution": Share(0.53, 0.8),
}
"""Shares that differ where an image's channels are its last dimension: convolutions need not convert it."""


def share_of(name: str, taken: Sequence[Tensor]) -> Share:
    """Return the shares that an operation with this name and these tensors reaches."""
    kind = next(kind for kind in SHARES if re.search(kind, name))
    if any(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in taken[:1] if tensor.ndim == 4):
        return CHANNELS_LAST.get(kind, SHARES[kind])
    return SHARES[kind]


READ_IN_PART = ("embedding", "gather", "index", "index_select")
"""Operations that read as much as they write."""


class Meter(dispatch_mode()):  # type: ignore[misc]
    """Counts the bytes of what operations have made and that is alive, and the time that a GPU takes for them."""

    def __init__(self, gpu: GpuModel, *, has_tf32: bool) -> None:
        from torch.distributed.tensor import DTensor  # its import takes a second

        super().__init__()
        self._divided = DTensor
        single = gpu.tf32 if has_tf32 and not math.isnan(gpu.tf32) else gpu.fp32
        self._half, self._single, self._bytes_per_s = gpu.half, single, gpu.bytes_per_s
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._peak = 0
        self.fake: Any = None
        """The mode in which tensors have no data."""
        self.beside = WORKSPACES
        """Bytes beside those of operations."""
        self.seconds, self.launches = 0.0, 0
        """The time of all operations so far on the device, and the number of those that compute."""

    def take_gb(self) -> float:
        """Return the peak in GiB since the last call."""
        peak, self._peak = self._peak, self._count()
        return (peak + self.beside) / 2**30

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry an operation out, and count it."""
        if any(issubclass(kind, self._divided) for kind in types):
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
            self.seconds += self._roofline_s(func.overloadpacket, taken, made, args, kwargs, result)
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
        share = share_of(name, taken)
        return max(flops / (share.flops * rate), (read + written) / (share.bytes * self._bytes_per_s))


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
