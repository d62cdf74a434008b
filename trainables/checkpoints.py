"""The checkpoints of one trial: durable files, one per rank and generation, of which the last two are kept.

A file's name holds its generation, its rank and a digest of its content, so that damage is detected. The content is
tensors and plain values only, so that reading a file runs no code. This module imports torch only when it is needed.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from trainables.shared_tensors import SharedTensors

GENERATIONS_KEPT = 2  # files kept per rank: the newest, and the one before in case the newest is damaged

_NAME = re.compile(r"(\d{8})-rank(\d+)of(\d+)-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A checkpoint that a trial continues from."""

    state: Mapping[str, Any]
    """The common state with the rank's own; without the latter if another number of ranks has saved it."""
    tensors: SharedTensors | None
    reported: Mapping[str, Any]  # what the trial had reported by then: see `Checkpoints.keep`


class Checkpoints:
    """The checkpoints of a trial as one rank writes and reads them; rank 0's file also holds the common state."""

    def __init__(self, folder: Path, *, trial_id: str, rank: int, world_size: int, device: str) -> None:
        self._generations = Generations(folder=folder, rank=rank, world_size=world_size)
        self._rank, self._device = rank, device
        self._owner = trial_id
        self._number = 0

    def keep(
        self,
        state: Mapping[str, Any],
        own: Mapping[str, Any],
        reported: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Write the next checkpoint: `state` and `reported` from rank 0, `own` from each rank, and shared tensors.

        With `alone` each rank has tensors that no other shares. Raises OSError if the file cannot be written, TypeError
        for values that cannot be read back.
        """
        self._number += 1  # on all ranks, also on one whose disk is full
        content: dict[str, Any] = {"owner": self._owner, "own": dict(own)}
        if self._rank == 0:
            content |= {"state": dict(state), "reported": dict(reported)}
        if tensors is not None:
            from trainables.shared_tensors import chunks_of

            content |= {"chunks": chunks_of(tensors, alone=alone), "alone": alone}
        self._generations.write(self._number, packed(content))

    def last(self) -> Restored | None:
        """Return the newest undamaged checkpoint of this trial that all its ranks have saved.

        The tensors of its state are on the device, shared ones on the CPU.
        """
        newest = self._generations.newest() if self._generations.folder.is_dir() else None
        if newest is None:
            return None
        number, contents = newest
        import torch

        # On the CPU first: the parts of other ranks need not fit the device.
        read = functools.partial(torch.load, map_location="cpu", weights_only=True)
        files: list[dict[str, Any]] = [read(io.BytesIO(contents[rank])) for rank in range(len(contents))]
        first = files[0]
        # A folder may be a copy of another trial's.
        if first["owner"] != self._owner:
            return None
        self._number = number
        # Random numbers and losses of another number of ranks belong to none of these.
        has_own = len(files) == self._generations.world_size
        own = files[self._rank]["own"] if has_own else {}
        tensors = None
        if "chunks" in first:
            from trainables.shared_tensors import SharedTensors

            # A tensor's parts may be in any rank's file, so that each rank reads all of them.
            alone = bool(first["alone"])
            sources = [files[self._rank]] if alone else files
            tensors = SharedTensors(chunks=[chunk for file in sources for chunk in file["chunks"]], alone=alone)
        state = placed({**first["state"], **own}, self._device)
        return Restored(state=state, tensors=tensors, reported=first["reported"])

    def damaged(self) -> list[str]:
        """Return the names of files whose content has changed since they were written."""
        return self._generations.damaged()


@dataclass(frozen=True, kw_only=True)
class Generations:
    """One rank's view of the folder that all ranks of a trial write to."""

    folder: Path
    rank: int
    world_size: int

    def write(self, number: int, content: bytes | memoryview) -> None:
        """Write this rank's file of a generation durably, and delete its files before the previous generation.

        A crash at any point leaves the previous generation intact. Raises OSError.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"{number:08d}-rank{self.rank}of{self.world_size}-{_digest(content)}.pt"
        # Under another name until it is complete: a crash must not leave half a checkpoint.
        aside = path.with_suffix(".aside")
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # fsync of a file covers its content, not its name
        finally:
            os.close(directory)
        for other, generation, rank, _ in self._files():
            # Rank 0 also deletes the files of ranks that there were before with more of them.
            is_own = rank == self.rank or (self.rank == 0 and rank >= self.world_size)
            if is_own and other != path and not number - GENERATIONS_KEPT < generation < number:
                other.unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[int, bytes]] | None:
        """Return the last generation with an undamaged file from every rank, and the contents by rank; None if none.

        Any number of ranks may have written it. All ranks find the same generation as long as none of them writes.
        """
        # A generation counts only as a whole: its ranks have trained different parts.
        paths: dict[tuple[int, int], dict[int, Path]] = {}
        for path, number, rank, world_size in self._files():
            paths.setdefault((number, world_size), {})[rank] = path
        for number, world_size in sorted(paths, reverse=True):
            by_rank = paths[number, world_size]
            contents = {rank: content for rank, path in by_rank.items() if (content := _undamaged(path))}
            if set(range(world_size)) == set(contents):
                return number, contents
        return None

    def damaged(self) -> list[str]:
        """Return the names of files whose content has changed since they were written."""
        return sorted(path.name for path, *_ in self._files() if _undamaged(path) is None)

    def _files(self) -> Iterator[tuple[Path, int, int, int]]:
        """Yield path, generation, rank and number of ranks of every checkpoint file in the folder."""
        for path in sorted(self.folder.glob("*.pt")):
            if named := _NAME.fullmatch(path.name):
                yield path, int(named[1]), int(named[2]), int(named[3])


def _undamaged(path: Path) -> bytes | None:
    # In a foreign folder a pipe may have this name, and reading it would not end.
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError:
        return None
    return content if path.name.endswith(f"-{_digest(content)}.pt") else None


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


MAX_TIME_SHARE = 0.01  # the share of the training time that writing checkpoints may take


@dataclass(kw_only=True)
class CheckpointPace:
    """Decides at the ends of epochs whether a checkpoint is due: `every_s` apart, less often if writing is slow."""

    every_s: float
    last_s: float = 0.0  # seconds of training before the last checkpoint
    cost_s: float = 0.0  # seconds that writing the last checkpoint took

    def due(self, train_s: float) -> bool:
        """Return whether a checkpoint is due after so many seconds of training."""
        return train_s - self.last_s >= max(self.every_s, self.cost_s / MAX_TIME_SHARE)

    def kept(self, train_s: float, cost_s: float) -> None:
        """Note that a checkpoint was written after `train_s`, in `cost_s`."""
        self.last_s, self.cost_s = train_s, cost_s


PLAIN = (str, bytes, int, float, bool, type(None))
"""Exactly these types: numpy's float64 is also a float, and could not be read back."""


def packed(state: Mapping[str, Any]) -> memoryview:
    """Return the state as bytes for torch.load(…, weights_only=True). Raises TypeError that names a wrong value."""
    import torch

    def require_plain(value: Any, place: str) -> None:
        if type(value) in (dict, OrderedDict):
            for key, item in value.items():
                require_plain(key, f"a key of {place}")
                require_plain(item, f"{place}[{key!r}]")
        elif type(value) in (list, tuple):
            for index, item in enumerate(value):
                require_plain(item, f"{place}[{index}]")
        elif type(value) not in PLAIN and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{place} is a {type(value).__name__}; a checkpoint holds tensors, numbers, strings, lists and dicts"
            )

    require_plain(dict(state), "state")
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getbuffer()


def placed(value: Any, device: str) -> Any:
    """Return nested dicts, lists and tuples with their tensors on the device."""
    if type(value) in (dict, OrderedDict):
        return type(value)((key, placed(item, device)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(placed(item, device) for item in value)
    return value if type(value) in PLAIN else value.to(device)
