"""What a model is, once it is prepared for training in one way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from trainables.noise.gradient_noise import GradientNoise
from trainables.step.stopwatch import Stopwatch


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How gradients are exchanged, and what looks on."""

    wire: torch.dtype | None = None
    """What they are sent as; None: as they are."""
    noise: GradientNoise | None = None
    """Watches the gradients of the parts of a step."""
    stopwatch: Stopwatch | None = None
    """Takes the time of it on CPUs, where it is the host that exchanges."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A model prepared for training in one way."""

    forward: nn.Module
    """What is called in training: N×C×H×W → outputs."""
    loss_scale: float
    """What a rank multiplies the sum of its samples' losses with: every sample weighs 1 / global batch in the update,
    whatever the ranks' shares and the accumulation steps are."""
    capturable: bool = True
    """Whether a step can be captured in a CUDA graph."""
    without_exchange: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context of a forward and backward pass whose gradients only add up locally."""
    exchange: Callable[[], None] = lambda: None
    """What is left to do after a step's backward passes, so that gradients are those of all ranks."""
    share_buffers: Callable[[], None] = lambda: None
    """Make buffers (running statistics) equal on all ranks: those of rank 0."""
