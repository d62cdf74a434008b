"""The ledger of a sweep: what was started and how it ended. One checksummed, durable record per line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.journal.line import Damage, Kind, Record, decode, encode, split
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.standing import standing
from orchestrator.storage import json_line
from orchestrator.storage.crash_point import Moment, reached
from orchestrator.storage.durable import write_durably
from orchestrator.storage.layout import quarantine_of


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
    ends = {record.value["trial_id"]: record.value for record in standing(records) if record.kind == Kind.FINISHED}
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
    write_durably(aside, kept + b"".join(json_line.encode(each) + b"\n" for each in entries))
