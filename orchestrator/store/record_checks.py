"""The check of a journal's records whose checksum is right: they may be from another version or program."""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import EnumType
from functools import cache
from types import GenericAlias
from typing import Any

from orchestrator.store.record import FROM_OTHER_RECORDS, Kind, Record, TrialRecord
from orchestrator.store.results_folder import TRIAL_ID
from sweeps.axes import is_whole
from sweeps.status import Status

_FIELDS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    Kind.SWEEP: ({"fingerprint": dict}, {"rerun": (str, list), "driver": dict, "hardware": dict}),
    Kind.QUEUED: ({"shares_s": dict}, {"left_out": list}),
    Kind.STARTED: ({"trial_id": str, "attempt": int}, {"measures": str}),
    Kind.RETRIED: ({"trial_id": str, "attempt": int, "wall_s": float}, {"gpus_held": float}),
    Kind.CUT_OFF: ({"trial_id": str, "attempt": int, "wall_s": float}, {"gpus_held": float}),
    Kind.TIMED: ({"trial_id": str, "timed_with": str}, {}),
    Kind.PROBED: (
        {"trial_id": str, "speed": str, "size": str, "status": Status, "wall_s": float},
        {name: float for name in ("gpus", "gpus_held", "samples_per_s", "epoch_s")}
        | {name: float for name in ("reserved_memory_gb", "device_memory_gb")},
    ),
    Kind.ENDED: ({"missing": int}, {}),
}
"""The types of the fields that a record must have, and of those that it may have, where something depends on them."""

_DEEPEST = 100  # the most levels of a value


def why_unusable(record: Record) -> str:
    """Return why a record is left out although its checksum is right; empty if it is sound.

    It may be from a later version or another program. Fields of other names are ignored.
    """
    kind, value = record.kind, record.value
    if not isinstance(kind, str) or kind not in set(Kind):
        return f"the kind {kind!r:.60} is unknown"
    if not isinstance(value, Mapping):
        return f"{kind}: not an object"
    # Readers are recursive, so that a deeper value would end the program.
    if _is_deeper(value, _DEEPEST):
        return f"{kind}: more than {_DEEPEST} values within one another"
    reason = checked_record(value)[1] if kind == Kind.FINISHED else _why_unfit(value, *_FIELDS[kind])
    return f"{kind}: {reason}" if reason else ""


def _why_unfit(value: Mapping[str, Any], required: Mapping[str, Any], optional: Mapping[str, Any]) -> str:
    """Return what is wrong with the fields, whose types are given; empty if nothing is."""
    for name, expected in {**required, **optional}.items():
        if name in value and not _as(expected, value[name])[1]:
            return f"{name} is {value[name]!r:.60}"
        if name in required and name not in value:
            return f"without {name}"
    if "trial_id" in required and not TRIAL_ID.fullmatch(value["trial_id"]):
        return "trial_id is not an id"
    return ""


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more levels of objects and lists than these."""
    if levels == 0:
        return True
    items = value.values() if isinstance(value, Mapping) else value
    return any(_is_deeper(item, levels - 1) for item in items if isinstance(item, (Mapping, list)))


_REQUIRED = frozenset(
    known.name for known in fields(TrialRecord) if known.default is MISSING and known.default_factory is MISSING
)
"""The fields of a `TrialRecord` that every version has written."""
_WHOLE_NUMBERS = range(-(2**63), 2**63)  # tables cannot hold larger ones


def checked_record(value: Any) -> tuple[TrialRecord | None, str]:
    """Return the record in these JSON values, or None and what is wrong with them. Unknown fields are ignored."""
    if not isinstance(value, Mapping):
        return None, "not an object"
    known: dict[str, Any] = {}
    for name, kind in _fields().items():
        if name in value:
            known[name], fits = _as(kind, _shared(value[name]))
            if not fits:
                return None, f"{name} is {value[name]!r:.60}"
        elif name in _REQUIRED:
            return None, f"without {name}"
    # The id becomes the name of a folder, and the journal may be a stranger's.
    if not TRIAL_ID.fullmatch(known["trial_id"]):
        return None, "trial_id is not an id"
    # Tables divide by these.
    if not (known["gpus"] > 0 and known["global_batch_size"] > 0 and known["device_batch_size"] > 0):
        return None, "gpus or a batch is not above 0"
    return TrialRecord(**known), ""


def _shared(value: Any) -> Any:
    """Return JSON values with one copy of each text, however many records have it: that halves a record's memory."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, Mapping):
        return {sys.intern(name): _shared(item) for name, item in value.items()}
    return list(map(_shared, value)) if isinstance(value, list) else value


@cache
def _fields() -> Mapping[str, Any]:
    """Return the type of each field in the journal; `dict` for mappings of any kind."""
    hints = typing.get_type_hints(TrialRecord)
    written = {known.name: hints[known.name] for known in fields(TrialRecord) if known.name not in FROM_OTHER_RECORDS}
    mappings = {name for name, hint in written.items() if isinstance(hint, GenericAlias) or typing.get_origin(hint)}
    return {name: dict if name in mappings else hint for name, hint in written.items()}


def _as(kind: Any, value: Any) -> tuple[Any, bool]:
    """Return the value in the field's type, and whether it fits. A null stands for a number that was not finite."""
    if isinstance(kind, EnumType):
        return (kind(value), True) if isinstance(value, str) and value in set(kind) else (value, False)
    if kind is float:
        number = math.nan if value is None else value
        # Whole numbers are not converted: tables show 1 and 1.0 differently.
        return number, isinstance(number, float) or (is_whole(number) and number in _WHOLE_NUMBERS)
    if kind is int:
        return value, is_whole(value) and value in _WHOLE_NUMBERS
    return value, isinstance(value, kind)
