"""Flattens nested configs to dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key (`budget.epochs`); an empty section counts as a value."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
