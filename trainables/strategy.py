"""What a model is, once it is prepared for training in one way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import nn


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
    share_buffers: Callable[[], None] = lambda: None
    """Make buffers (running statistics) equal on all ranks: those of rank 0."""
