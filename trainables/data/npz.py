"""A NumPy archive of images and labels."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainables.data.dataset import DataError, Samples, channels_first
from trainables.data_place import ARRAYS, no_archive


@dataclass(frozen=True, kw_only=True)
class Npz:
    """`x_train, y_train, x_test, y_test`: uint8 N×H×W×C or N×H×W, and integers N or N×1."""

    path: str
    num_classes: int | None = None
    """None: one more than the highest label."""

    def files(self) -> Sequence[Path]:
        """The archive."""
        path = Path(self.path).resolve()
        if not path.is_file():
            raise DataError(no_archive(path))
        return [path]

    def read(self, device: str) -> Samples:
        """The four arrays; pickled objects are refused."""
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
    if array.ndim == 2 and array.shape[1] == 1:  # as Keras stores CIFAR
        array = array[:, 0]
    return torch.from_numpy(array.astype(np.int64))
