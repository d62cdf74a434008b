"""Figures as they leave a rank: JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as JSON values: scalars of numpy and torch become Python's; what is not finite or None is left out.

    Raises TypeError naming the key of a value that JSON does not have.
    """
    figures = {key: _plain_value(key, value) for key, value in values.items()}
    return {key: value for key, value in figures.items() if value is not None}


def _plain_value(key: str, value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return [_plain_value(key, each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain_value(key, each) for name, each in value.items()}
    raise TypeError(f"{key!r} is a {type(value).__name__}; a trainable reports numbers, strings, lists and mappings")
