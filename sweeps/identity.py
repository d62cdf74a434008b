"""Identity by content: a trial's id covers everything that can change its result, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

LENGTH = 16
"""Hex digits of an identity: 64 bits, a chance of 3e-10 of any collision among 10⁵ trials."""

SHOWN = 8
"""How many of these digits are shown to people: `rerun=[3fa2c1d4]` runs that trial again."""


def digest(value: Any) -> str:
    """A hash of JSON values, independent of the order of keys and of writing 1 or 1.0."""
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def without(config: Mapping[str, Any], dotted_keys: Iterable[str]) -> dict[str, Any]:
    """A copy of a nested config without these keys (such as paths and display names), which may be absent."""
    result = {key: without(value, ()) if isinstance(value, Mapping) else value for key, value in config.items()}
    for dotted in dotted_keys:
        *parents, leaf = dotted.split(".")
        node: Any = result
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(leaf, None)
    return result


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
