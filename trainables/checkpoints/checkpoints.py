"""The checkpoints of one trial, as one of its ranks writes and finds them, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.checkpoints.generations import Generations


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
        from trainables.checkpoints.packing import packed  # imports torch, which not every trainable needs

        self._number += 1  # of all ranks, also of one whose disk is full
        common = {"state": dict(state), "told": dict(reported)} if self._rank == 0 else {}
        self._generations.write(self._number, packed({"whose": self._whose, "own": dict(own), **common}))

    def last(self) -> Found | None:
        """The newest that every rank has undamaged, and that is this trial's; tensors are on the device."""
        newest = self._generations.newest() if self._generations.folder.is_dir() else None
        if newest is None:
            return None
        from trainables.checkpoints.packing import unpacked

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
