"""The cells that no other beats in time, accuracy and cost at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.decision.recommendation import TradeOff


def pareto_front(points: Sequence[TradeOff]) -> tuple[TradeOff, ...]:
    """Cells that no other one matches in every figure that both have while beating it in one; sorted by time."""
    kept = [point for point in points if not any(_beats(other, point) for other in points)]
    return tuple(sorted(kept, key=lambda point: (math.isnan(point.time_s), point.time_s)))


def _beats(one: TradeOff, other: TradeOff) -> bool:
    gains = [other.time_s - one.time_s, one.val_accuracy - other.val_accuracy, other.cost - one.cost]
    known = [gain for gain in gains if not math.isnan(gain)]
    return bool(known) and min(known) >= 0 and max(known) > 0
