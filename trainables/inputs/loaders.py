"""Batches from worker processes: a DataLoader with torchvision's transforms, image by image, as most people train.

One loader for all ranks, in the process of rank 0, which hands every rank its part: usual from 2016 to 2018.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from trainables.context import Batch
from trainables.inputs.inputs import Augmentation, Feed, Form, Minibatch
from trainables.process_group import Gang

Asked = tuple[int, int]
"""Which sample, and the seed of its augmentation."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The `trainable.loader` section. Raises ValueError for numbers that cannot be."""

    workers: int = 2
    """Processes that load and augment, besides the rank's own; 0: the rank does it itself, between its steps."""
    prefetch: int = 2
    """Batches that each of them prepares ahead."""
    pin_memory: bool = True
    """Whether batches wait in page-locked memory, from which the GPU copies by itself; without effect on CPUs."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.prefetch < 1:
            raise ValueError(
                f"trainable.loader: workers={self.workers} and prefetch={self.prefetch} are not at least 0 and 1"
            )

    def options(self, device: str) -> dict[str, Any]:
        """The same in a DataLoader's own words."""
        if not self.workers:
            return {"pin_memory": self.pin_memory and device != "cpu"}
        return {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "pin_memory": self.pin_memory and device != "cpu",
            "multiprocessing_context": "fork",  # they share the images, and no server of processes stays behind
        }


class LoaderInputs:
    """A loader of the rank's own, whose workers start with the first batch and work until `close`.

    The samples and their order are those of `ResidentInputs`. So are not the augmentation's random numbers, but they,
    too, are each sample's own by seed and epoch, whichever rank or worker takes it.
    """

    def __init__(self, feed: Feed, ranks: Sequence[int], workers: Workers) -> None:
        """The samples of `ranks` are loaded, one rank's behind the other's."""
        self.feed, self._ranks, self._workers = feed, ranks, workers
        self._samples = _Samples(feed)
        self._stream: Generator[Minibatch] | None = None
        self._next = 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Minibatch]:
        """See `Inputs`; the workers go on from one epoch to the next without a pause."""
        if self._stream is None or number != self._next or start:
            self.close()
            self._stream = self._from(number, start)
        self._next = number + 1
        yield from islice(self._stream, self.feed.steps_from(start) * self.feed.batch.grad_accum_steps)

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`; the workers start anew."""
        self.close()
        self.feed = replace(self.feed, batch=batch)

    def close(self) -> None:
        """End the workers."""
        if self._stream is not None:
            self._stream.close()  # which drops the loader's iterator, and that waits for its workers
            self._stream = None

    def _from(self, first: int, start: int) -> Generator[Minibatch]:
        form = self.feed.form
        loader = DataLoader(
            self._samples,
            batch_sampler=self._asked(first, start),
            generator=torch.Generator(),  # else each loader takes a number of those that training draws from
            **self._workers.options(form.device),
        )
        layout = torch.channels_last if form.channels_last else torch.contiguous_format
        for images, targets in loader:
            there = images.to(form.device, non_blocking=True)
            yield there.to(form.dtype, memory_format=layout), targets.to(form.device, non_blocking=True)

    def _asked(self, first: int, start: int) -> Iterator[list[Asked]]:
        for epoch in count(first):
            order, source = self.feed.order(epoch)
            seeds = torch.randint(2**32, order.shape, generator=source)
            columns = torch.stack([order, seeds])[:, start if epoch == first else 0 :]
            for parts in _passes(columns, self.feed.batch):
                yield list(zip(*torch.cat([parts[rank] for rank in self._ranks], dim=1).tolist(), strict=True))


def _passes(order: Tensor, batch: Batch) -> Iterator[tuple[Tensor, ...]]:
    """For every forward pass over the samples in this order what each rank takes of it, by rank.

    `order` is a column a sample, or one value. A rank's part of a step is contiguous in it, so that a step's samples
    are the same in the same order for any number of ranks and passes; the last partial step is left out.
    """
    size, accumulate = batch.global_batch_size, batch.grad_accum_steps
    whole = order[..., : order.shape[-1] // size * size]
    for step in whole.split(size, dim=-1) if whole.shape[-1] else ():
        parts = step.split([accumulate * share for share in batch.shares], dim=-1)
        own = [part.split(share, dim=-1) for part, share in zip(parts, batch.shares, strict=True)]
        yield from zip(*own, strict=True)


class _Samples(Dataset[tuple[Tensor, Tensor]]):
    """One image at a time: augmented and normalised C×H×W, with its label, or its mask under the same crop and flip."""

    def __init__(self, feed: Feed) -> None:
        self._images, self._targets = feed.part.images.cpu(), feed.part.targets.cpu()
        self._augmentation = feed.augmentation
        self._transform = _transform(tuple(self._images.shape[2:]), feed.augmentation, feed.form)

    def __len__(self) -> int:
        return len(self._images)

    def __getitems__(self, asked: list[Asked]) -> list[tuple[Tensor, Tensor]]:
        """A batch; without workers this is the rank's own process, whose random numbers are left alone."""
        before = torch.default_generator.get_state()
        samples = [self._changed(index, seed) for index, seed in asked]
        torch.default_generator.set_state(before)
        return samples

    def _changed(self, index: int, seed: int) -> tuple[Tensor, Tensor]:
        torch.default_generator.manual_seed(seed)
        image, target = self._images[index], self._targets[index]
        if target.ndim:
            image, target = self._transform(image, tv_tensors.Mask(target))
        else:
            image = self._transform(image)
        height, width = image.shape[1:]
        draws = self._augmentation.draw(1, height, width, torch.default_generator)
        return self._augmentation.cut(image[None], draws)[0], target


def _transform(size: Sequence[int], augmentation: Augmentation, form: Form) -> v2.Compose:
    steps: list[Any] = []
    if augmentation.crop_padding:
        steps.append(v2.RandomCrop(size, padding=augmentation.crop_padding))
    if augmentation.flip:
        steps.append(v2.RandomHorizontalFlip())
    wide = form.dtype if form.dtype.itemsize >= 4 else torch.float32
    return v2.Compose([*steps, v2.ToDtype(wide, scale=True), v2.Normalize(form.mean, form.std)])


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
