"""A whole optimizer step as one CUDA graph: the host launches it once, instead of hundreds of short kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch

from trainables.inputs.inputs import Minibatch
from trainables.step.strategies import Strategy
from trainables.step.training_step import TrainingStep

EAGER_STEPS = 12
"""Eager steps before the capture, which are the first steps of the training. In them libraries choose algorithms,
compilers compile, optimizers create their state and DDP settles its buckets (PyTorch's notes on CUDA semantics: 11)."""


def stream_for(cuda_graph: str, device: str) -> AbstractContextManager[object]:
    """Return the context of a whole trial: a separate stream if its step is captured, as the default one cannot be.

    Raises ValueError for a device without CUDA graphs.
    """
    if cuda_graph == "off":
        return nullcontext()
    if not device.startswith("cuda"):
        raise ValueError(f"trainable.cuda_graph={cuda_graph} is for CUDA devices, not for device={device}")
    stream: AbstractContextManager[object] = torch.cuda.stream(torch.cuda.Stream())
    return stream


class GraphedStep(TrainingStep):
    """A step that is captured after `EAGER_STEPS` and replayed from then on, with the same result.

    Forward and backward passes, exchange and update are in the graph. It reads minibatches, all of one size, from fixed
    places on the device, and the learning rate from the optimizer's tensor.
    """

    def __init__(self, strategy: Strategy, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        """Raise ValueError if the host must know before an update whether gradients have overflowed."""
        super().__init__(strategy, optimizer, **options)
        if self._scaler.is_enabled() and not getattr(optimizer, "_step_supports_amp_scaling", False):
            name = type(optimizer).__name__
            raise ValueError(f"cuda_graph=on with precision=fp16 needs SGD, Adam or AdamW, which are fused, not {name}")
        self._eager_steps = 0
        self._minibatches: list[Minibatch] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def take(self, batches: Iterator[Minibatch]) -> None:
        """See `TrainingStep`."""
        self._place(batches)
        if self._eager_steps < EAGER_STEPS:
            self._eager_steps += 1
            with warnings.catch_warnings():  # optimizers made for capture warn about their first, eager steps
                warnings.filterwarnings("ignore", message=".*capturable=True")
                self.update(iter(self._minibatches))
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def enlarge(self, times: int, grad_accum_steps: int) -> None:
        """See `TrainingStep`; the step is warmed up and captured again."""
        super().enlarge(times, grad_accum_steps)
        self._graph, self._eager_steps, self._minibatches = None, 0, []

    def _place(self, batches: Iterator[Minibatch]) -> None:
        """Copy the next minibatches to their places on the device, from which eager steps read them, too."""
        # Otherwise the capture would meet other strides than the eager steps, and torch.compile cannot compile there:
        # tokens come as slices of longer rows, and their copies are contiguous.
        passes = islice(batches, self.grad_accum_steps)
        if not self._minibatches:
            self._minibatches = [(inputs.clone(), targets.clone()) for inputs, targets in passes]
            return
        for places, values in zip(self._minibatches, passes, strict=True):
            for place, value in zip(places, values, strict=True):
                place.copy_(value)

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # thread_local: NCCL's watchdog, and threads that pin memory, may continue meanwhile.
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.update(iter(self._minibatches))
        return graph
