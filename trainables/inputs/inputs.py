"""The common parts of input pipelines (augmentation, split, form, feed), the pipeline on the device, that of sequences.

The samples of every step's global batch are the same, in the same order, for any number of ranks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sweeps.trial import Batch
from trainables.data import Dataset
from trainables.inputs.sequences import Sequences
from trainables.torch_state import generator


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


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a data set: images uint8 N×C×H×W and their targets."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: slice) -> tuple[Tensor, Tensor]:
        """Return images and targets."""
        return self.images[index], self.targets[index]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The disjoint parts of a data set: trained on, chosen by, only reported."""

    train: Part | Sequences
    validation: Part | Sequences
    test: Part | Sequences

    @staticmethod
    def of(data: Dataset, *, val_fraction: float, seed: int) -> Split:
        """Hold a share of the training set out, drawn by the seed; the test set is the data set's."""
        # The same samples are held out for all cells of a seed, so that their accuracies can be paired.
        count = len(data.train_x)
        order = torch.randperm(count, generator=generator(seed, "validation")).to(data.train_x.device)
        held, kept = order.tensor_split([round(count * val_fraction)])
        return Split(
            train=Part(images=data.train_x[kept], targets=data.train_y[kept]),
            validation=Part(images=data.train_x[held], targets=data.train_y[held]),
            test=Part(images=data.test_x, targets=data.test_y),
        )


Minibatch = tuple[Tensor, Tensor]
"""Normalised images N×C×H×W and their targets (N or N×H×W), or tokens N×T and the next tokens N×T, on the device: one
forward pass of one rank."""

BLOCK_BYTES = 64 * 2**20  # minibatches are prepared in blocks of about this size: many steps of small batches at once


class Inputs:
    """An input pipeline: a rank's minibatches of the training data."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def minibatches(self, start: int) -> Iterator[Minibatch]:
        """Return the minibatches from sample `start` of the training on, without end: see `Feed.steps`.

        `grad_accum_steps` minibatches make a step.
        """
        raise NotImplementedError

    def rebatch(self, batch: Batch) -> None:
        """Change the batch; call `minibatches` again afterwards. The order of samples stays the same."""
        self.close()
        self.feed = replace(self.feed, batch=batch)

    def close(self) -> None:
        """End the worker processes, if there are any."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a model's inputs: device, format, and normalisation per channel, on the scale 0..1."""

    device: str
    dtype: torch.dtype
    channels_last: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def place(self, images: Tensor) -> Tensor:
        """Return uint8 N×H×W×C on the device for N×C×H×W."""
        return as_pixels(images, self.device)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return (pixel / 255 - mean) / std, N×C×H×W, for pixels uint8 N×H×W×C on the device."""
        shift, scale = self._affine
        # `to`, not `contiguous`: grey images count as contiguous in either layout, and would get the slow one.
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        wide = pixels.permute(0, 3, 1, 2).to(shift.dtype, memory_format=layout)
        return torch.addcmul(shift, wide, scale).to(self.dtype)

    @functools.cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        # Half formats hold 8-bit pixels badly: normalise in float32, round once at the end.
        wide = self.dtype if self.dtype.itemsize >= 4 else torch.float32
        # Made once, because a copy to the device waits until the device has finished its work.
        mean, std = torch.tensor([self.mean, self.std], dtype=wide, device=self.device)[:, :, None, None]
        return -mean / std, 1 / (255 * std)


@dataclass(frozen=True, kw_only=True)
class TokenForm(Form):
    """The form of a language model's inputs: tokens on the device, as they are."""

    dtype: torch.dtype = torch.int64
    channels_last: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def place(self, images: Tensor) -> Tensor:
        """Return the tokens on the device."""
        return images.to(self.device)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return the tokens."""
        return pixels


def as_pixels(images: Tensor, device: str) -> Tensor:
    """Return uint8 N×H×W×C on the device for N×C×H×W: adjacent channels suit gathers and channels_last."""
    return images.to(device).permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Training data and how to batch it, the same for every input pipeline.

    The samples of a training are one stream: the order of epoch 1, then that of epoch 2, and so on. A step takes the
    next samples of the stream. An epoch's remainder, which fills no batch, begins the first step of the next epoch.
    """

    part: Part | Sequences
    form: Form
    augmentation: Augmentation = Augmentation()
    batch: Batch
    seed: int
    epoch_size: int | None = None
    """Samples that count as an epoch; None: all. Each sample is drawn once before any is drawn again."""

    def __post_init__(self) -> None:
        if self.batch.global_batch_size > self.epoch_samples:
            raise ValueError(
                f"global_batch_size={self.batch.global_batch_size} is more than the {self.epoch_samples} training"
                " samples"
            )

    @property
    def images(self) -> Part:
        """The data of pipelines of images."""
        assert isinstance(self.part, Part)
        return self.part

    @property
    def sequences(self) -> Sequences:
        """The data of the pipeline of sequences."""
        assert isinstance(self.part, Sequences)
        return self.part

    @property
    def epoch_samples(self) -> int:
        """The number of samples in an epoch."""
        return min(self.epoch_size or len(self.part), len(self.part))

    def order(self, epoch: int) -> tuple[Tensor, torch.Generator]:
        """Return the numbers of the epoch's samples, a permutation, and its random stream for the augmentation."""
        total, size = len(self.part), self.epoch_samples
        # Epochs shorter than the data walk through one permutation after another, and may end within one.
        passes, start = divmod((epoch - 1) * size, total)
        order, source = _permutation(self.seed, passes + 1, total)
        if size == total:
            return order, source
        following = _permutation(self.seed, passes + 2, total)[0] if start + size > total else order[:0]
        return torch.cat([order[start:], following])[:size], source

    def steps(self, start: int, columns: Callable[[Tensor, torch.Generator], Tensor]) -> Iterator[Tensor]:
        """Yield the steps from sample `start` of the training on, about an epoch at a time, without end.

        `columns` turns an epoch's order and random stream into int64 K×samples, such as sample numbers and draws for
        the augmentation. The steps are K×steps×(global batch).
        """
        size = self.batch.global_batch_size
        # A resumed training draws the same numbers again and skips what was trained: random streams cannot be entered
        # in the middle.
        finished, skipped = divmod(start, self.epoch_samples)
        remainder: Tensor | None = None
        for epoch in itertools.count(finished + 1):
            drawn = columns(*self.order(epoch))
            if remainder is None:
                samples = drawn[:, skipped:]
            else:
                samples = torch.cat([remainder, drawn], dim=1)
            number = samples.shape[1] // size
            remainder = samples[:, number * size :]
            # Only the first epoch may have too few samples left for a step.
            if number:
                yield samples[:, : number * size].unflatten(1, (number, size))

    def passes_of(self, rank: int, steps: Tensor) -> Tensor:
        """Return the rank's part of K×steps×(global batch): K×steps×(its samples), pass after pass.

        A rank's part of a step is contiguous, so that a step's samples are the same for any number of ranks and passes.
        """
        shares, passes = self.batch.shares, self.batch.grad_accum_steps
        first = passes * sum(shares[:rank])
        return steps[:, :, first : first + passes * shares[rank]]


def _permutation(seed: int, passes: int, count: int) -> tuple[Tensor, torch.Generator]:
    """Return the order of the samples in a pass over the data, and the random stream after it."""
    source = generator(seed, "epoch", passes)
    return torch.randperm(count, generator=source), source


class ResidentInputs(Inputs):
    """The pipeline on the device: the whole training set as uint8, shuffled, augmented and normalised there."""

    def __init__(self, feed: Feed, rank: int) -> None:
        super().__init__(feed)
        self._rank = rank
        images, targets = feed.images.images, feed.images.targets
        # As uint8, a quarter of the memory; each block becomes floats when it is needed.
        self._pixels = feed.augmentation.pad(as_pixels(images, feed.form.device))
        self._targets = targets.to(feed.form.device)
        if targets.ndim == 3:
            self._targets = feed.augmentation.pad(self._targets)
        self._height, self._width = images.shape[2:]

    def minibatches(self, start: int) -> Iterator[Minibatch]:
        """See `Inputs`."""
        plans = self._plans(start)
        plan = next(plans)
        while True:
            # One gather for many steps: for small images, launches would take longer than the work.
            *blocks, last = plan.split(self._block_steps, dim=1)
            for block in blocks:
                yield from self._block(block.flatten(1))
            # The next epoch is drawn while the device is busy with the last block, so that it need not wait then.
            plan = next(plans)
            yield from self._block(last.flatten(1))

    def _plans(self, start: int) -> Iterator[Tensor]:
        """Yield the rank's part of `Feed.steps`, sample numbers and augmentations in 1 or 6 rows, on the device."""
        feed = self.feed

        def numbers_and_draws(order: Tensor, source: torch.Generator) -> Tensor:
            return torch.stack([order, *feed.augmentation.draw(len(order), self._height, self._width, source)])

        for steps in feed.steps(start, numbers_and_draws):
            plan = feed.passes_of(self._rank, steps).contiguous()
            if feed.form.device != "cpu":  # so that the GPU need not wait
                plan = plan.pin_memory().to(feed.form.device, non_blocking=True)
            yield plan

    @property
    def _block_steps(self) -> int:
        batch = self.feed.batch
        a_step = batch.shares[self._rank] * batch.grad_accum_steps * self._pixels[0].numel()
        return max(1, BLOCK_BYTES // (a_step * self.feed.form.dtype.itemsize))

    def _block(self, plan: Tensor) -> Iterator[Minibatch]:
        index, draws = plan[0], plan[1:]
        targets = self._targets[index] if self._targets.ndim == 1 else self._take(self._targets, index, draws)
        pixels = self.feed.form.normalise(self._take(self._pixels, index, draws))
        images = self.feed.augmentation.cut(pixels, draws)
        share = self.feed.batch.shares[self._rank]
        return zip(images.split(share), targets.split(share), strict=True)

    def _take(self, padded: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        change = self.feed.augmentation
        return change.take(padded, index, draws) if change.moves else padded.index_select(0, index)


class SequenceInputs(Inputs):
    """The pipeline of sequences. The host reads a step's tokens while the device is busy with earlier steps."""

    def __init__(self, feed: Feed, rank: int) -> None:
        super().__init__(feed)
        self._rank = rank

    def minibatches(self, start: int) -> Iterator[Minibatch]:
        """See `Inputs`."""
        feed = self.feed
        for steps in feed.steps(start, lambda order, source: order[None]):
            numbers = feed.passes_of(self._rank, steps)[0]
            for passes in numbers.unflatten(1, (feed.batch.grad_accum_steps, -1)).flatten(0, 1):
                rows = feed.sequences.rows(passes)
                if feed.form.device != "cpu":  # so that the GPU need not wait
                    rows = rows.pin_memory().to(feed.form.device, non_blocking=True)
                yield rows[:, :-1], rows[:, 1:]
