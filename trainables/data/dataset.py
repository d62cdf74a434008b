"""A checked set of labelled images in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch


class DataError(ValueError):
    """Data are missing, corrupt or malformed; the message is one line."""


@dataclass(frozen=True)
class Samples:
    """Images and labels, as a source reads them."""

    train_x: torch.Tensor  # uint8, N×C×H×W
    train_y: torch.Tensor  # int64 class indices: N, or N×H×W for segmentation
    test_x: torch.Tensor
    test_y: torch.Tensor
    num_classes: int


@dataclass(frozen=True, kw_only=True)
class Dataset(Samples):
    """Checked images and labels in memory; the same tensors serve several trials, so they must not be changed.

    Raises DataError if shapes, dtypes, counts or labels do not fit together.
    """

    mean: tuple[float, ...]  # mean of each channel, with pixels from 0 to 1
    std: tuple[float, ...]  # standard deviation of each channel, with pixels from 0 to 1
    version: str  # name and content hash: equal for equal tensors, whatever their source

    def __post_init__(self) -> None:
        _check("training", self.train_x, self.train_y, self.num_classes)
        _check("test", self.test_x, self.test_y, self.num_classes)
        if self.train_x.shape[1:] != self.test_x.shape[1:] or self.train_y.shape[1:] != self.test_y.shape[1:]:
            shapes = " and ".join("×".join(map(str, x.shape[1:])) for x in (self.train_x, self.test_x))
            raise DataError(f"training and test images differ in shape: {shapes}")
        channels = self.train_x.shape[1]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise DataError(f"mean and std need a value for each of {channels} channels, std above 0")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of an image."""
        _, channels, height, width = self.train_x.shape
        return channels, height, width


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """Turn N×H×W or N×H×W×C into a contiguous N×C×H×W."""
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.ndim != 4:
        raise DataError(f"images have shape {tuple(images.shape)}, not N×H×W or N×H×W×C")
    return images.permute(0, 3, 1, 2).contiguous()


def channel_statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and standard deviation of each channel on the scale 0 to 1, from N×C×H×W uint8.

    A constant channel gets the standard deviation 1, so that division is possible.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        shares = torch.bincount(channel.flatten(), minlength=256).cpu().double() / channel.numel()
        mean = (shares * levels).sum()
        means.append(mean.item())
        stds.append((shares * (levels - mean) ** 2).sum().sqrt().item() or 1.0)
    return tuple(means), tuple(stds)


def content_hash(samples: Samples) -> str:
    """Return 12 hex digits that change with any pixel, label, shape or the number of classes."""
    digest = hashlib.sha256(str(samples.num_classes).encode())
    for tensor in (samples.train_x, samples.train_y, samples.test_x, samples.test_y):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:12]


def _check(split: str, x: torch.Tensor, y: torch.Tensor, num_classes: int) -> None:
    if x.dtype != torch.uint8 or x.ndim != 4:
        raise DataError(f"{split} images are {x.dtype} of shape {tuple(x.shape)}, not uint8 N×C×H×W")
    if y.dtype != torch.int64 or y.shape not in (x.shape[:1], (x.shape[0], *x.shape[2:])):
        raise DataError(f"{split} labels are {y.dtype} of shape {tuple(y.shape)}, for images of {tuple(x.shape)}")
    if not x.numel():
        raise DataError(f"there are no {split} images")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{split} labels go from {low} to {high}, not within 0 to {num_classes - 1}")
