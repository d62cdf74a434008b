"""One loader for all ranks, in the process of rank 0, which hands every rank its part: usual from 2016 to 2018."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainables.augmentation import Augmentation
from trainables.context import Batch
from trainables.inputs import Form, Minibatch
from trainables.loader_inputs import LoaderInputs, Workers
from trainables.process_group import Gang


class SharedInputs:
    """Rank 0 loads the global batch onto its device, and scatters it; the others have neither workers nor images.

    Samples and their order are those of `ResidentInputs`, as with `LoaderInputs`.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Tensor,
        *,
        form: Form,
        augmentation: Augmentation,
        batch: Batch,
        seed: int,
        workers: Workers,
        gang: Gang,
    ) -> None:
        """Images uint8 N×C×H×W. Raises ValueError where they do not fill one global batch."""
        self._form, self._batch, self._gang = form, batch, gang
        # Messages are plain float32 (float64) in any precision: not every format and layout can be sent everywhere.
        wide = form.dtype if form.dtype.itemsize >= 4 else torch.float32
        self._loader = LoaderInputs(
            images,
            targets,
            form=replace(form, dtype=wide, channels_last=False),
            augmentation=augmentation,
            batch=batch,
            ranks=range(gang.world_size),
            seed=seed,
            workers=workers,
        )
        self.steps_per_epoch = self._loader.steps_per_epoch
        most = max(batch.shares)
        self._empty_images = torch.empty(most, *images.shape[1:], dtype=wide, device="meta")
        self._empty_targets = torch.empty(most, *targets.shape[1:], dtype=targets.dtype, device="meta")

    def epoch(self, number: int) -> Iterator[Minibatch]:
        """See `Inputs`; every rank must take all passes that the others take."""
        layout = torch.channels_last if self._form.channels_last else torch.contiguous_format
        for images, targets in self._whole(number):
            own = self._scatter(images, like=self._empty_images).to(self._form.dtype, memory_format=layout)
            yield own, self._scatter(targets, like=self._empty_targets)

    def close(self) -> None:
        """End the workers."""
        self._loader.close()

    def _whole(self, number: int) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        if self._gang.rank == 0:
            return self._loader.epoch(number)
        return repeat((None, None), self.steps_per_epoch * self._batch.grad_accum_steps)

    def _scatter(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        shares = self._batch.shares
        # Every rank's part is as long as the longest: a scatter knows only one shape.
        parts = None if whole is None else list(pad_sequence(whole.split(shares), batch_first=True))
        received = self._gang.scatter(parts, torch.empty_like(like, device=self._form.device))
        return received[: shares[self._gang.rank]]
