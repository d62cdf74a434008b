"""Reads a results directory without trusting it.

It may come from an earlier or a later version, from a full disk, or from an incomplete copy. What is sound is used, and
everything else becomes a `Finding`: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.journal.line import Kind, Record, decode, split
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.sound_record import sound_record
from orchestrator.journal.spending import with_earlier
from orchestrator.journal.standing import further_attempts, standing
from orchestrator.storage.layout import JOURNAL, Layout
from sweeps.probe import stand_ins


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
    asked: Mapping[str, Any]
    """What the last driver was asked; {} if no record has it."""
    set_aside: frozenset[str]
    """Trials in the middle of a further attempt, as of `Layout.set_aside`."""
    findings: Sequence[Finding]
    unfinished: bool
    """Whether the last driver left planned trials without an end, or is still at work."""


def read_results(layout: Layout) -> Results:
    """The ends under the latest config, by trial id. Changes nothing on disk."""
    found = sound_records(layout.journal)
    asked = sound_asked(found.records)
    ends, odd = sound_ends(found.records, asked)
    drivers = [_get(record.value, "driver") for record in found.records if record.kind == Kind.SWEEP]
    sound = [driver for driver in drivers if isinstance(driver, Mapping)]
    findings = [*found.findings, *odd, *strangers(layout, _known_trials(found.records))]
    return Results(
        ends=with_earlier(ends, found.records),
        driver=sound[-1] if sound else {},
        asked=asked,
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


def sound_asked(records: Iterable[Record]) -> Mapping[str, Any]:
    """What the last driver was asked; {} if no record has it."""
    asked = [_asked(record) for record in records if record.kind == Kind.SWEEP]
    return asked[-1] if asked else {}


def sound_ends(records: Iterable[Record], asked: Mapping[str, Any]) -> tuple[dict[str, TrialRecord], list[Finding]]:
    """How each trial that was run while this was asked ended, and findings on records of another form.

    Records before the first `sweep` record count, too: an early version wrote no such record.
    """
    ends: dict[str, TrialRecord] = {}
    troubles: dict[str, list[str]] = {}
    others: set[str] = set()
    same = True
    for record in standing(records):
        if record.kind == Kind.SWEEP:
            same = _asked(record) == asked
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


def _asked(record: Record) -> Mapping[str, Any]:
    asked = _get(record.value, "asked")
    return asked if isinstance(asked, Mapping) else {}


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
