"""Files with metrics that a command writes: the one that the config names, and logs that are found in its folder.

A named file has lines of JSON, CSV, or is a whole JSON file. Found logs are CSV files with epochs or steps, and the
files of TensorBoard, which are read without it.
"""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from trainables.command.metrics import CommandMetrics
from trainables.command.process import OutputLines


class MetricsFile:
    """The command's metrics file: lines of JSON and CSV are read as they are written, .json at the end; None: no file.

    A CSV file may be written anew, as Lightning does: then only further lines count.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if self._path:
            self._path.unlink(missing_ok=True)  # of an earlier attempt
        self._is_table = path is not None and path.suffix == ".csv"
        is_whole = path is not None and path.suffix == ".json"
        self._lines = OutputLines(path) if path and not is_whole and not self._is_table else None
        self._rows_read = 0
        self._read: tuple[int, int] | None = None
        """The size and modification time of the table when it was last read."""

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Return the lines written since the last call, as lines of JSON; with `ended`, also an unfinished last one."""
        if self._lines is not None:
            yield from self._lines.new(ended=ended)
        elif self._is_table and self._path is not None and self._path.is_file():
            state = self._path.stat()
            before, self._read = self._read, (state.st_size, state.st_mtime_ns)
            if self._read == before and not ended:
                return
            text = self._path.read_text(encoding="utf-8", errors="replace")
            whole = text if ended else text[: text.rfind("\n") + 1]
            rows = list(csv.DictReader(io.StringIO(whole)))
            for row in rows[self._rows_read :]:
                yield json.dumps(_filled_cells(row))
            self._rows_read = max(self._rows_read, len(rows))

    def rows(self, metrics: CommandMetrics) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file that is read as a whole. Raises ValueError if it is missing or malformed."""
        if self._path is None:
            return
        if not self._path.is_file():
            raise ValueError(f"trainable.metrics_file: the command wrote no {self._path}")
        if self._path.suffix != ".json":
            return
        content = json.loads(self._path.read_text(encoding="utf-8"))
        for row in content if isinstance(content, list) else [content]:
            if isinstance(row, dict):
                yield from metrics.row(row)


MOST_FILES = 1000
"""Files of a working folder that are looked at."""

LARGEST = 64 * 2**20
"""Bytes of a log that is read."""

_EVENTS = "events.out.tfevents."


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a working folder, the oldest first, so that the latest values are read last."""
    logs = []
    for path in islice(folder.rglob("*"), MOST_FILES):
        is_log = path.suffix == ".csv" or path.name.startswith(_EVENTS)
        if is_log and path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST:
            logs.append(path)
    return sorted(logs, key=lambda log: log.stat().st_mtime)


def rows_of(log: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a log, in the order of its epochs or steps; none if a CSV file has neither.

    A file that was found may be damaged, or of another kind: the rows before that place are yielded.
    """
    with suppress(csv.Error, struct.error, ValueError, TypeError, OverflowError, MemoryError):
        if log.name.startswith(_EVENTS):
            yield from _rows_of_events(log.read_bytes())
            return
        with log.open(encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(file, skipinitialspace=True):
                if not {"epoch", "step"} & {str(key).strip().lower() for key in row}:
                    return
                yield _filled_cells(row)


def _filled_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a line of a table that are not empty, without spaces around them."""
    # Cells beyond the header are a list, and missing ones are None.
    cells = {str(key).strip(): cell.strip() for key, cell in row.items() if isinstance(cell, str)}
    return {key: cell for key, cell in cells.items() if cell}


def _rows_of_events(data: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the scalars of each step in TensorBoard's records: a length, its checksum, an event and its checksum."""
    by_step: dict[int, dict[str, Any]] = {}
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = data[place + 12 : place + 12 + length]
        place += 16 + length
        if len(event) < length:  # the program was killed while it wrote
            break
        fields = dict(_fields(event))
        values = by_step.setdefault(int(fields.get(2, 0)), {})
        for number, summary in _fields(event):
            if number == 5:
                values.update(_scalars(summary))
    for step, values in by_step.items():
        yield {"step": step, **values}


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Yield each tag and number of a summary; the number is a field, or a tensor with one element."""
    for number, value in _fields(summary):
        fields = dict(_fields(value)) if number == 1 else {}
        if not isinstance(fields.get(1), bytes):
            continue
        tag = fields[1].decode("utf-8", errors="replace")
        if 2 in fields:
            yield tag, struct.unpack("<f", fields[2])[0]
        elif 8 in fields:
            tensor = dict(_fields(fields[8]))
            content = tensor.get(4, tensor.get(5, b""))  # as bytes, or as a list of numbers
            if tensor.get(1) == 1 and len(content) == 4:  # one 32-bit number
                yield tag, struct.unpack("<f", content)[0]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and content of each field of a protocol buffer."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            return
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return an integer of 7 bits a byte, and the place behind it."""
    number = shift = 0
    while place < len(message):
        byte = message[place]
        number |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            break
    return number, place
