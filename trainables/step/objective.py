"""What is minimised and what is counted; of classes for whole images (targets N), or for each pixel (N×H×W)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a training minimises."""

    num_classes: int = 1
    """Of the data; a model may have outputs for more."""
    smoothing: float = 0.0
    """See `loss_sum`."""

    def require_fit(self, outputs: object, targets: Tensor) -> None:
        """Raise ValueError where these outputs are no logits for these targets; a GPU would only say so much later."""
        if not isinstance(outputs, Tensor):
            raise ValueError(f"the model returns a {type(outputs).__name__}, not a tensor of logits")
        found, wanted = tuple(outputs.shape), (len(targets), self.num_classes, *targets.shape[1:])
        alike = len(found) == len(wanted) and (found[0], *found[2:]) == (wanted[0], *wanted[2:])
        if not alike or found[1] < self.num_classes:
            labels = "a label for each pixel" if targets.ndim > 1 else "a label for each image"
            raise ValueError(
                f"the model's outputs are {_told(found)}, and {self.num_classes} classes with {labels} need"
                f" {_told(wanted)}"
            )


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


def _told(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _places(targets: Tensor) -> int:
    return math.prod(targets.shape[1:])
