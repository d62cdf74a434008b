from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from trainables.optimizers.layerwise import Layerwise, norms, trust_ratios


class LAMB(Layerwise):
    """Layer-wise adaptive moments: You et al. 2019, "Large batch optimization for deep learning", algorithm 2.

    For a layer's weights w with gradient g at the optimizer's step t, with φ the identity:

        m ← β₁ · m + (1 − β₁) · g          m̂ = m / (1 − β₁ᵗ)
        v ← β₂ · v + (1 − β₂) · g²         v̂ = v / (1 − β₂ᵗ)
        u = m̂ / (√v̂ + ε) + weight_decay · w
        w ← w − lr · ‖w‖ / ‖u‖ · u

    The ratio is 1 where a side of it is 0. 1-D parameters have ratio 1 and no weight decay. Takes all keys of Adam's
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
        """One step of the formulas above."""
        changes = self._adam(weights, gradients, group)
        torch._foreach_add_(changes, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            torch._foreach_mul_(changes, trust_ratios(norms(weights), norms(changes)))
        torch._foreach_mul_(changes, group["lr"])
        torch._foreach_sub_(weights, changes)

    def _adam(
        self, weights: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]
    ) -> list[torch.Tensor]:
        """m̂ / (√v̂ + ε) for all weights, with their moments brought up to date."""
        means, squares = ([self._moments(weight)[key] for weight in weights] for key in ("mean", "square"))
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

    def _moments(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[weight]
        if not state:
            state["mean"] = torch.zeros_like(weight)
            state["square"] = torch.zeros_like(weight)
        return state
