"""Random augmentation of many images at once, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random crops, flips and cut-outs of many images at once. `draw` draws all random numbers, a column per image.

    Raises ValueError for values out of range.
    """

    crop_padding: int = 0  # black pixels added on each side before a random crop of the original size; 0: no crop
    flip: bool = False  # whether an image is mirrored left to right with probability 1/2
    cutout: int = 0
    """Side, in pixels, of a random square that is filled with the mean colour and may cross the edge; 0: none."""

    def __post_init__(self) -> None:
        for name in ("crop_padding", "cutout"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"data.augment.{name}={value!r} is not a number of pixels")

    @property
    def moves(self) -> bool:
        """True if pixels change their places."""
        return self.crop_padding > 0 or self.flip

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Draw for `count` images: int64, 5×count (crop row and column, flip, row and column of the cut-out).

        Returns 0×count and draws nothing if nothing is augmented.
        """
        if not self.moves and not self.cutout:
            return torch.empty(0, count, dtype=torch.int64)
        bounds = (2 * self.crop_padding + 1, 2 * self.crop_padding + 1, 2 if self.flip else 1, height, width)
        # Drawn for all images at once, on the CPU: the numbers must not depend on the ranks, the passes or the device.
        return torch.stack([torch.randint(bound, (count,), generator=generator) for bound in bounds])

    def pad(self, pixels: Tensor) -> Tensor:
        """Return N×H×W or N×H×W×C with the margin for crops."""
        # Before the training: padding each batch would copy it once more.
        margins = (self.crop_padding,) * 4
        return F.pad(pixels, margins if pixels.ndim == 3 else (0, 0, *margins))

    def take(self, padded: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        """Return the images or masks at `index`, cropped and flipped in one gather from N×H×W×C or N×H×W."""
        row, column, flip = draws[:3]
        height, width = (side - 2 * self.crop_padding for side in padded.shape[1:3])
        rows = row[:, None] + torch.arange(height, device=padded.device)
        across = torch.arange(width, device=padded.device)
        columns = column[:, None] + torch.where(flip[:, None] == 1, width - 1 - across, across)
        return padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]

    def cut(self, images: Tensor, draws: Tensor) -> Tensor:
        """Cut a square out of each normalised image N×C×H×W, in place; zero is the mean colour."""
        if self.cutout:
            inside = []  # N×H and N×W: which rows and columns the square covers
            for centre, side in zip(draws[3:5], images.shape[2:4], strict=True):
                offset = torch.arange(side, device=centre.device) - (centre[:, None] - self.cutout // 2)
                inside.append((offset >= 0) & (offset < self.cutout))
            images.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0)
        return images
