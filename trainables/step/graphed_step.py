"""A whole optimizer step as one CUDA graph: the host launches it once, instead of hundreds of short kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from trainables.inputs.inputs import Minibatch
from trainables.shared_tensors import SharedTensors
from trainables.step.training_step import TrainingStep

WARMUP_STEPS = 12
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


class GraphedStep:
    """A step that is captured after `WARMUP_STEPS` and replayed from then on, with the same result. See `Step`.

    Forward and backward passes, exchange and update are in the graph. It reads minibatches, all of one size, from fixed
    places on the device, and the learning rate from the optimizer's tensor.
    """

    def __init__(self, step: TrainingStep) -> None:
        """Raise ValueError for a step that cannot be captured."""
        step.require_capturable()
        self._step = step
        self._eager_steps = 0
        self._minibatches: list[Minibatch] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def loss(self) -> Tensor:
        """See `Step`."""
        return self._step.loss

    def __call__(self, batches: Iterator[Minibatch], lr: float) -> None:
        """See `Step`."""
        self._step.set_rate(lr)
        self._place(batches)
        if self._eager_steps < WARMUP_STEPS:
            self._eager_steps += 1
            with warnings.catch_warnings():  # optimizers made for capture warn about their first, eager steps
                warnings.filterwarnings("ignore", message=".*capturable=True")
                self._step.update(iter(self._minibatches))
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def enlarge(self, times: int, grad_accum_steps: int) -> None:
        """See `Step`; the step is warmed up and captured again."""
        self._step.enlarge(times, grad_accum_steps)
        self._graph, self._eager_steps, self._minibatches = None, 0, []

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """See `Step`."""
        return self._step.state()

    def restore(self, state: Mapping[str, Any], tensors: SharedTensors, *, own_settings: bool = False) -> None:
        """See `Step`."""
        self._step.restore(state, tensors, own_settings=own_settings)

    def _place(self, batches: Iterator[Minibatch]) -> None:
        """Copy the next minibatches to their places on the device, from which eager steps read them, too.

        Otherwise the capture would meet other strides than the eager steps, and torch.compile cannot compile there:
        tokens come as slices of longer rows, and their copies are contiguous.
        """
        passes = islice(batches, self._step.grad_accum_steps)
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
            self._step.update(iter(self._minibatches))
        return graph
