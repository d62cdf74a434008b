"""What is minimised and what is counted; of classes for whole images (targets N), or for each pixel (N×H×W)."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def loss_sum(outputs: Tensor, targets: Tensor, *, scale: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """Σ over samples of scale × cross-entropy, a sample's being the mean over its pixels; outputs N×classes(×H×W).

    With `smoothing`, that share of a target is spread evenly over all classes (Szegedy et al. 2016, section 7).
    """
    if scale * len(targets) == 1:  # a short step is long enough without the product and its derivative
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing)
    total = F.cross_entropy(outputs, targets, reduction="sum", label_smoothing=smoothing)
    return total * (scale / _places(targets))


def correct_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Σ over samples of what is right: 0 or 1, or the share of a sample's pixels; a float64 scalar on the device."""
    return (outputs.argmax(1) == targets).sum().double() / _places(targets)


def _places(targets: Tensor) -> int:
    return math.prod(targets.shape[1:])
