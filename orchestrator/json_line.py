"""Values as one line of strict JSON."""

from __future__ import annotations

import json
import json.encoder
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


def _chunks() -> Callable[[Any, int], Iterable[str]]:
    """What `_ENCODER.encode` makes anew for every call, which costs as much as a fifth of a journal's record."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another Python than CPython
        return lambda value, _: (_ENCODER.encode(value),)
    quoted = json.encoder.encode_basestring_ascii
    made: Callable[[Any, int], Iterable[str]] = make(
        None, _ENCODER.default, quoted, None, ":", ",", False, False, False
    )
    return made


_encode = _chunks()


def encode(value: Any) -> bytes:
    """JSON values without a line end, keys in their order; NaN and infinities become null. TypeError for the rest."""
    try:
        return "".join(_encode(value, 0)).encode()
    except ValueError:
        return "".join(_encode(_finite(value), 0)).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
