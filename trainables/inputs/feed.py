"""The parts of a data set, the form of inputs and the order of samples, for all input pipelines.

The samples of every step's global batch are the same, in the same order, for any number of ranks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeps.trial import Batch
from trainables.data import Dataset
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.sequences import Sequences
from trainables.torch_state import generator


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
