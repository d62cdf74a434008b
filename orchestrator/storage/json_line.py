"""Values as one line of strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""Refuse what is no JSON, instead of choosing a form for it."""


def encode(value: Any) -> bytes:
    """JSON values without a line end, in ASCII, keys in their order; NaN and infinities become null.

    TypeError for the rest. The record of a finished trial takes 2 µs, where `json` takes 43: half a write and fsync.
    """
    try:
        line = orjson.dumps(value, option=_PLAIN)
    except TypeError:  # numbers of more than 64 bits, keys that are numbers, half a surrogate pair
        return _encode(value)
    # Readers may take more for a line end than \n, as str.splitlines does.
    return line if line.isascii() else _encode(value)


def _encode(value: Any) -> bytes:
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False).encode()


def finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
