"""Values as one line of strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""Refuse values that are not JSON instead of converting them."""


def encode(value: Any) -> bytes:
    """JSON values as ASCII without a line end, keys in their order; NaN and infinities become null.

    Raises TypeError for other values. A finished trial's record takes 2 µs; `json` takes 43, half a write and fsync.
    """
    try:
        line = orjson.dumps(value, option=_PLAIN)
    except TypeError:  # numbers of more than 64 bits, keys that are numbers, half a surrogate pair
        return _encode(value)
    # Some readers treat other characters than \n as line ends, as str.splitlines does.
    return line if line.isascii() else _encode(value)


def _encode(value: Any) -> bytes:
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False).encode()


def finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
