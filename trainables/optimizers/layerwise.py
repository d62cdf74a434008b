"""What LARS and LAMB share: every layer moves by a rate of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


class Layerwise(torch.optim.Optimizer):
    """An optimizer with two parameter groups: those with a trust ratio, and the 1-D ones without it or weight decay.

    Biases and the scales of norms are left out as in the papers' own experiments: their norms say nothing about how far
    they may move. `lr` may be a tensor on the parameters' device: then a step can be captured in a CUDA graph. Raises
    ValueError for values outside their range.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], **defaults: Any) -> None:
        _check_ranges(defaults)
        every = list(parameters)
        layers = {"params": [parameter for parameter in every if parameter.ndim > 1], "adapts": True}
        others = {"params": [parameter for parameter in every if parameter.ndim <= 1], "adapts": False}
        super().__init__([layers, others | {"weight_decay": 0.0}], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; the closure's value, if there is one."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            pairs = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if pairs:
                self.update([parameter for parameter, _ in pairs], [gradient for _, gradient in pairs], group)
        return loss

    @abstractmethod
    def update(self, weights: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Move the weights of one group."""


def _check_ranges(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name == "betas" and not all(0 <= beta < 1 for beta in value):
            raise ValueError(f"optimizer.betas={list(value)} are not numbers from 0 to below 1")
        if name not in ("lr", "betas") and not value >= 0:
            raise ValueError(f"optimizer.{name}={value} is not at least 0")


def norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of each tensor, one value a layer."""
    return torch.stack(list(torch._foreach_norm(tensors)))


def trust_ratios(numerators: torch.Tensor, denominators: torch.Tensor) -> list[torch.Tensor]:
    """Numerator / denominator, one a layer; 1 where either is 0, so that a layer of zeros can begin to move."""
    usable = (numerators > 0) & (denominators > 0)
    ratios = torch.where(usable, numerators / torch.where(usable, denominators, 1.0), 1.0)
    return list(ratios.unbind())
