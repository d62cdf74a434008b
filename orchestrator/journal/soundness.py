"""What of a results directory can be relied on: everything is read as if somebody else had written it.

A directory may come from an earlier or a later version, from a full disk, or from a copy that was cut short. What is
sound is used, and the rest is a `Finding`: nothing is dropped without a word.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Any

from orchestrator.journal.kind import Kind
from orchestrator.journal.line import Record, decode, split
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.spending import with_earlier
from orchestrator.journal.standing import standing
from orchestrator.storage.layout import JOURNAL, TRIAL_ID, Layout
from sweeps.status import Status

_NEUTRAL: Mapping[Any, Any] = {str: "", float: math.nan}
"""What stands for a field that the writer's version did not have; a field of another type cannot be done without."""

_NEEDED = ("trial_id", "cell_id", "gpus", "lr_rule")
"""Fields without which nobody knows which cell a record is of, whatever their type."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something in the directory that no figure rests on, or that rests on less than it should."""

    where: str
    """A path inside the results directory."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What could be read, and what could not."""

    records: Sequence[Record]
    findings: Sequence[Finding]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a results directory says, as far as it is sound."""

    ends: Mapping[str, TrialRecord]
    driver: Mapping[str, Any]
    """Who took the sweep up last; {} where no record says so."""
    findings: Sequence[Finding]


def read_results(layout: Layout) -> Results:
    """The ends under what was asked last, by trial; nothing is changed."""
    found = sound_records(layout.journal)
    ends, odd = sound_ends(found.records, sound_asked(found.records))
    drivers = [_get(record.value, "driver") for record in found.records if record.kind == Kind.SWEEP]
    sound = [driver for driver in drivers if isinstance(driver, Mapping)]
    findings = [*found.findings, *odd, *strangers(layout, _known_trials(found.records))]
    return Results(ends=with_earlier(ends, found.records), driver=sound[-1] if sound else {}, findings=findings)


def _known_trials(records: Iterable[Record]) -> set[str]:
    return {str(_get(record.value, "trial_id")) for record in records}


def sound_records(journal: Path) -> Sound:
    """The records of a journal, which may be damaged or not be there."""
    try:
        lines, damages = split(journal.read_bytes())
    except OSError as error:
        return Sound(records=(), findings=(Finding(where=journal.name, what=f"cannot be read: {error.strerror}"),))
    findings = [Finding(where=journal.name, what=f"{damage}; left out") for damage in damages]
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = decode(line)
        except (ValueError, KeyError, TypeError) as error:
            what = f"record {number} is of another form: {error!r}; left out"
            findings.append(Finding(where=journal.name, what=what))
        else:
            records.append(record)
    return Sound(records=records, findings=findings)


def sound_asked(records: Iterable[Record]) -> Mapping[str, Any]:
    """What was asked the last time, {} where no record says so."""
    asked = [_asked(record) for record in records if record.kind == Kind.SWEEP]
    return asked[-1] if asked else {}


def sound_ends(records: Iterable[Record], asked: Mapping[str, Any]) -> tuple[dict[str, TrialRecord], list[Finding]]:
    """How each trial ended that was run while this was asked, and the records that are of another form.

    A record without a `sweep` record before it belongs to whatever the next one asks: an earlier version wrote none.
    """
    ends: dict[str, TrialRecord] = {}
    troubles: dict[str, list[str]] = {}
    others: set[str] = set()
    same = True
    for record in standing(records):
        if record.kind == Kind.SWEEP:
            same = _asked(record) == asked
        elif record.kind == Kind.FINISHED:
            end, trouble = trial_record(record.value)
            if trouble:
                troubles.setdefault(trouble, []).append(str(_get(record.value, "trial_id")))
            if end and same:
                ends[end.trial_id] = end
            elif end:
                others.add(end.trial_id)
    findings = [_of_records(trouble, trials) for trouble, trials in troubles.items()]
    if left_out := others - ends.keys():
        findings.append(Finding(where=JOURNAL, what=f"{len(left_out)} trials of another configuration are left out"))
    return ends, findings


def trial_record(value: Any) -> tuple[TrialRecord | None, str]:
    """The record in these JSON values, None if it is none; and what is wrong with it, empty if nothing is."""
    if not isinstance(value, Mapping):
        return None, "not an object; left out"
    given: dict[str, Any] = {}
    absent: list[str] = []
    for name, kind in _fields().items():
        if name not in value and TrialRecord.__dataclass_fields__[name].default is not MISSING:
            continue  # a later version's, which has it for few records only
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
        return None, "trial_id is no identity; left out"
    if not (given["gpus"] > 0 and given["global_batch_size"] > 0 and given["device_batch_size"] > 0):
        return None, "gpus or a batch is not above 0; left out"
    return TrialRecord(**given), f"without {', '.join(absent)}; used, those are empty" if absent else ""


def strangers(layout: Layout, known: Iterable[str]) -> list[Finding]:
    """What lies in the folder of the trials and belongs to none that the journal knows."""
    if not layout.trials.is_dir():
        return [Finding(where=layout.trials.name, what="is missing: there are no curves")]
    names = set(known)
    strange = sorted(path.name for path in layout.trials.iterdir() if path.name not in names)
    if not strange:
        return []
    told = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
    return [Finding(where=layout.trials.name, what=f"the journal knows no trial {told}; left out")]


def _of_records(trouble: str, trials: Sequence[str]) -> Finding:
    told = f"the end of trial {trials[0]}" + (f" and {len(trials) - 1} more" if len(trials) > 1 else "")
    return Finding(where=JOURNAL, what=f"{told}: {trouble}")


def _asked(record: Record) -> Mapping[str, Any]:
    asked = _get(record.value, "asked")
    return asked if isinstance(asked, Mapping) else {}


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


@cache
def _fields() -> Mapping[str, Any]:
    """Each field's type; `dict` for mappings of any kind."""
    hints = typing.get_type_hints(TrialRecord)
    fields = {name: hints[name] for name in TrialRecord.__dataclass_fields__}
    return {name: dict if _is_mapping(hint) else hint for name, hint in fields.items()}


def _is_mapping(hint: Any) -> bool:
    return isinstance(hint, GenericAlias) or typing.get_origin(hint) is not None


def _is_int(value: Any) -> bool:
    """A whole number of at most 64 bits: no table holds larger ones."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _as(kind: Any, value: Any) -> tuple[Any, bool]:
    """The value in the field's type, and whether it fits; null is a number that was not finite."""
    if kind is Status:
        return (Status(value), True) if isinstance(value, str) and value in set(Status) else (value, False)
    if kind is float:
        number = math.nan if value is None else value
        return number, isinstance(number, float) or _is_int(number)  # as it is: tables tell 1 from 1.0
    if kind is int:
        return value, _is_int(value)
    return value, isinstance(value, kind)
