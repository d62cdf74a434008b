"""The ledger of a sweep: what was started and how it ended. One checksummed, durable record per line.

The format of the journal: each line is a record with a checksum; anything else is damage.

A line is `{"checksum":"<16 hex digits>","kind":…,"value":…}`. The checksum is the beginning of the SHA-256 of the line
without the checksum field: the bytes `{"kind":…,"value":…}`. It detects a change of any byte, the line end included.

Which end of a trial is valid ("stands") if a journal has several, and which timing.

It is the last one, but a trial with a result keeps it if it was asked for again and left out, because of a budget or
lack of room. A repetition gives a row another timing, unless that is disturbed, too. If the timing of a rerun
is disturbed, the row keeps the earlier one, if that was valid. The row says all of this.

In journals of earlier versions a repetition was a further attempt: a trial that was ok stays so, however that ended.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.store import files
from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.files import write_durably
from orchestrator.store.layout import quarantine_of
from orchestrator.store.record import TrialRecord, not_repeated, with_timing
from sweeps.status import Status

_HEAD = b'{"checksum":"'
_DIGITS = 16


class Kind(StrEnum):
    """The kind of a record, which determines its contents."""

    SWEEP = "sweep"
    """A driver took up the sweep: the config outside `sweep.axes`, the driver's provenance, the trials' hardware."""
    STARTED = "started"
    """`{trial_id, attempt}`: the gang was told to start this attempt."""
    RETRIED = "retried"
    """`{trial_id, attempt, cause, note, wall_s, gpus_held}`: the attempt failed, and another will follow."""
    CUT_OFF = "cut_off"
    """`{trial_id, attempt, wall_s, gpus_held}`: the sweep was interrupted during the attempt."""
    FINISHED = "finished"
    """A `TrialRecord`, plus `files`: the SHA-256 of the trial's files, by name."""
    TIMED = "timed"
    """`{trial_id, times, repeats, status, note, disturbed, again, wall_s, gpus, gpus_held, timing, metrics,
    provenance}`: a repetition ended, which timed the trial `times` again; `disturbed` says why that timing does
    not count, either, `again` whether another follows, because this one failed, as with a lost node."""
    PROBED = "probed"
    """`{trial_id, probes, speed, size, gpus, status, note, wall_s, samples_per_s, epoch_s, reserved_memory_gb,
    device_memory_gb}`: a short trial ended."""
    DISTURBED = "disturbed"
    """`{trial_ids}`, of earlier versions: these trials, whose timing something disturbed, ran once more as a whole."""
    ENDED = "ended"
    """`{missing}`: the tables were written, and this many planned trials have no end."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of the journal. Readers skip kinds that they do not know."""

    kind: str
    value: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Bytes of the journal that are not a record."""

    line: int
    """Line number in the file as it was found, counted from 1."""
    reason: str
    data: bytes

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason} ({len(self.data)} bytes)"


def encode(kind: str, value: Mapping[str, Any]) -> bytes:
    """A record as a line, without the line end."""
    body = files.encode({"kind": str(kind), "value": value})
    return b'%b%b",%b' % (_HEAD, _checksum(body), body[1:])


def decode(line: bytes) -> Record:
    """The record in an intact line."""
    content = json.loads(_body(line))
    return Record(kind=content["kind"], value=content["value"])


def split(data: bytes) -> tuple[list[bytes], tuple[Damage, ...]]:
    """The intact lines of a journal, without their line ends, and the damage in between."""
    intact: list[bytes] = []
    damages: list[Damage] = []
    *lines, tail = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        lost = _lost(line)
        if lost < len(line):
            intact.append(line[lost:])
        if lost or not line:
            reason = "the checksum does not match" if lost == len(line) else "the end of the line is lost"
            damages.append(Damage(line=number, reason=f"corrupt: {reason}", data=line[:lost]))
    if tail:
        damages.append(Damage(line=len(lines) + 1, reason="torn: the line has no end", data=tail))
    return intact, tuple(damages)


def _lost(line: bytes) -> int:
    """The number of bytes before the line's intact record: those of a record without its line end, or all of them."""
    start = 0
    while start >= 0:
        if line.startswith(_HEAD + _checksum(_body(line[start:])) + b'",', start):
            return start
        start = line.find(_HEAD, start + 1)
    return len(line)


def _body(line: bytes) -> bytes:
    return b"{" + line[len(_HEAD) + _DIGITS + 2 :]


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGITS].encode()


class EffectiveRecords:
    """Reads records one by one; they may be of any form."""

    def __init__(self) -> None:
        self._results: dict[str, Mapping[str, Any]] = {}
        """By trial, its valid end with the timing that counts, without the notes on how it came to be."""
        self._trained: dict[str, Mapping[str, Any]] = {}
        """By trial, the same end with its own timing."""
        self._once_more: set[str] = set()

    def take(self, record: Record) -> Record:
        """The record; in place of an end or a repetition that of the row as it then is, of kind `finished`.

        Records that make no sense are passed on unchanged.
        """
        value = record.value if isinstance(record.value, Mapping) else {}
        if record.kind == Kind.SWEEP:  # a new driver, and a new request
            self._once_more = set()
        elif record.kind == Kind.DISTURBED and isinstance(value.get("trial_ids"), list):
            ok = {key for key, result in self._results.items() if _is_ok(result)}
            self._once_more |= {str(each) for each in value["trial_ids"]} & ok
        elif record.kind == Kind.TIMED and _is_ok(self._results.get(str(value.get("times")), {})):
            return Record(kind=Kind.FINISHED, value=self._timed(str(value["times"]), value))
        elif record.kind == Kind.FINISHED:
            return replace(record, value=self._ended(str(value.get("trial_id")), value)) if value else record
        return record

    def _ended(self, trial_id: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        before = self._results.get(trial_id)
        if before and trial_id in self._once_more and not _is_ok(value):
            word = "not repeated:" if _never_ran(value) else "a repetition ended as"
            return _noted(before, f"{word} {_end_of(value)}")
        if before and _never_ran(value):
            return _noted(before, f"not run again, although requested: {_end_of(value)}")
        if value.get("status") not in _RESULTS:
            self._results.pop(trial_id, None)
            return value
        self._trained[trial_id] = {**value, "disturbed": ""}
        keeps = before and _is_ok(before) and _is_ok(value) and value.get("disturbed")
        self._results[trial_id] = with_timing(value, before) if before and keeps else self._trained[trial_id]
        return _noted(self._results[trial_id]) if keeps else value

    def _timed(self, trial_id: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        row = self._results[trial_id]
        if not _is_ok(value):
            return _noted(row, f"a repetition of its timing ended as {_end_of(value)}")
        if value.get("disturbed"):
            return _noted(row, f"timed again, in vain: {value['disturbed']}")
        row = self._results[trial_id] = with_timing(self._trained[trial_id], value)
        disturbed = ", ".join(not_repeated(row, value))
        return _noted(row, "timed again, alone" + (f", except {disturbed}" if disturbed else ""))


def effective_records(records: Iterable[Record]) -> Iterator[Record]:
    """The records in order, as `Standing` reads them."""
    return map(EffectiveRecords().take, records)


def repeated(records: Iterable[Record]) -> set[str]:
    """The trials that were timed once more since they were asked for, whatever came of it, unless it was to follow."""
    found: set[str] = set()
    for record in records:
        if record.kind == Kind.TIMED and not record.value.get("again"):
            found.add(record.value["times"])
        elif record.kind == Kind.FINISHED:
            found.discard(record.value["trial_id"])
    return found


def further_attempts(records: Iterable[Record]) -> dict[str, bool]:
    """For each trial that was started again after an end: whether its files are now those of the further attempt.

    They are not while that attempt runs, or if it was cut off: the valid end is then an earlier one, and its files
    belong to it.
    """
    ended: set[str] = set()
    found: dict[str, bool] = {}
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id = str(value.get("trial_id"))
        if record.kind == Kind.STARTED and trial_id in ended:
            found[trial_id] = False
        elif record.kind == Kind.FINISHED:
            ended.add(trial_id)
            if trial_id in found:
                found[trial_id] = True
    return found


_RESULTS = tuple(status.value for status in Status if status.is_result() and status.is_final())


def _is_ok(value: Mapping[str, Any]) -> bool:
    return bool(value.get("status") == Status.OK.value)


def _never_ran(value: Mapping[str, Any]) -> bool:
    """Whether the trial was left out; one that was stopped early has run for some time."""
    return value.get("status") in (Status.SKIPPED.value, Status.INFEASIBLE.value) and not value.get("wall_s")


def _end_of(value: Mapping[str, Any]) -> str:
    return f"{value.get('status')}" + (f": {value['note']}" if value.get("note") else "")


def _noted(row: Mapping[str, Any], *more: str) -> Mapping[str, Any]:
    """The row with notes on where its timing is from, and on what did not replace it."""
    disturbed = (
        f"the timing is an earlier attempt's: this one's was disturbed ({row['disturbed']})" if row["disturbed"] else ""
    )
    return {**row, "note": "; ".join(filter(None, (str(row.get("note") or ""), disturbed, *more)))}


class JournalError(OSError):
    """A record could not be made durable. It is not acknowledged, and the journal takes no further records."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The contents of a journal, in the order in which they were written."""

    records: tuple[Record, ...]
    damages: tuple[Damage, ...]


def replay(path: Path) -> Replay:
    """Read a journal without changing it. Raises FileNotFoundError if there is none."""
    lines, damages = split(path.read_bytes())
    return Replay(records=tuple(map(decode, lines)), damages=damages)


def terminal(records: Iterable[Record]) -> dict[str, TrialRecord]:
    """How each trial ended, by trial id: its last valid end, see `standing`. An infeasible trial can be tried again."""
    ends = {
        record.value["trial_id"]: record.value for record in effective_records(records) if record.kind == Kind.FINISHED
    }
    return {trial_id: TrialRecord.from_json(value) for trial_id, value in ends.items()}


def attempts(records: Iterable[Record]) -> dict[str, int]:
    """The number of the latest attempt at each trial that was ever started, by trial id."""
    return {record.value["trial_id"]: record.value["attempt"] for record in records if record.kind == Kind.STARTED}


class Journal:
    """A journal open for writing. Its owner must hold the lock of the directory."""

    def __init__(self, path: Path, lines: list[bytes], damages: tuple[Damage, ...]) -> None:
        self.damages = damages
        self._lines = lines
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._end = os.fstat(self._file).st_size
        self._refusal = ""

    @staticmethod
    def open(path: Path) -> Journal:
        """Open or create a journal. What is not a record is moved to the quarantine file and listed in `damages`."""
        if not path.exists():
            write_durably(path, b"")
        lines, damages = split(path.read_bytes())
        if damages:
            _quarantine(path, damages)
            write_durably(path, b"".join(line + b"\n" for line in lines))
        return Journal(path, lines, damages)

    @property
    def records(self) -> tuple[Record, ...]:
        """Everything acknowledged so far, in order, as the next driver will read it."""
        return tuple(map(decode, self._lines))

    def terminal(self) -> dict[str, TrialRecord]:
        """How each trial ended. Takes time proportional to the length of the journal."""
        return terminal(self.records)

    def attempts(self) -> dict[str, int]:
        """The latest attempt at each trial. Takes time proportional to the length of the journal."""
        return attempts(self.records)

    def append(self, kind: Kind, value: Mapping[str, Any]) -> None:
        """Append a record of JSON values; it is durable when this returns. Numbers that are not finite become null.

        Raises JournalError if it cannot be made durable (disk full, read-only, input/output error). The file is then
        truncated to the previous record, if that is still possible, and this journal refuses all further records.
        """
        if self._refusal:
            raise JournalError(errno.EBADF, f"the journal accepts no more records: {self._refusal}", str(self._path))
        line = encode(kind, value)
        try:
            _write(self._file, line + b"\n")
        except BaseException as error:
            self._refusal = str(error) or type(error).__name__
            # Best effort: a tail that cannot be cut off now counts as torn, and the next `open` cuts it off.
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
                os.fsync(self._file)
            if isinstance(error, OSError):
                raise JournalError(error.errno, f"record not written: {error.strerror}", str(self._path)) from error
            raise
        self._lines.append(line)
        self._end += len(line) + 1

    def close(self) -> None:
        """Close the file; no further records are taken."""
        if self._refusal != "closed":
            os.close(self._file)
            self._refusal = "closed"

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write(file: int, line: bytes) -> None:
    written = os.write(file, line)
    if written != len(line):
        raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes written: {os.strerror(errno.ENOSPC)}")
    reached(Moment.RECORD_WRITTEN)
    os.fsync(file)
    reached(Moment.RECORD_SYNCED)


def _quarantine(path: Path, damages: Iterable[Damage]) -> None:
    """Append the damaged bytes to the quarantine file: one JSON object per line, whose `data` is Latin-1."""
    aside = quarantine_of(path)
    kept = aside.read_bytes() if aside.exists() else b""
    entries = ({"line": each.line, "reason": each.reason, "data": each.data.decode("latin-1")} for each in damages)
    write_durably(aside, kept + b"".join(files.encode(each) + b"\n" for each in entries))
