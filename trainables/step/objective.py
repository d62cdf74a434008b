"""The loss that a training minimises, and the correct answers that it counts.

There are classes for whole images (targets N), for each pixel (N×H×W) or for each token (N×T).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.models import why_unfit


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss that a training minimises."""

    num_classes: int = 1  # the classes of the data; a model may have outputs for more
    smoothing: float = 0.0  # see `loss_sum`
    of_tokens: bool = False
    """Whether there is a class for each token of a sequence: then the model's last dimension has the classes, and
    `TokenLoss` computes the loss inside of what is compiled."""

    def require_fit(self, outputs: object, targets: Tensor) -> None:
        """Raise ValueError if these outputs are not logits for these targets."""
        # A GPU would report it much later, and without the shapes.
        if message := why_unfit(outputs, targets.shape, self.num_classes, of_tokens=self.of_tokens):
            raise ValueError(message)


class TokenLoss(nn.Module):
    """A language model with its loss: tokens and targets N×T → the sum of `loss_sum`, as one value in a vector.

    The loss is part of what is compiled, which then keeps no logits in float32.
    """

    def __init__(self, model: nn.Module, *, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.loss: Callable[..., Tensor] = loss_sum

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.model(tokens), targets, smoothing=self.smoothing)[None]


def loss_sum(outputs: Tensor, targets: Tensor, *, scale: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """Return Σ over samples of scale × cross-entropy; a sample's is the mean over its pixels or tokens.

    Outputs are N×classes(×H×W), or N×T×classes for targets N×T. With `smoothing`, that share of a target is spread
    evenly over all classes (Szegedy et al. 2016, section 7).
    """
    # The sum of exponentials loses its small terms in half formats.
    wide = outputs if outputs.dtype == torch.float64 else outputs.float()
    if targets.ndim == 2:
        total = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum", label_smoothing=smoothing)
        return total * (scale / targets.shape[1])
    if scale * len(targets) == 1:  # saves the product and its derivative, which matter in short steps
        return F.cross_entropy(wide, targets, label_smoothing=smoothing)
    total = F.cross_entropy(wide, targets, reduction="sum", label_smoothing=smoothing)
    return total * (scale / math.prod(targets.shape[1:]))


def correct_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return Σ over samples of the correct share, 0 or 1 for whole images; a float64 scalar on the device."""
    classes = -1 if targets.ndim == 2 else 1
    # In float64, since float32 cannot count above 16 million samples.
    return (outputs.argmax(classes) == targets).sum().double() / math.prod(targets.shape[1:])
