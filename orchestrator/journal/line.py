"""The form of the journal: a line is a record with a checksum, and what is none is damage.

A line is `{"checksum":"<16 hex digits>","kind":…,"value":…}`. The checksum is the head of the SHA-256 of the same line
without its own field: the bytes `{"kind":…,"value":…}`. Any change of any byte of a line, its end included, shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.storage import json_line

_HEAD = b'{"checksum":"'
_DIGITS = 16


class Kind(StrEnum):
    """What a record is about, and what it holds."""

    SWEEP = "sweep"
    """A driver took up the sweep: its config outside `sweep.axes`, the driver's provenance, what trials will run on."""
    STARTED = "started"
    """`{trial_id, attempt}`: the gang was told to start."""
    RETRIED = "retried"
    """`{trial_id, attempt, cause, note, wall_s, gpus_held}`: the attempt failed, and there will be another one."""
    CUT_OFF = "cut_off"
    """`{trial_id, attempt, wall_s, gpus_held}`: the sweep was interrupted in the middle of the attempt."""
    FINISHED = "finished"
    """A `TrialRecord`, and with it `files`: the SHA-256 of the trial's files, by name."""
    PROBED = "probed"
    """`{trial_id, probes, speed, size, gpus, status, note, wall_s, samples_per_s, epoch_s, reserved_memory_gb,
    device_memory_gb}`: a short trial ended."""
    SPOILED = "spoiled"
    """`{trial_ids}`: something spoiled the timing of these trials that have ended, and they run once more."""
    ENDED = "ended"
    """`{missing}`: the tables were written, and so many planned trials have no end."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of the journal; readers pass over kinds that they do not know."""

    kind: str
    value: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Bytes of the journal that are no record any more."""

    line: int
    """Counted from 1, in the file as it was found."""
    reason: str
    data: bytes

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason} ({len(self.data)} bytes)"


def encode(kind: str, value: Mapping[str, Any]) -> bytes:
    """The line of a record, without its end."""
    body = json_line.encode({"kind": str(kind), "value": value})
    return b'%b%b",%b' % (_HEAD, _checksum(body), body[1:])


def decode(line: bytes) -> Record:
    """The record of an intact line."""
    content = json.loads(_body(line))
    return Record(kind=content["kind"], value=content["value"])


def split(data: bytes) -> tuple[list[bytes], tuple[Damage, ...]]:
    """The intact lines of a journal without their ends, and what else there is in it."""
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
    """How many bytes come before the line's intact record: those of a record that lost its own line end, or all."""
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
