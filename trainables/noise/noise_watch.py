"""What a trial makes of its gradients' noise: a figure to report, and AdaScale's pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainables.context import Context
from trainables.noise.adascale import Pace, pace
from trainables.noise.gradient_noise import GradientNoise, parts
from trainables.process_group import Gang

UNSEEN = (
    "the noise of gradients is not seen in a CUDA graph, nor through fp16's loss scaling: noise_scale and"
    " lr_rule=adascale need trainable.cuda_graph=off and another trainable.precision"
)
ALONE = "lr_rule=adascale sees noise between ranks or accumulation steps, and there is one of each: its gain stays 1"


class NoiseWatch:
    """Watches where it is `wanted` or the trial's rule is AdaScale, and where a step has several parts."""

    def __init__(self, model: nn.Module, context: Context, gang: Gang, *, wanted: bool, visible: bool) -> None:
        """Raises ValueError where gradients would have to be watched that are not `visible`."""
        size = context.batch.global_batch_size
        self._reference = context.lr.reference_batch_size or size
        self._kappa = size / self._reference
        self._adapts = context.lr.rule == "adascale"
        self.gradients: GradientNoise | None = None
        if not wanted and not self._adapts:
            return
        if not visible:
            raise ValueError(UNSEEN)
        if len(parts(context.batch)) > 1:
            self.gradients = GradientNoise(model, context.batch, gang)
        elif self._adapts and self._kappa > 1:
            context.remark(ALONE)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the gradients that this optimizer is given."""
        if self.gradients is not None:
            self.gradients.watch(optimizer)

    def state(self) -> dict[str, Any]:
        """What is known so far, between two steps: the same on all ranks."""
        return self.gradients.state() if self.gradients else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Bring that back, before the first step."""
        if self.gradients and state:
            self.gradients.restore(state)

    def pace(self) -> Pace:
        """That of the next step, by what is known without waiting for the device."""
        if not self._adapts:
            return Pace()
        estimate = self.gradients.ready().estimate if self.gradients else None
        return pace(estimate, kappa=self._kappa, reference_batch_size=self._reference)

    def figures(self) -> dict[str, Any]:
        """`noise_scale`, in samples, and AdaScale's `gain`, as far as they are known."""
        scale = self.gradients.smoothed().noise_scale if self.gradients else None
        known = {} if scale is None else {"noise_scale": scale}
        return known | ({"gain": self.pace().gain} if self._adapts else {})
