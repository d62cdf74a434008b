from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from trainables.optimizers.layerwise import Layerwise, norms, trust_ratios


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling: You et al. 2017, "Large batch training of convolutional networks", algorithm 1.

    For a layer's weights w with gradient g:

        λ = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖)
        v ← momentum · v + lr · λ · (g + weight_decay · w)
        w ← w − v

    With `nesterov`, w ← w − momentum · v − lr · λ · (g + weight_decay · w), with the new v. λ = 1 where a side of the
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
        """One step of the formulas above."""
        velocities = [self._velocity(weight) for weight in weights]
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

    def _velocity(self, weight: torch.Tensor) -> torch.Tensor:
        state: dict[str, torch.Tensor] = self.state[weight]
        if not state:
            state["velocity"] = torch.zeros_like(weight)
        return state["velocity"]
