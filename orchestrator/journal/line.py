"""The format of the journal: each line is a record with a checksum; anything else is damage.

A line is `{"checksum":"<16 hex digits>","kind":…,"value":…}`. The checksum is the beginning of the SHA-256 of the line
without the checksum field: the bytes `{"kind":…,"value":…}`. It detects a change of any byte, the line end included.
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
    """`{trial_id, times, repeats, status, note, spoiled, again, wall_s, gpus, gpus_held, timing, metrics, provenance}`:
    a repetition ended, which timed the trial `times` again; `spoiled` tells why that timing does not count, either,
    `again` whether another follows, because this one failed, as with a lost node."""
    PROBED = "probed"
    """`{trial_id, probes, speed, size, gpus, status, note, wall_s, samples_per_s, epoch_s, reserved_memory_gb,
    device_memory_gb}`: a short trial ended."""
    SPOILED = "spoiled"
    """`{trial_ids}`, of earlier versions: these trials, whose timing something spoiled, ran once more as a whole."""
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
    body = json_line.encode({"kind": str(kind), "value": value})
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
