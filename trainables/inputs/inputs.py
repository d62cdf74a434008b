"""Where batches come from. Every step's global batch is the same samples in the same order for any number of ranks.

Random crops, flips and cut-outs, of many images at once, on whichever device they are.

Which images are trained on, which choose, and which only report.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trainables.context import Batch
from trainables.data import Dataset
from trainables.torch_state import generator


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


@dataclass(frozen=True, kw_only=True)
class Part:
    """Images uint8 N×C×H×W and their targets."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Disjoint parts of a data set."""

    train: Part
    validation: Part
    test: Part

    @staticmethod
    def of(data: Dataset, *, val_fraction: float, seed: int) -> Split:
        """Hold that share of the training set out, drawn by the seed; the test set is the data's own."""
        count = len(data.train_x)
        order = torch.randperm(count, generator=generator(seed, "validation")).to(data.train_x.device)
        held, kept = order.tensor_split([round(count * val_fraction)])
        return Split(
            train=Part(images=data.train_x[kept], targets=data.train_y[kept]),
            validation=Part(images=data.train_x[held], targets=data.train_y[held]),
            test=Part(images=data.test_x, targets=data.test_y),
        )


Minibatch = tuple[Tensor, Tensor]
"""Normalised images N×C×H×W and their targets (N, or N×H×W), both on the device: one forward pass of one rank."""

BLOCK_BYTES = 64 * 2**20
"""Prepared ahead in one go: many steps of small batches, so that a step itself prepares nothing."""


class Inputs(Protocol):
    """A rank's part of the training data."""

    feed: Feed

    def epoch(self, number: int, start: int = 0) -> Iterator[Minibatch]:
        """One epoch's forward passes in order, from sample number `start` of its order on.

        `grad_accum_steps` make a step; the last partial step is left out.
        """

    def rebatch(self, batch: Batch) -> None:
        """Let the epochs asked for from now on come in other batches, in the same order."""

    def close(self) -> None:
        """End whatever works ahead for this input."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a model is fed: where, in which format, normalised how (per channel, on the scale 0..1)."""

    device: str
    dtype: torch.dtype
    channels_last: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 N×H×W×C on the device → (pixel / 255 - mean) / std, N×C×H×W."""
        shift, scale = self._affine
        # Converted, not made contiguous: grey images count as contiguous either way, and take the other's slow paths.
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        wide = pixels.permute(0, 3, 1, 2).to(shift.dtype, memory_format=layout)
        return torch.addcmul(shift, wide, scale).to(self.dtype)

    @functools.cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        # Half formats hold 8-bit pixels badly: normalise in float32, round once at the end.
        wide = self.dtype if self.dtype.itemsize >= 4 else torch.float32
        # Made once: a copy to the device waits for everything that the device has still to do.
        mean, std = torch.tensor([self.mean, self.std], dtype=wide, device=self.device)[:, :, None, None]
        return -mean / std, 1 / (255 * std)


def as_pixels(images: Tensor, device: str) -> Tensor:
    """uint8 N×C×H×W → N×H×W×C on the device: a sample's channels lie together, as gathers and channels_last want."""
    return images.to(device).permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What to train on, and how: the same for every way in which it may reach the model."""

    part: Part
    form: Form
    augmentation: Augmentation = Augmentation()
    batch: Batch
    seed: int

    def __post_init__(self) -> None:
        if not self.steps_from(0):
            raise ValueError(
                f"global_batch_size={self.batch.global_batch_size} is more than the {len(self.part)} training samples"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in an epoch."""
        return self.steps_from(0)

    def steps_from(self, start: int) -> int:
        """Whole steps in what is left of an epoch behind `start` samples."""
        return (len(self.part) - start) // self.batch.global_batch_size

    def order(self, epoch: int) -> tuple[Tensor, torch.Generator]:
        """The epoch's permutation, and the stream of random numbers behind it, for its augmentation."""
        source = generator(self.seed, "epoch", epoch)
        return torch.randperm(len(self.part), generator=source), source


class ResidentInputs:
    """The whole training set on the device as uint8; shuffled, augmented and normalised there."""

    def __init__(self, feed: Feed, rank: int) -> None:
        self.feed, self._rank = feed, rank
        images, targets = feed.part.images, feed.part.targets
        self._pixels = feed.augmentation.pad(as_pixels(images, feed.form.device))
        self._targets = targets.to(feed.form.device)
        if targets.ndim == 3:
            self._targets = feed.augmentation.pad(self._targets)
        self._height, self._width = images.shape[2:]
        self._drawn: dict[int, Tensor] = {}

    def epoch(self, number: int, start: int = 0) -> Iterator[Minibatch]:
        """See `Inputs`; the order is a permutation by seed and epoch."""
        plan = self._plan(number, start)
        starts = range(0, plan.shape[1], self._block_steps)
        for begin in starts:
            if begin == starts[-1]:  # while the device is busy: an epoch that is drawn at its start lets it wait
                self._drawn[number + 1] = self._draw(number + 1)
            yield from self._block(plan[:, begin : begin + self._block_steps].flatten(1))

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`."""
        self.feed = replace(self.feed, batch=batch)
        self._drawn.clear()

    def close(self) -> None:
        """Nothing works ahead."""

    def _plan(self, number: int, start: int) -> Tensor:
        drawn = self._drawn.pop(number, None)
        return self._draw(number, start) if drawn is None or start else drawn

    def _draw(self, number: int, start: int = 0) -> Tensor:
        """int64, (1 or 6)×steps×(this rank's samples a step): which sample, and what was drawn for its augmentation."""
        feed, batch = self.feed, self.feed.batch
        order, source = feed.order(number)
        plan = torch.stack([order, *feed.augmentation.draw(len(order), self._height, self._width, source)])
        count = feed.steps_from(start)
        steps = plan[:, start : start + count * batch.global_batch_size].unflatten(1, (count, batch.global_batch_size))
        ends = [batch.grad_accum_steps * sum(batch.shares[:rank]) for rank in (self._rank, self._rank + 1)]
        mine: Tensor = steps[:, :, ends[0] : ends[1]].contiguous()
        if feed.form.device == "cpu":
            return mine
        return mine.pin_memory().to(feed.form.device, non_blocking=True)  # the GPU does not wait for an epoch's start

    @property
    def _block_steps(self) -> int:
        batch = self.feed.batch
        a_step = batch.shares[self._rank] * batch.grad_accum_steps * self._pixels[0].numel()
        return max(1, BLOCK_BYTES // (a_step * self.feed.form.dtype.itemsize))

    def _block(self, plan: Tensor) -> Iterator[Minibatch]:
        index, draws = plan[0], plan[1:]
        targets = self._targets[index] if self._targets.ndim == 1 else self._taken(self._targets, index, draws)
        pixels = self.feed.form.normalise(self._taken(self._pixels, index, draws))
        images = self.feed.augmentation.cut(pixels, draws)
        share = self.feed.batch.shares[self._rank]
        return zip(images.split(share), targets.split(share), strict=True)

    def _taken(self, padded: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        change = self.feed.augmentation
        return change.take(padded, index, draws) if change.moves else padded.index_select(0, index)
