"""The journal of a sweep: what was started and how it ended. One checksummed, durable record per line.

A line is `{"checksum":"<16 hex digits>","kind":…,"value":…}`. The checksum is the beginning of the SHA-256 of the line
without the checksum field: the bytes `{"kind":…,"value":…}`. It detects a change of any byte, the line end included.
Anything else in the file is damage.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from orchestrator.store import files
from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.files import sync_directory, write_durably
from orchestrator.store.history import History
from orchestrator.store.lock import LockedError
from orchestrator.store.record import Kind, Record
from orchestrator.store.record_checks import why_unusable
from orchestrator.store.results_folder import quarantine_of
from orchestrator.store.secrets import NO_SECRETS, Secrets

_HEAD = b'{"checksum":"'
_DIGITS = 16
_MOST_KEPT = 10_000_000  # the most bytes of one damage that are kept
_MOST_JOINED = 4  # the beginnings of records that are tried in a line, if ends of lines are lost


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Bytes of the journal that are not a record."""

    line: int  # line number in the file as it was found, counted from 1
    reason: str
    data: bytes

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason} ({len(self.data)} bytes)"


def encode(kind: str, value: Mapping[str, Any]) -> bytes:
    """A record as a line, without the line end."""
    # The checksum comes first: its place and length then do not depend on the value.
    body = files.encode({"kind": str(kind), "value": value})
    return b'%b%b",%b' % (_HEAD, _checksum(body), body[1:])


def decode(line: bytes) -> Record:
    """The record in an intact line, which this program has written."""
    content = json.loads(_body(line))
    if b"\\ud" in line.lower():  # half a character, which no file can hold
        content = json.loads(json.dumps(content, ensure_ascii=False).encode(errors="replace"))
    return Record(kind=content["kind"], value=content["value"])


def split(data: bytes) -> tuple[list[bytes], tuple[Damage, ...]]:
    """The intact lines of a journal, without their line ends, and the damage in between."""
    intact: list[bytes] = []
    damages: list[Damage] = []
    *lines, tail = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        # If a line end is lost, two records are on one line, and the second is still whole.
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
    start = line.find(_HEAD)
    # Each attempt reads the rest of the line, and a damaged line may consist of nothing but beginnings of records.
    for _ in range(_MOST_JOINED):
        if start < 0:
            break
        if line.startswith(_HEAD + _checksum(_body(line, start)) + b'",', start):
            return start
        start = line.find(_HEAD, start + 1)
    return len(line)


def _body(line: bytes, start: int = 0) -> bytes:
    return b"{" + line[start + len(_HEAD) + _DIGITS + 2 :]


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGITS].encode()


class JournalError(OSError):
    """A record could not be made durable. It is not acknowledged, and the journal takes no further records."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The contents of a journal, in the order in which they were written."""

    records: tuple[Record, ...]
    damages: tuple[Damage, ...]
    unusable: tuple[str, ...]  # a line for each reason to leave out intact records; they stay in the journal

    @staticmethod
    def of(data: bytes) -> Replay:
        """Read the contents of a journal. Every mode reads them here."""
        lines, damages = split(data)
        records: list[Record] = []
        reasons: dict[str, list[int]] = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = decode(line)
                why = why_unusable(record)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                why = f"{type(error).__name__}: {error}"
            if why:
                # By reason: after a change of versions, thousands of records may have the same one.
                reasons.setdefault(why, []).append(number)
            else:
                records.append(record)
        unusable = tuple(
            f"record {first}{f' and {len(more)} more' if more else ''}: {why}; left out"
            for why, (first, *more) in reasons.items()
        )
        return Replay(records=tuple(records), damages=damages, unusable=unusable)


def replay(path: Path) -> Replay:
    """Read a journal without changing it. Raises FileNotFoundError if there is none."""
    return Replay.of(files.read_regular(path))


class Journal:
    """A journal open for writing, and locked. Its owner must hold the lock of the directory, too."""

    def __init__(self, path: Path, file: int, contents: Replay, secrets: Secrets) -> None:
        self.damages, self.unusable = contents.damages, contents.unusable  # as in `Replay`
        self.history = History(contents.records)  # the state of the sweep after every acknowledged record
        self._secrets = secrets
        self._path = path
        self._file = file
        self._end = os.fstat(file).st_size
        self._refusal = ""

    @staticmethod
    def open(path: Path, secrets: Secrets = NO_SECRETS) -> Journal:
        """Open or create a journal. What is not a record is moved to the quarantine file and listed in `damages`.

        The `secrets` get into no record.

        Raises LockedError if another driver has it open, which is possible only if the lock file was removed.
        """
        file = _locked(path)
        try:
            data = files.read_regular(path)
            contents = Replay.of(data)
            # The bytes are kept for the user, and a journal without them can be appended to.
            if contents.damages:
                _quarantine(path, contents.damages)
                write_durably(path, b"".join(line + b"\n" for line in split(data)[0]))
                damaged, file = file, _locked(path)
                os.close(damaged)
            return Journal(path, file, contents, secrets)
        except BaseException:
            os.close(file)
            raise

    def append(self, kind: Kind, value: Mapping[str, Any], compared: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Append a record of JSON values; it is durable when this returns. Numbers that are not finite become null.

        Secrets in `value` are hidden. What readers compare or parse is `compared`: ids, digests, words such as a
        status and numbers of attempts. It is free of secrets and is written as it is.

        Raises JournalError if it cannot be made durable (disk full, read-only, input/output error), or if the path no
        longer leads to it (moved, deleted, replaced). The file is then truncated to the previous record, if that is
        still possible, and this journal refuses all further records.
        """
        if self._refusal:
            raise JournalError(errno.EBADF, f"the journal accepts no more records: {self._refusal}", str(self._path))
        # After an error nobody knows what is on the disk, so that further records could follow half a line.
        # The names of fields are the journal's own: a value from the environment that equals one hides none.
        clean = {name: self._secrets.value(item, name) for name, item in value.items()}
        line = encode(kind, {**compared, **clean})
        try:
            _write(self._file, line + b"\n")
            _check_place(self._path, self._file)
        except BaseException as error:
            self._refusal = str(error) or type(error).__name__
            # Best effort: a tail that cannot be cut off now counts as torn, and the next `open` cuts it off.
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
                os.fsync(self._file)
            if isinstance(error, OSError):
                raise JournalError(error.errno, f"record not written: {error.strerror}", str(self._path)) from error
            raise
        self._end += len(line) + 1
        self.history.take(decode(line))  # as the next driver will read it

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


def _locked(path: Path) -> int:
    """Open the journal, which is created if there is none, and lock it until it is closed."""
    is_new = not path.exists()
    # A link could lead to a file outside of the folder, opening a pipe would wait, and children would keep the lock.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o600)
    try:
        files.refuse_irregular(path, file)
        if is_new:
            sync_directory(path.parent)
        _lock(file)
        _check_place(path, file)
    except BlockingIOError:
        os.close(file)
        raise LockedError(path.parent, None) from None
    except BaseException:
        os.close(file)
        raise
    return file


def _lock(file: int) -> None:
    """Lock the open journal for writing. Raises BlockingIOError if another driver has it."""
    # mode=status and mode=watch have the lock for microseconds, to see whether a driver has it.
    for _ in range(20):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.005)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _check_place(path: Path, file: int) -> None:
    """Raise OSError if the path leads to another file than the open one, or to none."""
    try:
        # A write to a deleted file succeeds, and what it wrote is gone when the driver ends.
        same = os.path.samestat(os.lstat(path), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        same = False
    if not same:
        raise OSError(errno.ESTALE, "it was moved, deleted or replaced", str(path))


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
    kept = files.read_regular(aside) if aside.exists() else b""
    entries = (
        {"line": damage.line, "reason": damage.reason, "data": _excerpt(damage.data).decode("latin-1")}
        for damage in damages
    )
    write_durably(aside, kept + b"".join(files.encode(damage) + b"\n" for damage in entries))


def _excerpt(data: bytes) -> bytes:
    """Return damaged bytes; of more than any record has, the beginning and the end."""
    # A sparse file of zeros takes no space on a disk, and would take six times its length here.
    half, left_out = _MOST_KEPT // 2, len(data) - _MOST_KEPT
    return data if left_out <= 0 else b"%b (%d bytes left out) %b" % (data[:half], left_out, data[-half:])
