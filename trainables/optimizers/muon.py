"""Muon for the matrices of a model's blocks, and AdamW for everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from trainables.context import RequestError
from trainables.models.blocks import repeated_blocks


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for 2-D parameters of the repeated blocks, fused AdamW for the others.

    Jordan et al. 2024, "Muon"; updates are scaled so that their size matches AdamW's (Liu et al. 2025, "Muon is
    scalable for LLM training", section 2.2), so that both share the rate and the weight decay.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float | torch.Tensor,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        """`betas` and `eps` are AdamW's. Raises RequestError for a model without blocks, and where Muon cannot work."""
        if isinstance(lr, torch.Tensor):
            raise RequestError("optimizer=muon cannot be captured in a CUDA graph: set trainable.cuda_graph=off")
        if not hasattr(torch.optim, "Muon"):
            raise RequestError("optimizer=muon needs torch.optim.Muon, which torch has from 2.9 on")
        blocks = repeated_blocks(module, wanted_for="optimizer=muon")
        matrices = [each for each in blocks.parameters() if each.ndim == 2 and each.requires_grad]
        theirs = {id(each) for each in matrices}
        others = [each for each in module.parameters() if id(each) not in theirs and each.requires_grad]
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov,
                ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                others, lr=lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, fused=True
            ),
        )
        super().__init__([{"params": matrices}, {"params": others}], {"lr": lr})
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's value, if any."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self._parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both optimizers."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of both optimizers."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self._parts for group in part.param_groups]
