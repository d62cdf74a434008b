"""An input pipeline of minibatches; the pipeline on the device, and that of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sweeps.trial import Batch
from trainables.inputs.feed import Feed, as_pixels

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
