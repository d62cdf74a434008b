"""Data sets that torchvision can download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import filelock
import torch
import torchvision

from trainables.availability import FOLDERS, no_set
from trainables.data.dataset import DataError, Samples, channels_first


@dataclass(frozen=True, kw_only=True)
class TorchvisionSet:
    """A data set in torchvision's layout under `root`, downloaded if `download` is true and it is missing."""

    root: str = "data"
    download: bool = False

    source: ClassVar[Any]
    num_classes: ClassVar[int] = 10

    def files(self) -> Sequence[Path]:
        """Return all files, after a download if wanted; several processes may call this at once."""
        folder = self._folder()
        if self.download:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(Path(self.root) / f".{self.source.__name__}.lock"):
                try:
                    if not folder.is_dir():
                        self.source(self.root, download=True)
                except (OSError, RuntimeError) as error:
                    raise DataError(f"cannot download {self.source.__name__} to {folder}: {error}") from error
        if not folder.is_dir():
            raise DataError(no_set(self.source.__name__, folder))
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def _folder(self) -> Path:
        return Path(self.root).resolve() / FOLDERS[self.source.__name__]

    def read(self, device: str) -> Samples:
        """Read both splits, as torchvision decodes them."""
        try:
            train, test = (self.source(self.root, train=train) for train in (True, False))
        except (RuntimeError, OSError, ValueError, KeyError, AssertionError) as error:
            folder = self._folder()
            raise DataError(f"{folder} is incomplete or corrupt ({error}); remove it and fetch it again") from error
        splits = []
        for split in (train, test):
            y = torch.as_tensor(split.targets, dtype=torch.int64)
            splits.append((channels_first(torch.as_tensor(split.data)), y))
        return Samples(*splits[0], *splits[1], self.num_classes)


class MNIST(TorchvisionSet):
    """60,000 + 10,000 handwritten digits, grey, 28×28."""

    source = torchvision.datasets.MNIST


class FashionMNIST(TorchvisionSet):
    """60,000 + 10,000 pieces of clothing, grey, 28×28."""

    source = torchvision.datasets.FashionMNIST


class CIFAR10(TorchvisionSet):
    """50,000 + 10,000 photographs, RGB, 32×32."""

    source = torchvision.datasets.CIFAR10


class CIFAR100(TorchvisionSet):
    """50,000 + 10,000 photographs of 100 classes, RGB, 32×32."""

    source = torchvision.datasets.CIFAR100
    num_classes = 100
