"""Random crops, flips and cut-outs, of many images at once, on whichever device they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Which changes an image may undergo. All random numbers come from `draw`, a column for each image.

    Raises ValueError for numbers that cannot be.
    """

    crop_padding: int = 0
    """Black pixels added on each side before a crop of the original size is taken at random; 0 takes none."""
    flip: bool = False
    """Whether every other image, on average, is mirrored left to right."""
    cutout: int = 0
    """Side of the square, in pixels, whose inside becomes the mean colour; it may stand over the edge. 0: none."""

    def __post_init__(self) -> None:
        for name in ("crop_padding", "cutout"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"data.augment.{name}={value!r} is not a number of pixels")

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return self.crop_padding > 0 or self.flip

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Random numbers for `count` images: int64, 5×count (crop row and column, flip, row and column of the cut).

        0×count, and nothing drawn, where nothing changes.
        """
        if not self.moves and not self.cutout:
            return torch.empty(0, count, dtype=torch.int64)
        bounds = (2 * self.crop_padding + 1, 2 * self.crop_padding + 1, 2 if self.flip else 1, height, width)
        return torch.stack([torch.randint(bound, (count,), generator=generator) for bound in bounds])

    def pad(self, pixels: Tensor) -> Tensor:
        """N×H×W or N×H×W×C with the margin that crops may reach into."""
        margins = (self.crop_padding,) * 4
        return F.pad(pixels, margins if pixels.ndim == 3 else (0, 0, *margins))

    def take(self, padded: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        """The images or masks at `index`, cropped and flipped: one gather, of N×H×W×C or N×H×W."""
        row, column, flip = draws[:3]
        height, width = (side - 2 * self.crop_padding for side in padded.shape[1:3])
        rows = row[:, None] + torch.arange(height, device=padded.device)
        across = torch.arange(width, device=padded.device)
        columns = column[:, None] + torch.where(flip[:, None] == 1, width - 1 - across, across)
        return padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]

    def cut(self, images: Tensor, draws: Tensor) -> Tensor:
        """N×C×H×W normalised images, in place, with a square of zeros, which is the mean colour, in each."""
        if self.cutout:
            inside = [
                _within(centre, self.cutout, side) for centre, side in zip(draws[3:5], images.shape[2:4], strict=True)
            ]
            images.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0)
        return images


def _within(centre: Tensor, length: int, side: int) -> Tensor:
    """N×side: which places lie in the stretch of this length around each of the N centres."""
    offset = torch.arange(side, device=centre.device) - (centre[:, None] - length // 2)
    return (offset >= 0) & (offset < length)
