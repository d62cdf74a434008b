"""The target of a training: a value of a validation metric, and the time until a training first reaches it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Target:
    """A value that a validation metric shall reach, `report.target` in a sweep's config."""

    metric: str
    value: float
    """In the metric's unit."""
    higher_is_better: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Target | None:
        """Return the target in the config that a trial receives; None if it has none."""
        target = (config.get("report") or {}).get("target")
        return None if target is None else Target(**target)

    def seconds(self, epochs: Iterable[tuple[float, float | None]]) -> float | None:
        """Return the training time up to the first epoch that reaches the target; None if no epoch does.

        Each epoch is given as its training time in seconds and the metric at its end, None if it was not measured.
        """
        spent: list[float] = []
        for epoch_s, metric in epochs:
            spent.append(epoch_s)
            if metric is not None and self._is_reached(metric):
                return math.fsum(spent)
        return None

    def _is_reached(self, metric: float) -> bool:
        return metric >= self.value if self.higher_is_better else metric <= self.value
