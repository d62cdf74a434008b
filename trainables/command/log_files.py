"""Files with metrics that a command writes: the one that the config names, and logs that are found in its folder."""

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

from google.protobuf.message import DecodeError

from trainables.command.file_tail import FileTail
from trainables.command.output_parser import OutputParser


class MetricsFile:
    """The command's metrics file: lines of JSON and CSV are read as they are written, .json at the end.

    A CSV file may be written anew, as Lightning does: then only further lines count.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.unlink(missing_ok=True)  # of an earlier attempt
        self._lines = FileTail(path)
        self._rows_read = 0
        self._read: tuple[int, int] | None = None  # the size and modification time of the table when it was last read

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Return the lines written since the last call, as lines of JSON; with `ended`, also an unfinished last one."""
        if self._path.suffix not in (".json", ".csv"):
            yield from self._lines.new(ended=ended)
        elif self._path.suffix == ".csv" and self._path.is_file():
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

    def rows(self, reader: OutputParser) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file that is read as a whole. Raises ValueError if it is missing or malformed."""
        if not self._path.is_file():
            raise ValueError(f"trainable.metrics_file: the command wrote no {self._path}")
        content = json.loads(self._path.read_text(encoding="utf-8")) if self._path.suffix == ".json" else []
        for row in content if isinstance(content, list) else [content]:
            if isinstance(row, dict):
                yield from reader.row(row)


MOST_FILES = 1000  # files of a working folder that are looked at
LARGEST = 64 * 2**20  # bytes of a log that is read

_EVENTS = "events.out.tfevents."
_FLOAT = 1  # the type of tensors with 32-bit numbers


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a working folder, the oldest first, so that the latest values are read last."""
    logs = []
    for path in islice(folder.rglob("*"), MOST_FILES):
        is_log = path.suffix == ".csv" or path.name.startswith(_EVENTS)
        if is_log and path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST:
            logs.append(path)
    return sorted(logs, key=lambda log: log.stat().st_mtime)


def rows_of(log: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a log, in the order of its epochs or steps; none if a CSV file has neither."""
    # A file that was found may be unreadable, damaged, or of another kind.
    with suppress(OSError, csv.Error, struct.error, ValueError, TypeError, OverflowError, MemoryError):
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
    from tensorboardX.proto.event_pb2 import Event  # slow to import, and few commands write such logs

    by_step: dict[int, dict[str, Any]] = {}
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        record = data[place + 12 : place + 12 + length]
        place += 16 + length
        if len(record) < length:  # the program was killed while it wrote
            break
        try:
            event = Event.FromString(record)
        except DecodeError:  # a damaged record; those after it have their own lengths
            continue
        values = by_step.setdefault(event.step, {})
        for value in event.summary.value:
            tensor = value.tensor
            if value.HasField("simple_value"):
                values[value.tag] = value.simple_value
            elif tensor.dtype == _FLOAT:
                content = tensor.tensor_content
                numbers = tensor.float_val or struct.unpack(f"<{len(content) // 4}f", content[: len(content) // 4 * 4])
                values |= {value.tag: numbers[0]} if len(numbers) == 1 else {}
    for step, values in by_step.items():
        yield {"step": step, **values}
