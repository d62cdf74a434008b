"""Reads the end of a trial that another version, or a person, may have written."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from types import GenericAlias
from typing import Any

from orchestrator.journal.record import TrialRecord
from orchestrator.storage.layout import TRIAL_ID
from sweeps.number import is_whole
from sweeps.status import Status

_NEUTRAL: Mapping[Any, Any] = {str: "", float: math.nan}
"""The value of a field that the writer's version did not have; fields of other types are required."""

_NEEDED = ("trial_id", "cell_id", "gpus", "lr_rule")
"""Fields that are required whatever their type, because they determine the record's cell."""


def sound_record(value: Any) -> tuple[TrialRecord | None, str]:
    """The record in these JSON values, or None if it is not one, and what is wrong with it (empty: nothing)."""
    if not isinstance(value, Mapping):
        return None, "not an object; left out"
    given: dict[str, Any] = {}
    absent: list[str] = []
    for name, kind in _fields().items():
        if name not in value and TrialRecord.__dataclass_fields__[name].default is not MISSING:
            continue  # a field of later versions, which few records have
        if name not in value and kind in _NEUTRAL and name not in _NEEDED:
            absent.append(name)
            given[name] = _NEUTRAL[kind]
        elif name not in value and kind is dict:
            absent.append(name)
            given[name] = {}
        elif name not in value:
            return None, f"without {name}; left out"
        else:
            given[name], fits = _as(kind, value[name])
            if not fits:
                return None, f"{name} is {value[name]!r:.60}; left out"
    if not TRIAL_ID.fullmatch(given["trial_id"]):
        return None, "trial_id is not an id; left out"
    if not (given["gpus"] > 0 and given["global_batch_size"] > 0 and given["device_batch_size"] > 0):
        return None, "gpus or a batch is not above 0; left out"
    return TrialRecord(**given), f"without {', '.join(absent)}; used, those are empty" if absent else ""


@cache
def _fields() -> Mapping[str, Any]:
    """The type of each field; `dict` for mappings of any kind."""
    hints = typing.get_type_hints(TrialRecord)
    fields = {name: hints[name] for name in TrialRecord.__dataclass_fields__}
    return {name: dict if _is_mapping(hint) else hint for name, hint in fields.items()}


def _is_mapping(hint: Any) -> bool:
    return isinstance(hint, GenericAlias) or typing.get_origin(hint) is not None


def _is_int(value: Any) -> bool:
    """Whether it is a whole number of at most 64 bits: tables cannot hold larger ones."""
    return is_whole(value) and -(2**63) <= value < 2**63


def _as(kind: Any, value: Any) -> tuple[Any, bool]:
    """The value in the field's type, and whether it fits. A null stands for a number that was not finite."""
    if kind is Status:
        return (Status(value), True) if isinstance(value, str) and value in set(Status) else (value, False)
    if kind is float:
        number = math.nan if value is None else value
        return number, isinstance(number, float) or _is_int(number)  # as it is: tables tell 1 from 1.0
    if kind is int:
        return value, _is_int(value)
    return value, isinstance(value, kind)
