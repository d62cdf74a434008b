"""What counts as a number in a config: to Python true and false are some, too."""

from __future__ import annotations

from typing import TypeGuard


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, whole or not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number: 1.0 is none."""
    return is_number(value) and isinstance(value, int)
