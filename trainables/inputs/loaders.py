"""Batches from worker processes: a DataLoader with torchvision's transforms, image by image, as most people train."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainables.component_registry import check_keys
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.feed import Feed, Form
from trainables.inputs.inputs import Inputs, Minibatch

Sample = tuple[int, int]  # the index of a sample, and the seed of its augmentation


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The `trainable.loader` section. Raises ValueError for numbers out of range."""

    workers: int = 2
    """Processes that load and augment, besides the rank's own; with 0 the rank itself does so between its steps."""
    prefetch: int = 2  # batches that each worker prepares ahead
    pin_memory: bool = True
    """Whether batches are put into page-locked memory, from which GPUs copy asynchronously; no effect on CPUs."""

    @staticmethod
    def of(loader: Mapping[str, Any]) -> Workers:
        """Return the section's workers. Raises ValueError for unknown keys."""
        check_keys(Workers, loader, subject="trainable.loader", given=())
        return Workers(**loader)

    def __post_init__(self) -> None:
        if self.workers < 0 or self.prefetch < 1:
            raise ValueError(
                f"trainable.loader: workers={self.workers} and prefetch={self.prefetch} are not at least 0 and 1"
            )

    def options(self, device: str) -> dict[str, Any]:
        """Return the keyword arguments of a DataLoader."""
        pinned = {"pin_memory": self.pin_memory and device != "cpu"}
        if not self.workers:
            return pinned
        return pinned | {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "multiprocessing_context": "fork",  # workers share the images, and no server of processes is left behind
        }


class LoaderInputs(Inputs):
    """A loader of the rank's own, whose workers start with the first batch and work until `close`.

    Samples and their order are those of `ResidentInputs`. The random numbers of the augmentation differ, but they also
    depend only on sample, seed and epoch, whichever rank or worker loads the sample.
    """

    def __init__(self, feed: Feed, ranks: Sequence[int], workers: Workers) -> None:
        """Load the samples of `ranks`, rank after rank."""
        super().__init__(feed)
        self._ranks, self._workers = ranks, workers
        self._samples = _AugmentedSamples(feed)
        self._stream: Generator[Minibatch] | None = None

    def minibatches(self, start: int) -> Iterator[Minibatch]:
        """See `Inputs`; the workers start anew, and go on from one epoch to the next without a pause."""
        self.close()
        self._stream = self._load(start)
        return self._stream

    def close(self) -> None:
        """End the workers."""
        if self._stream is not None:
            self._stream.close()  # drops the loader's iterator, which waits for its workers
            self._stream = None

    def _load(self, start: int) -> Generator[Minibatch]:
        form = self.feed.form
        loader = DataLoader(
            self._samples,
            batch_sampler=self._passes(start),
            generator=torch.Generator(),  # otherwise each loader draws a number from training's random stream
            **self._workers.options(form.device),
        )
        layout = torch.channels_last if form.channels_last else torch.contiguous_format
        for images, targets in loader:
            there = images.to(form.device, non_blocking=True)
            yield there.to(form.dtype, memory_format=layout), targets.to(form.device, non_blocking=True)

    def _passes(self, start: int) -> Iterator[list[Sample]]:
        """Yield the samples of each forward pass: those of this loader's ranks, one rank after another."""
        feed = self.feed
        for steps in feed.steps(start, _numbers_and_seeds):
            # One tensor for each rank, 2×steps×passes×(samples of a pass).
            by_rank = [
                feed.passes_of(rank, steps).unflatten(2, (feed.batch.grad_accum_steps, -1)) for rank in self._ranks
            ]
            # 2×(steps·passes)×(samples of a pass, of all ranks); row 0 has their numbers, row 1 the seeds.
            passes = torch.cat(by_rank, dim=3).flatten(1, 2)
            for samples in passes.movedim(1, 0):
                yield list(zip(*samples.tolist(), strict=True))


def _numbers_and_seeds(order: Tensor, source: torch.Generator) -> Tensor:
    """Return 2×samples: their numbers, and the seeds of their augmentations."""
    return torch.stack([order, torch.randint(2**32, order.shape, generator=source)])


class _AugmentedSamples(Dataset[tuple[Tensor, Tensor]]):
    """One image at a time: augmented and normalised C×H×W, with its label, or its mask under the same crop and flip."""

    def __init__(self, feed: Feed) -> None:
        # Workers are forks, and CUDA does not survive a fork.
        self._images, self._targets = feed.images.images.cpu(), feed.images.targets.cpu()
        self._augmentation = feed.augmentation
        self._transform = _transform(tuple(self._images.shape[2:]), feed.augmentation, feed.form)

    def __len__(self) -> int:
        return len(self._images)

    def __getitems__(self, samples: list[Sample]) -> list[tuple[Tensor, Tensor]]:
        """Return a batch; without workers this runs in the rank's process, whose random state is left as it was."""
        before = torch.default_generator.get_state()
        batch = [self._augmented(index, seed) for index, seed in samples]
        torch.default_generator.set_state(before)
        return batch

    def _augmented(self, index: int, seed: int) -> tuple[Tensor, Tensor]:
        # Transforms draw from the global generator, so that only its state ties the numbers to the sample.
        torch.default_generator.manual_seed(seed)
        image, target = self._images[index], self._targets[index]
        if target.ndim:
            from torchvision import tv_tensors  # here because it is slow to import, and most inputs need nothing of it

            image, target = self._transform(image, tv_tensors.Mask(target))
        else:
            image = self._transform(image)
        height, width = image.shape[1:]
        draws = self._augmentation.draw(1, height, width, torch.default_generator)
        return self._augmentation.cut(image[None], draws)[0], target


def _transform(size: Sequence[int], augmentation: Augmentation, form: Form) -> Any:
    from torchvision.transforms import v2

    steps: list[Any] = []
    if augmentation.crop_padding:
        steps.append(v2.RandomCrop(size, padding=augmentation.crop_padding))
    if augmentation.flip:
        steps.append(v2.RandomHorizontalFlip())
    # Half formats hold 8-bit pixels badly; the rank rounds the whole batch at once.
    wide = form.dtype if form.dtype.itemsize >= 4 else torch.float32
    return v2.Compose([*steps, v2.ToDtype(wide, scale=True), v2.Normalize(form.mean, form.std)])
