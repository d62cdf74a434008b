"""Batches from worker processes: a DataLoader with torchvision's transforms, image by image, as most people train."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from trainables.augmentation import Augmentation
from trainables.context import Batch
from trainables.inputs import Form, Minibatch
from trainables.passes import passes
from trainables.seeds import generator


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

    The samples and their order are those of `ResidentInputs`; the augmentation's random numbers are others: they depend
    on seed, rank and number of workers.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Tensor,
        *,
        form: Form,
        augmentation: Augmentation,
        batch: Batch,
        ranks: Sequence[int],
        seed: int,
        workers: Workers,
    ) -> None:
        """Images uint8 N×C×H×W, of which the samples of `ranks` are loaded, one rank's behind the other's.

        Raises ValueError where the images do not fill one global batch.
        """
        self.steps_per_epoch = len(images) // batch.global_batch_size
        if not self.steps_per_epoch:
            raise ValueError(
                f"global_batch_size={batch.global_batch_size} is more than the {len(images)} training samples"
            )
        self._samples = _Samples(images.cpu(), targets.cpu(), augmentation, form)
        self._form, self._batch, self._ranks, self._seed, self._workers = form, batch, ranks, seed, workers
        self._stream: Generator[Minibatch] | None = None
        self._next = 0

    def epoch(self, number: int) -> Iterator[Minibatch]:
        """See `Inputs`; the workers go on from one epoch to the next without a pause."""
        if self._stream is None or number != self._next:
            self.close()
            self._stream = self._from(number)
        self._next = number + 1
        yield from islice(self._stream, self.steps_per_epoch * self._batch.grad_accum_steps)

    def close(self) -> None:
        """End the workers."""
        if self._stream is not None:
            self._stream.close()  # which drops the loader's iterator, and that waits for its workers
            self._stream = None

    def _from(self, first: int) -> Generator[Minibatch]:
        loader = DataLoader(
            self._samples,
            batch_sampler=self._indices(first),
            generator=generator(self._seed, "loader", *self._ranks),
            **self._workers.options(self._form.device),
        )
        layout = torch.channels_last if self._form.channels_last else torch.contiguous_format
        for images, targets in loader:
            there = images.to(self._form.device, non_blocking=True)
            yield there.to(self._form.dtype, memory_format=layout), targets.to(self._form.device, non_blocking=True)

    def _indices(self, first: int) -> Iterator[list[int]]:
        for epoch in count(first):
            for parts in passes(len(self._samples), self._batch, seed=self._seed, epoch=epoch):
                yield torch.cat([parts[rank] for rank in self._ranks]).tolist()


class _Samples(Dataset[tuple[Tensor, Tensor]]):
    """One image at a time: augmented and normalised C×H×W, with its label, or its mask under the same crop and flip."""

    def __init__(self, images: Tensor, targets: Tensor, augmentation: Augmentation, form: Form) -> None:
        self._images, self._targets, self._augmentation = images, targets, augmentation
        self._transform = _transform(tuple(images.shape[2:]), augmentation, form)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
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
