"""Continuing a sweep: which config it had before, and whether it still has the same.

Each driver that takes up the sweep writes a `sweep` record with the config outside `sweep.axes`: its `fingerprint`.

How long trials occupied their devices in all attempts, not only in the one that is their row.

How long trials take, estimated from those that have finished.

Reads the end of a trial that another version, or a person, may have written.

Reads a results directory without trusting it.

It may come from an earlier or a later version, from a full disk, or from an incomplete copy. What is sound is used, and
everything else becomes a `Finding`: nothing is dropped silently.
"""

from __future__ import annotations

import math
import statistics
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Any

from orchestrator.store.journal import Kind, Record, decode, effective_records, further_attempts, split, terminal
from orchestrator.store.layout import JOURNAL, TRIAL_ID, Layout
from orchestrator.store.record import TrialRecord
from sweeps.axes import flat, is_whole
from sweeps.probe import stand_ins
from sweeps.status import Status
from sweeps.trial import TrialSpec

_ENDS = (Kind.RETRIED, Kind.CUT_OFF, Kind.FINISHED)


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The attempts at a trial since its previous end, without the one that ended it."""

    wall_s: float = 0.0
    unknown: int = 0
    """Attempts of unknown length: the driver was killed, or did not record it (earlier versions)."""


def earlier(records: Iterable[Record]) -> dict[tuple[str, int], Earlier]:
    """By trial id and number of the attempt that ended it. Records may be of any form."""
    so_far: dict[str, Earlier] = {}
    running: set[str] = set()
    found: dict[tuple[str, int], Earlier] = {}
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id, attempt, wall_s = str(value.get("trial_id")), value.get("attempt"), value.get("wall_s")
        if record.kind not in (Kind.STARTED, *_ENDS) or not isinstance(attempt, int):
            continue
        before = so_far.setdefault(trial_id, Earlier())
        if record.kind == Kind.STARTED:
            so_far[trial_id] = replace(before, unknown=before.unknown + (trial_id in running))
            running.add(trial_id)
            continue
        running.discard(trial_id)
        if record.kind == Kind.FINISHED:
            found[trial_id, attempt] = so_far.pop(trial_id)
        elif isinstance(wall_s, (int, float)):
            so_far[trial_id] = replace(before, wall_s=before.wall_s + wall_s)
        else:
            so_far[trial_id] = replace(before, unknown=before.unknown + 1)
    return found


def with_earlier(ends: Mapping[str, TrialRecord], records: Iterable[Record]) -> dict[str, TrialRecord]:
    """The ends, completed with the time that earlier attempts took."""
    before = earlier(records)
    return {trial_id: _with(end, before.get((trial_id, end.attempt), Earlier())) for trial_id, end in ends.items()}


def _with(end: TrialRecord, before: Earlier) -> TrialRecord:
    return replace(end, earlier_s=before.wall_s, unknown_attempts=before.unknown)


def spent_gpu_s(records: Iterable[Record]) -> float:
    """GPU-seconds (or worker-seconds) that all probes, repetitions and attempts have occupied, under any config.

    Journals of earlier versions do not say how many GPUs a retried attempt occupied: as many as the last attempt.
    """
    ends = [record.value for record in records if record.kind in (Kind.PROBED, Kind.TIMED, *_ENDS)]
    of_trial = {end.get("trial_id"): _held(end) for end in ends}
    return float(sum((_held(end) or of_trial[end.get("trial_id")]) * end["wall_s"] for end in ends))


def _held(end: Mapping[str, Any]) -> float:
    return float(end.get("gpus_held") or end.get("gpus") or 0.0)


def latest(records: Iterable[Record]) -> Mapping[str, Any] | None:
    """The fingerprint of the last request; None in a new journal."""
    found = [record.value["fingerprint"] for record in records if record.kind == Kind.SWEEP]
    return found[-1] if found else None


def changed(records: Iterable[Record], fingerprint: Mapping[str, Any]) -> list[str]:
    """The differences from the fingerprint of the last request; none in a new journal."""
    before = latest(records)
    return difference(before, fingerprint) if before is not None else []


def has_answers(ends: Iterable[TrialRecord]) -> bool:
    """Whether any end says something about the training; fixing the cause of a failure does not change the question.

    Without one, a changed config has nothing to be mixed up with.
    """
    return any(end.status not in _NO_ANSWER for end in ends)


_NO_ANSWER = (Status.FAILED, Status.INFEASIBLE, Status.SKIPPED)


def probes_under(records: Iterable[Record], fingerprint: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The last probe of each speed (`durations.speed`) that was run under this fingerprint."""
    found: dict[str, Mapping[str, Any]] = {}
    same = False
    for record in records:
        if record.kind == Kind.SWEEP:
            same = record.value["fingerprint"] == fingerprint
        elif same and record.kind == Kind.PROBED:
            found[record.value["speed"]] = record.value
    return found


def ends_under(records: Iterable[Record], fingerprint: Mapping[str, Any]) -> dict[str, TrialRecord]:
    """How each trial that was run under this fingerprint ended. Wider axes do not change it."""
    records = list(records)
    kept: list[Record] = []
    same = False
    for record in records:
        if record.kind == Kind.SWEEP:
            same = record.value["fingerprint"] == fingerprint
        if same or record.kind == Kind.SWEEP:
            kept.append(record)
    return with_earlier(terminal(kept), records)


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each change, such as `config.budget.epochs: 10 → 20`, with all dotted keys that changed alike.

    Many names in the config may lead to one package, whose hash is then that of each.
    """
    old, new = dict(flat(before)), dict(flat(now))
    changes: dict[str, list[str]] = {}
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            changes.setdefault(f"{_shown(old, key)} → {_shown(new, key)}", []).append(key)
    return [f"{', '.join(keys)}: {change}" for change, keys in changes.items()]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "(absent)"


_ALIKE_IN_TIME = frozenset(("seed", "lr_rule", "lr_multiplier", "probe", "repetition"))
"""Axes that hardly change how long a trial takes, and the marks of probes and repetitions."""


class Durations:
    """Wall times of ok trials, by cell and by everything that determines a trial's speed."""

    def __init__(self, records: Iterable[TrialRecord] = ()) -> None:
        self._seconds: dict[str, list[float]] = {}
        self._medians: dict[str, float] = {}
        for record in records:
            if record.status is Status.OK:
                self.add(record.cell_id, record.axes, record.wall_s)

    def add(self, cell_id: str, axes: Mapping[str, Any], wall_s: float) -> None:
        """Add a trial that was ok after `wall_s` seconds."""
        for key in (cell_id, speed(axes)):
            self._seconds.setdefault(key, []).append(wall_s)
            self._medians.pop(key, None)

    def expected_s(self, trial: TrialSpec) -> float | None:
        """Median over its cell, else over the trials that differ only in seed and learning rate; None if unknown."""
        return self._median(trial.cell_id) or self._median(speed(trial.axes))

    def _median(self, key: str) -> float | None:
        if key not in self._medians and key in self._seconds:
            self._medians[key] = statistics.median(self._seconds[key])
        return self._medians.get(key)


def speed(axes: Mapping[str, Any]) -> str:
    """A key that trials of about the same speed have in common."""
    return repr(sorted((axis, value) for axis, value in axes.items() if axis not in _ALIKE_IN_TIME))


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


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something in the directory that was left out or is incomplete."""

    where: str
    """A path inside the results directory."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class Sound:
    """The records that could be read, and findings on the rest."""

    records: Sequence[Record]
    findings: Sequence[Finding]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The sound contents of a results directory."""

    ends: Mapping[str, TrialRecord]
    driver: Mapping[str, Any]
    """The last driver's provenance; {} if no record has it."""
    fingerprint: Mapping[str, Any]
    """The fingerprint of the last request; {} if no record has it."""
    set_aside: frozenset[str]
    """Trials in the middle of a further attempt, as of `Layout.set_aside`."""
    findings: Sequence[Finding]
    unfinished: bool
    """Whether the last driver left planned trials without an end, or is still at work."""


def read_results(layout: Layout) -> Results:
    """The ends under the latest config, by trial id. Changes nothing on disk."""
    found = sound_records(layout.journal)
    fingerprint = sound_fingerprint(found.records)
    ends, odd = sound_ends(found.records, fingerprint)
    drivers = [_get(record.value, "driver") for record in found.records if record.kind == Kind.SWEEP]
    sound = [driver for driver in drivers if isinstance(driver, Mapping)]
    findings = [*found.findings, *odd, *strangers(layout, _known_trials(found.records))]
    return Results(
        ends=with_earlier(ends, found.records),
        driver=sound[-1] if sound else {},
        fingerprint=fingerprint,
        set_aside=frozenset(key for key, counts in further_attempts(found.records).items() if not counts),
        findings=findings,
        unfinished=_is_unfinished(found.records),
    )


def _is_unfinished(records: Iterable[Record]) -> bool:
    last = next((record for record in reversed(list(records)) if record.kind in (Kind.SWEEP, Kind.ENDED)), None)
    return last is not None and (last.kind == Kind.SWEEP or bool(_get(last.value, "missing")))


def _known_trials(records: Iterable[Record]) -> set[str]:
    ids = {str(_get(record.value, "trial_id")) for record in records}
    return ids.union(*map(stand_ins, ids))


def sound_records(journal: Path) -> Sound:
    """The records of a journal, which may be damaged or missing."""
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


def sound_fingerprint(records: Iterable[Record]) -> Mapping[str, Any]:
    """The fingerprint of the last request; {} if no record has it."""
    found = [_fingerprint(record) for record in records if record.kind == Kind.SWEEP]
    return found[-1] if found else {}


def sound_ends(
    records: Iterable[Record], fingerprint: Mapping[str, Any]
) -> tuple[dict[str, TrialRecord], list[Finding]]:
    """How each trial that was run under this fingerprint ended, and findings on records of another form.

    Records before the first `sweep` record count, too: an early version wrote no such record.
    """
    ends: dict[str, TrialRecord] = {}
    troubles: dict[str, list[str]] = {}
    others: set[str] = set()
    same = True
    for record in effective_records(records):
        if record.kind == Kind.SWEEP:
            same = _fingerprint(record) == fingerprint
        elif record.kind == Kind.FINISHED:
            end, trouble = sound_record(record.value)
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


def strangers(layout: Layout, known: Iterable[str]) -> list[Finding]:
    """Findings on files in the trials' folder that belong to no trial in the journal."""
    if not layout.trials.is_dir():
        return [Finding(where=layout.trials.name, what="missing, so there are no learning curves")]
    names = set(known)
    strange = sorted(path.name for path in layout.trials.iterdir() if path.name not in names)
    if not strange:
        return []
    some = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
    return [Finding(where=layout.trials.name, what=f"the journal knows no trial {some}; left out")]


def _of_records(trouble: str, trials: Sequence[str]) -> Finding:
    where = f"the end of trial {trials[0]}" + (f" and {len(trials) - 1} more" if len(trials) > 1 else "")
    return Finding(where=JOURNAL, what=f"{where}: {trouble}")


def _fingerprint(record: Record) -> Mapping[str, Any]:
    found = _get(record.value, "fingerprint")
    return found if isinstance(found, Mapping) else {}


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
