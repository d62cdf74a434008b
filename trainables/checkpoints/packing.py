"""A state as bytes and back: nothing but tensors and plain values, so that reading it runs nobody's code."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

PLAIN = (str, bytes, int, float, bool, type(None))
"""Exactly these: numpy's float64 is a float, too, and could not be read back."""


def packed(state: Mapping[str, Any]) -> memoryview:
    """The state as torch.load(…, weights_only=True) reads it. Raises TypeError naming what has no place in it."""
    _require_plain(dict(state), "state")
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getbuffer()


def unpacked(content: bytes, device: str) -> dict[str, Any]:
    """The state, with its tensors on the device."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return state


def _require_plain(value: Any, place: str) -> None:
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _require_plain(key, f"a key of {place}")
            _require_plain(item, f"{place}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _require_plain(item, f"{place}[{index}]")
    elif type(value) not in PLAIN and not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{place} is a {type(value).__name__}; a checkpoint holds tensors, numbers, strings, lists and dicts"
        )
