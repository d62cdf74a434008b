"""Batches that grow where a schedule would otherwise divide the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainables.context import Batch

NAME = "increase_batch"
THROUGH = ("batch", "accumulation")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Smith et al. 2018, "Don't decay the learning rate, increase the batch size", section 4 and 5.

    Where a step schedule would multiply the rate by gamma, the batch is multiplied by 1/gamma, for the noise of SGD
    goes with rate / batch. Assumes a batch far below the size of the training set: at `most` samples the batch stays,
    and from there on the rate falls after all, as in the paper's section 5.
    """

    milestones: tuple[float, ...] = ()
    """Shares of the training, each between 0 and 1."""
    factor: int = 1
    """1/gamma."""
    most: int | None = None
    """Samples in the largest global batch; None: as many as it comes to."""
    through: str = "batch"
    """`batch`: each pass takes more samples; `accumulation`: a step takes more passes."""

    @staticmethod
    def of(schedule: Mapping[str, Any]) -> Growth:
        """Of the config's `schedule` section; none where its name is another. Raises ValueError."""
        if schedule["name"] != NAME:
            return Growth()
        factor = 1 / schedule.get("gamma", 0.1)
        if factor < 2 or abs(factor - round(factor)) > 1e-9 * factor:
            raise ValueError(
                f"schedule.gamma={schedule['gamma']} multiplies no batch by a whole number, as 0.1 or 0.5 do"
            )
        if schedule.get("through", "batch") not in THROUGH:
            raise ValueError(f"schedule.through={schedule['through']!r} is not one of {', '.join(THROUGH)}")
        return Growth(
            milestones=tuple(sorted(schedule["milestones"])),
            factor=round(factor),
            most=schedule.get("most"),
            through=schedule.get("through", "batch"),
        )

    def why_not(self, budget: Mapping[str, Any]) -> str:
        """Why no batch can grow under the config's `budget` section; empty where it can, or none is to."""
        if not self.milestones or budget.get("steps") is None:
            return ""
        return "schedule=increase_batch needs budget.epochs or budget.samples, not budget.steps"

    def times(self, progress: float, global_batch_size: int) -> int:
        """How many times the trial's own batch a step takes at this share of the training."""
        return int(self.factor ** self._powers(progress, global_batch_size))

    def rate(self, progress: float, global_batch_size: int) -> float:
        """The factor on the learning rate: of the milestones reached, those that no batch grew at."""
        left = self._reached(progress) - self._powers(progress, global_batch_size)
        return float(self.factor) ** -left

    def largest(self, global_batch_size: int) -> int:
        """The largest global batch that it will come to."""
        return global_batch_size * self.times(1.0, global_batch_size)

    def enlarged(self, batch: Batch, times: int) -> Batch:
        """The trial's own batch, so many times as large."""
        if self.through == "accumulation":
            grown = replace(batch, grad_accum_steps=batch.grad_accum_steps * times)
        else:
            grown = replace(batch, shares=tuple(share * times for share in batch.shares))
        return replace(grown, global_batch_size=batch.global_batch_size * times)

    def _reached(self, progress: float) -> int:
        return sum(progress >= milestone for milestone in self.milestones)

    def _powers(self, progress: float, global_batch_size: int) -> int:
        powers = self._reached(progress)
        while powers and self.most is not None and global_batch_size * self.factor**powers > self.most:
            powers -= 1
        return powers
