"""Local data sets: an .npz archive, scikit-learn's digits, synthetic images."""

from __future__ import annotations

import importlib.util
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from trainables.availability import ARRAYS, no_archive
from trainables.data.dataset import DataError, Samples, channels_first


@dataclass(frozen=True, kw_only=True)
class Npz:
    """`x_train, y_train, x_test, y_test`: uint8 N×H×W×C or N×H×W, and integers N or N×1."""

    path: str
    num_classes: int | None = None  # None: one more than the highest label

    def files(self) -> Sequence[Path]:
        """Return the archive."""
        path = Path(self.path).resolve()
        if not path.is_file():
            raise DataError(no_archive(path))
        return [path]

    def read(self, device: str) -> Samples:
        """Read the four arrays; pickled objects are refused."""
        (path,) = self.files()
        try:
            arrays = _arrays(path)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error
        train_x, test_x = _images(arrays, "x_train"), _images(arrays, "x_test")
        train_y, test_y = _labels(arrays, "y_train"), _labels(arrays, "y_test")
        highest = max((int(y.max()) for y in (train_y, test_y) if len(y)), default=0)
        return Samples(train_x, train_y, test_x, test_y, self.num_classes or highest + 1)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError("it is not an .npz archive, or is truncated")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as archive:
            missing = [key for key in ARRAYS if key not in archive]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}")
            return {key: archive[key] for key in ARRAYS}


def _images(arrays: dict[str, np.ndarray], key: str) -> torch.Tensor:
    array = arrays[key]
    if array.dtype != np.uint8:
        raise DataError(f"{key} is {array.dtype}, not uint8")
    return channels_first(torch.from_numpy(array))


def _labels(arrays: dict[str, np.ndarray], key: str) -> torch.Tensor:
    array = arrays[key]
    if array.dtype.kind not in "iu":
        raise DataError(f"{key} is {array.dtype}, not integers")
    if array.ndim == 2 and array.shape[1] == 1:  # as in Keras' CIFAR
        array = array[:, 0]
    return torch.from_numpy(array.astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,797 grey images of 8×8 pixels: every fifth image of each class is for testing (360), the rest for training."""

    def files(self) -> Sequence[Path]:
        """Return the table inside scikit-learn."""
        # Found without an import of scikit-learn, which would take longer than a trial.
        spec = importlib.util.find_spec("sklearn")
        if spec is None or not spec.submodule_search_locations:
            raise DataError("scikit-learn, which ships the digits, is not installed")
        return [Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"]

    def read(self, device: str) -> Samples:
        """Read the grey levels 0 to 16, scaled to 0 to 255."""
        table = torch.from_numpy(np.loadtxt(self.files()[0], delimiter=",", dtype=np.int64))
        x = (table[:, :64] * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
        y = table[:, 64].contiguous()
        by_class = torch.argsort(y, stable=True)
        testing = torch.zeros(len(y), dtype=torch.bool)
        testing[by_class[::5]] = True
        return Samples(x[~testing], y[~testing], x[testing], y[testing], 10)


GRID = 4  # patches per side: coarse enough for models with pooling, fine enough for models without


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Noise of 0 to 127 over patches of 0 to 127, both uint8; equal seeds give equal data on the same kind of device.

    Each class has its brightness for each patch; labels are drawn at random, and an image has the brightnesses of its
    label. `dense` is for segmentation: each patch has a class and its brightness.
    """

    shape: Sequence[int] = (3, 32, 32)  # channels, height, width in pixels
    num_classes: int = 10
    train_size: int = 50_000
    test_size: int = 10_000
    seed: int = 0
    dense: bool = False

    def files(self) -> Sequence[Path]:
        """Return no files."""
        return []

    def read(self, device: str) -> Samples:
        """Make both splits on `device`."""
        if len(self.shape) != 3 or min(*self.shape, self.num_classes, self.train_size, self.test_size) < 1:
            raise DataError(f"shape {list(self.shape)}, num_classes and sizes need 3 sides, and numbers of at least 1")
        generator = torch.Generator(device).manual_seed(self.seed)
        levels = _random(128, (self.num_classes, self.shape[0], GRID, GRID), torch.uint8, generator)
        splits = []
        for count in (self.train_size, self.test_size):
            if self.dense:
                patches = _random(self.num_classes, (count, 1, GRID, GRID), torch.uint8, generator)
                y = self._enlarge(patches).to(torch.int64).squeeze(1)
                x = levels[:, :, 0, 0][y].permute(0, 3, 1, 2).contiguous()
            else:
                y = _random(self.num_classes, (count,), torch.int64, generator)
                x = self._enlarge(levels)[y]
            splits.append((x.add_(_random(128, tuple(x.shape), torch.uint8, generator)), y))
        return Samples(*splits[0], *splits[1], self.num_classes)

    def _enlarge(self, patches: torch.Tensor) -> torch.Tensor:
        """Enlarge N×C×GRID×GRID to N×C×H×W."""
        return functional.interpolate(patches, size=tuple(self.shape[1:]), mode="nearest")


def _random(bound: int, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(bound, shape, dtype=dtype, device=generator.device, generator=generator)
