"""How far a training has come: plain figures, the same on all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(kw_only=True)
class Progress:
    """Counted up by the loop; what a continued training begins with."""

    epoch: int = 1
    """The number of the epoch that is under way, or comes next."""
    epoch_steps: int = 0
    """Optimizer steps of it so far …"""
    epoch_samples: int = 0
    """… their samples, of all ranks …"""
    epoch_s: float = 0.0
    """… and their seconds, the slowest rank's."""
    steps: int = 0
    samples: int = 0
    position: float = 0.0
    """How far budget and schedule are, in steps of the trial's own batch: not every step need count for one."""
    train_s: float = 0.0
    """Seconds of training, without whatever came between epochs."""
    lr: float = math.nan
    """Of the last step."""
    times: int = 1
    """How many times the trial's own batch a step now takes."""

    def count_step(self, samples: int, advance: float, lr: float) -> None:
        """A step more, which counts for `advance` steps of the trial's own batch."""
        self.steps += 1
        self.epoch_steps += 1
        self.samples += samples
        self.epoch_samples += samples
        self.position += advance
        self.lr = lr

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch += 1
        self.epoch_steps = self.epoch_samples = 0
        self.epoch_s = 0.0
