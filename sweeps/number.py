"""What counts as a number in a config or a record; unlike in Python, booleans do not."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, whole or not; it may be NaN or infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; 1.0 is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_endless(value: object) -> bool:
    """Whether it is a number but not finite; NaN is not finite, either."""
    return isinstance(value, float) and not math.isfinite(value)
