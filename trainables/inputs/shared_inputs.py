"""One loader for all ranks, in the process of rank 0, which hands every rank its part: usual from 2016 to 2018."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainables.context import Batch
from trainables.inputs.inputs import Feed, Minibatch
from trainables.inputs.loader_inputs import LoaderInputs, Workers
from trainables.process_group import Gang


class SharedInputs:
    """Rank 0 loads the global batch onto its device, and scatters it; the others have neither workers nor images.

    Samples and their order are those of `ResidentInputs`, as with `LoaderInputs`. A batch of a single share is given to
    every rank, whole.
    """

    def __init__(self, feed: Feed, gang: Gang, workers: Workers) -> None:
        # Messages are plain float32 (float64) in any precision: not every format and layout can be sent everywhere.
        wide = feed.form.dtype if feed.form.dtype.itemsize >= 4 else torch.float32
        plain = replace(feed, form=replace(feed.form, dtype=wide, channels_last=False))
        self.feed, self._gang, self._wide = feed, gang, wide
        self._loader = LoaderInputs(plain, range(len(feed.batch.shares)), workers)

    def epoch(self, number: int, start: int = 0) -> Iterator[Minibatch]:
        """See `Inputs`; every rank must take all passes that the others take."""
        form, part, most = self.feed.form, self.feed.part, max(self.feed.batch.shares)
        layout = torch.channels_last if form.channels_last else torch.contiguous_format
        image_place = torch.empty(most, *part.images.shape[1:], dtype=self._wide, device="meta")
        target_place = torch.empty(most, *part.targets.shape[1:], dtype=part.targets.dtype, device="meta")
        for images, targets in self._whole(number, start):
            own = self._scatter(images, like=image_place).to(form.dtype, memory_format=layout)
            yield own, self._scatter(targets, like=target_place)

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`."""
        self.feed = replace(self.feed, batch=batch)
        self._loader.rebatch(batch)

    def close(self) -> None:
        """End the workers."""
        self._loader.close()

    def _whole(self, number: int, start: int) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        if self._gang.rank == 0:
            return self._loader.epoch(number, start)
        return repeat((None, None), self.feed.steps_from(start) * self.feed.batch.grad_accum_steps)

    def _scatter(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        shares = self.feed.batch.shares
        # Every rank's part is as long as the longest: a scatter knows only one shape.
        parts = None if whole is None else list(pad_sequence(whole.split(shares), batch_first=True))
        if parts and len(shares) == 1:
            parts *= self._gang.world_size
        received = self._gang.scatter(parts, torch.empty_like(like, device=self.feed.form.device))
        return received[: shares[self._gang.rank % len(shares)]]


class SameInputs(SharedInputs):
    """Every rank takes the same samples, as the towers of some early scripts did: more ranks see no more of the data.

    The batch of its feed, and so an epoch's number of steps, is that of one rank. Raises ValueError for unequal shares.
    """

    def __init__(self, feed: Feed, gang: Gang, workers: Workers) -> None:
        super().__init__(replace(feed, batch=_of_one_rank(feed.batch)), gang, workers)

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`."""
        super().rebatch(_of_one_rank(batch))


def _of_one_rank(batch: Batch) -> Batch:
    share = batch.shares[0]
    if set(batch.shares) != {share}:
        raise ValueError(f"trainable.input=same_batch gives all ranks the same samples, not shares of {batch.shares}")
    return replace(batch, global_batch_size=share * batch.grad_accum_steps, shares=(share,))
