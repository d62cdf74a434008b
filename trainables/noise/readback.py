"""Figures on their way from the device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Readback:
    """Reads a tensor as it is now, without waiting for what the device is given between now and the reading."""

    def __init__(self, values: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """The figures; waits until they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[float] = self._values.tolist()
        return found
