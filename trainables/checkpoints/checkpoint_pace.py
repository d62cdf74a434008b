"""How often a training keeps a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

DEAREST = 0.01
"""The share of the time that checkpoints may take."""


@dataclass(kw_only=True)
class CheckpointPace:
    """At epochs' ends, `every_s` apart, and further where writing takes long: a short training is not interrupted."""

    every_s: float
    last_s: float = 0.0
    """Seconds of training up to the last."""
    cost_s: float = 0.0
    """Seconds that the last took."""

    def due(self, train_s: float) -> bool:
        """Whether it is time, after so many seconds of training."""
        return train_s - self.last_s >= max(self.every_s, self.cost_s / DEAREST)

    def kept(self, train_s: float, cost_s: float) -> None:
        """One was kept."""
        self.last_s, self.cost_s = train_s, cost_s
