"""Data sets of torchvision: those that it can download, and folders of images by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import filelock
import torch
import torchvision
from torchvision import transforms

from trainables.availability import FOLDERS, class_folders, no_classes, no_set
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


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """`path/{train,val}/CLASS/*.jpg` (or `test` instead of `val`): torchvision's ImageFolder, decoded into memory.

    `val` is the test set: a validation split is held out from `train`, as for all data.
    """

    path: str
    size: int = 64
    """Height and width in pixels: the shorter side is scaled to it, and the middle of the longer one is kept."""

    def files(self) -> Sequence[Path]:
        """Return all images of both splits."""
        return [Path(file) for split in self._splits() for file, _ in split.samples]

    def read(self, device: str) -> Samples:
        """Decode every image to RGB and a square of `size` pixels."""
        if self.size < 1:
            raise DataError(f"size must be at least 1 pixel, not {self.size}")
        train, test = self._splits()
        if train.classes != test.classes:
            different = ", ".join(sorted({*train.classes} ^ {*test.classes}))
            raise DataError(f"{train.root} and {test.root} have different classes: {different}")
        scaled = transforms.Compose(
            [transforms.Resize(self.size), transforms.CenterCrop(self.size), transforms.PILToTensor()]
        )
        splits = []
        for split in (train, test):
            x = torch.empty((len(split), 3, self.size, self.size), dtype=torch.uint8)
            for place, (file, _) in enumerate(split.samples):
                try:
                    x[place] = scaled(split.loader(file))
                except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a broken PNG
                    raise DataError(f"{file} cannot be read: {error}") from error
            splits.append((x, torch.as_tensor(split.targets, dtype=torch.int64)))
        return Samples(*splits[0], *splits[1], len(train.classes))

    def _splits(self) -> list[Any]:
        """Return torchvision's data sets for training and testing."""
        root = Path(self.path).expanduser().resolve()
        if missing := list(no_classes(root)):
            raise DataError(missing[0])
        try:
            return [torchvision.datasets.ImageFolder(str(folder)) for folder in class_folders(root)]
        except FileNotFoundError as error:  # no class, or a class without images
            raise DataError(str(error).replace("\n", " ")) from error


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
