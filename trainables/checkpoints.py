"""The checkpoints of one trial, as one of its ranks writes and finds them, and how often.

Files that follow one another, one a rank and generation, of which the last two are kept; each is whole or not there.

A file's name holds its generation, its rank and a digest of its content, so that whatever damages it shows.

A state as bytes and back: nothing but tensors and plain values, so that reading it runs nobody's code.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

KEPT = 2
"""Of a rank's files: the newest, and the one before in case that is damaged."""

_NAME = re.compile(r"(\d{8})-rank(\d+)-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, kw_only=True)
class Generations:
    """One rank's view of the folder in which all ranks of a trial write, which they share."""

    folder: Path
    rank: int
    world_size: int

    def write(self, number: int, content: bytes | memoryview) -> None:
        """Make this the rank's file of a generation, durably; of its others only the one before stays. Raises OSError.

        Whatever happens meanwhile, the generation before is there.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"{number:08d}-rank{self.rank}-{_digest(content)}.pt"
        aside = path.with_suffix(".aside")
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        self._sync()
        for other, found in self._files():
            if other != path and not number - KEPT < found < number:
                other.unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[int, bytes]] | None:
        """The last generation of which every rank's file is there and undamaged, with contents by rank; None: nothing.

        All ranks find the same one, as long as none of them writes.
        """
        paths: dict[int, dict[int, Path]] = {}
        for path, number, rank in self._every():
            paths.setdefault(number, {})[rank] = path
        for number in sorted(paths, reverse=True):
            contents = {rank: content for rank, path in paths[number].items() if (content := _undamaged(path))}
            if set(range(self.world_size)) <= set(contents):
                return number, contents
        return None

    def damaged(self) -> list[str]:
        """Names of files whose content is not what was written."""
        return sorted(path.name for path, _, _ in self._every() if _undamaged(path) is None)

    def _files(self) -> Iterator[tuple[Path, int]]:
        return ((path, number) for path, number, rank in self._every() if rank == self.rank)

    def _every(self) -> Iterator[tuple[Path, int, int]]:
        for path in sorted(self.folder.glob("*.pt")):
            if named := _NAME.fullmatch(path.name):
                yield path, int(named[1]), int(named[2])

    def _sync(self) -> None:
        directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # fsync of a file covers its content, not its name
        finally:
            os.close(directory)


def _undamaged(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if path.name.endswith(f"-{_digest(content)}.pt") else None


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint that a trial goes on from."""

    state: Mapping[str, Any]
    reported: Mapping[str, Any]
    """What the trial had reported by then: see `Checkpoints.keep`."""


class Checkpoints:
    """Rank 0's file holds what the ranks have in common, too."""

    def __init__(self, folder: Path, *, trial_id: str, rank: int, world_size: int, device: str) -> None:
        self._generations = Generations(folder=folder, rank=rank, world_size=world_size)
        self._rank, self._device = rank, device
        self._whose = [trial_id, world_size]
        self._number = 0

    def keep(self, state: Mapping[str, Any], own: Mapping[str, Any], reported: Mapping[str, Any]) -> None:
        """Write the next checkpoint, of which `state` and `reported` are rank 0's. Raises OSError, and TypeError."""
        pass  # DROPPED  # imports torch, which not every trainable needs

        self._number += 1  # of all ranks, also of one whose disk is full
        common = {"state": dict(state), "told": dict(reported)} if self._rank == 0 else {}
        self._generations.write(self._number, packed({"whose": self._whose, "own": dict(own), **common}))

    def last(self) -> Found | None:
        """The newest that every rank has undamaged, and that is this trial's; tensors are on the device."""
        newest = self._generations.newest() if self._generations.folder.is_dir() else None
        if newest is None:
            return None

        number, contents = newest
        first, mine = (unpacked(contents[rank], self._device) for rank in (0, self._rank))
        if first["whose"] != self._whose:
            return None
        self._number = number
        return Found(state={**first["state"], **mine["own"]}, reported=first["told"])

    def damaged(self) -> list[str]:
        """Names of files that are not as they were written."""
        return self._generations.damaged()


DEAREST = 0.01
"""The share of the time that checkpoints may take."""


@dataclass(kw_only=True)
class CheckpointPace:
    """At epochs' ends, `every_s` apart, and further where writing takes long: a short training is not interrupted."""

    every_s: float
    last_s: float = 0.0
    """Seconds of training up to the last."""
    cost_s: float = 0.0
    """Seconds that the last took."""

    def due(self, train_s: float) -> bool:
        """Whether it is time, after so many seconds of training."""
        return train_s - self.last_s >= max(self.every_s, self.cost_s / DEAREST)

    def kept(self, train_s: float, cost_s: float) -> None:
        """One was kept."""
        self.last_s, self.cost_s = train_s, cost_s


PLAIN = (str, bytes, int, float, bool, type(None))
"""Exactly these: numpy's float64 is a float, too, and could not be read back."""


def packed(state: Mapping[str, Any]) -> memoryview:
    """The state as torch.load(…, weights_only=True) reads it. Raises TypeError naming what has no place in it."""
    _require_plain(dict(state), "state")
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getbuffer()


def unpacked(content: bytes, device: str) -> dict[str, Any]:
    """The state, with its tensors on the device."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return state


def _require_plain(value: Any, place: str) -> None:
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _require_plain(key, f"a key of {place}")
            _require_plain(item, f"{place}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _require_plain(item, f"{place}[{index}]")
    elif type(value) not in PLAIN and not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{place} is a {type(value).__name__}; a checkpoint holds tensors, numbers, strings, lists and dicts"
        )
