"""How long a trial trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("epochs", "samples", "steps", "seconds")
ROUNDING = 1e-6
"""Of a step: what the sum of many parts of steps may be off by."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A number of steps, or of seconds of training; exactly one of them."""

    steps: int | None = None
    seconds: float | None = None
    steps_per_epoch: int | None = None
    """Where it was given in epochs."""

    @staticmethod
    def of(config: Mapping[str, Any], *, steps_per_epoch: int, global_batch_size: int) -> Budget:
        """From the one of epochs, samples, steps and seconds that is set; at least one step. Raises ValueError."""
        given = {kind: config[kind] for kind in KINDS if config.get(kind) is not None}
        if len(given) != 1:
            raise ValueError(f"budget: exactly one of {', '.join(KINDS)} must be set, not {given or 'none'}")
        [(kind, amount)] = given.items()
        if not amount > 0:
            raise ValueError(f"budget.{kind}={amount} is not above 0")
        if kind == "seconds":
            return Budget(seconds=float(amount))
        steps = {"epochs": amount * steps_per_epoch, "samples": amount / global_batch_size, "steps": amount}[kind]
        return Budget(steps=max(1, round(steps)), steps_per_epoch=steps_per_epoch if kind == "epochs" else None)

    def room(self, steps: float, train_s: float, *, worth: int = 1) -> int:
        """How many steps may be taken, after `steps` in `train_s`, before it must be asked again; 0 at the end.

        Each may count for less than `worth` steps, never for more. Of the time left it grants half at the speed so far,
        so that the end is met to within a step; of larger steps the last is taken if at least half of it is left.
        """
        if self.steps is not None:
            left = (self.steps - steps) / worth
            return math.floor(left + 0.5) if worth > 1 else math.ceil(left - ROUNDING)
        if self._left_s(train_s) <= 0:
            return 0
        return max(1, math.floor(self._left_s(train_s) * steps / train_s / worth / 2)) if steps else 1

    def length(self, steps: float, train_s: float) -> float:
        """The whole length in steps: exact, or as the speed so far foretells it; infinite before the first step."""
        if self.seconds is None:
            return float(self.steps or 0)
        return steps * self.seconds / train_s if steps else math.inf

    def _left_s(self, train_s: float) -> float:
        return (self.seconds or 0.0) - train_s
