"""LARS and LAMB: optimizers with a trust ratio for each layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


class Layerwise(torch.optim.Optimizer):
    """An optimizer with two parameter groups: those with a trust ratio, and the 1-D ones without it or weight decay.

    Biases and the scales of norms have no ratio, as in the papers' experiments. `lr` may be a tensor on the parameters'
    device, so that a step can be captured in a CUDA graph. Raises ValueError for values outside their range.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], **defaults: Any) -> None:
        for name, value in defaults.items():
            if name == "betas" and not all(0 <= beta < 1 for beta in value):
                raise ValueError(f"optimizer.betas={list(value)} are not numbers from 0 to below 1")
            if name not in ("lr", "betas") and not value >= 0:
                raise ValueError(f"optimizer.{name}={value} is not at least 0")
        every = list(parameters)
        layers = {"params": [parameter for parameter in every if parameter.ndim > 1], "adapts": True}
        others = {"params": [parameter for parameter in every if parameter.ndim <= 1], "adapts": False}
        super().__init__([layers, others | {"weight_decay": 0.0}], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's value, if any."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            pairs = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if pairs:
                self.update([parameter for parameter, _ in pairs], [gradient for _, gradient in pairs], group)
        return loss

    @abstractmethod
    def update(self, weights: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Update the weights of one group."""


def norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the Euclidean norm of each tensor, one value per layer."""
    return torch.stack(list(torch._foreach_norm(tensors)))


def trust_ratios(numerators: torch.Tensor, denominators: torch.Tensor) -> list[torch.Tensor]:
    """Return numerator / denominator for each layer; 1 if either is 0, so that a layer of zeros can change."""
    usable = (numerators > 0) & (denominators > 0)
    ratios = torch.where(usable, numerators / torch.where(usable, denominators, 1.0), 1.0)
    return list(ratios.unbind())


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling: You et al. 2017, "Large batch training of convolutional networks", algorithm 1.

    For a layer's weights w with gradient g:

        λ = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖)
        v ← momentum · v + lr · λ · (g + weight_decay · w)
        w ← w − v

    With `nesterov`, w ← w − momentum · v − lr · λ · (g + weight_decay · w), with the new v. λ = 1 if a side of the
    fraction is 0. 1-D parameters have λ = 1 and no weight decay. Takes all keys of SGD's config.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        *,
        lr: float | torch.Tensor,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
        )

    def update(self, weights: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Take one step of the formulas above."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["velocity"] = torch.zeros_like(weight)
        velocities = [self.state[weight]["velocity"] for weight in weights]
        changes = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            sizes = norms(weights)
            slopes = norms(gradients) + group["weight_decay"] * sizes
            torch._foreach_mul_(changes, trust_ratios(group["trust_coefficient"] * sizes, slopes))
        torch._foreach_mul_(changes, group["lr"])
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, changes)
        if group["nesterov"]:
            torch._foreach_add_(changes, velocities, alpha=group["momentum"])
        torch._foreach_sub_(weights, changes if group["nesterov"] else velocities)


class LAMB(Layerwise):
    """Layer-wise adaptive moments: You et al. 2019, "Large batch optimization for deep learning", algorithm 2.

    For a layer's weights w with gradient g at the optimizer's step t, with φ the identity:

        m ← β₁ · m + (1 − β₁) · g          m̂ = m / (1 − β₁ᵗ)
        v ← β₂ · v + (1 − β₂) · g²         v̂ = v / (1 − β₂ᵗ)
        u = m̂ / (√v̂ + ε) + weight_decay · w
        w ← w − lr · ‖w‖ / ‖u‖ · u

    The ratio is 1 if a side of it is 0. 1-D parameters have ratio 1 and no weight decay. Takes all keys of Adam's
    config.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        *,
        lr: float | torch.Tensor,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def update(self, weights: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Take one step of the formulas above."""
        changes = self._adam(weights, gradients, group)
        torch._foreach_add_(changes, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            torch._foreach_mul_(changes, trust_ratios(norms(weights), norms(changes)))
        torch._foreach_mul_(changes, group["lr"])
        torch._foreach_sub_(weights, changes)

    def _adam(
        self, weights: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]
    ) -> list[torch.Tensor]:
        """Update the moments and return m̂ / (√v̂ + ε) for all weights."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] |= {key: torch.zeros_like(weight) for key in ("mean", "square")}
        means, squares = ([self.state[weight][key] for weight in weights] for key in ("mean", "square"))
        beta1, beta2 = group["betas"]
        if "step" not in group:  # on the device, so that its powers can be captured; 1 − β₂ᵗ is small at first
            group["step"] = torch.zeros((), dtype=torch.float64, device=weights[0].device)
        step = group["step"].add_(1)
        of_means, of_squares = ((1 - beta**step).to(weights[0].dtype) for beta in (beta1, beta2))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        deviations = torch._foreach_sqrt(squares)
        torch._foreach_div_(deviations, of_squares.sqrt())
        torch._foreach_add_(deviations, group["eps"])
        changes = torch._foreach_div(means, of_means)
        torch._foreach_div_(changes, deviations)
        return list(changes)
