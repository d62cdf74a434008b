"""Exact scores of a data set by all ranks together."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.inputs.feed import Part
from trainables.inputs.sequences import Sequences
from trainables.rank import is_out_of_memory
from trainables.step.compilation import uncompiled
from trainables.step.objective import correct_sum, loss_sum
from trainables.step.sharding import without_communication
from trainables.step.shares import Replicas, out_of_memory
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over all samples of a set."""

    accuracy: float
    loss: float


class Evaluation:
    """A set of which each rank holds a slice, so that every sample counts exactly once.

    A forward pass of a sharded model needs all ranks. They take the same number of passes of the same size, as many as
    the largest slice needs; a rank whose slice is shorter repeats samples, which do not count.
    """

    def __init__(
        self, part: Part | Sequences, workload: Workload, settings: TrainingSettings, replicas: Replicas
    ) -> None:
        """Move the rank's slice of the part to its device."""
        context, rank_group = replicas.context, replicas.rank_group
        self._form, self._precision, self._rank_group = workload.form, workload.precision, rank_group
        inputs, targets = part.take(rank_group.share_of(len(part)))
        self._inputs, self._targets = self._form.place(inputs), targets.to(self._form.device)
        self._count = len(part)
        self._is_sharded = context.layout.is_sharded
        self._longest = math.ceil(self._count / rank_group.data_ranks) if self._is_sharded else len(self._targets)
        # A rank without samples repeats one of another rank.
        self._repeated = self._inputs if len(self._targets) else self._form.place(part.take(slice(1))[0])
        size = settings.eval_batch_size
        # The outputs of sequences are large: a pass has no more of them than a training pass.
        if workload.sequence_length:
            size = min(size, max(context.batch.shares))
        self._batch_size = max(1, min(size, self._longest))  # so that halving shrinks the first batch
        self._may_shrink, self._mirrored = settings.micro_batch == "auto", settings.eval_mirrored

    @property
    def batches(self) -> int:
        """The forward passes of each rank."""
        return math.ceil(self._longest / self._batch_size)

    def first(self, batches: int) -> Evaluation:
        """Return the evaluation of the rank's first batches alone."""
        shorter = copy.copy(self)
        samples = min(batches * self._batch_size, self._longest)
        shorter._inputs, shorter._targets = self._inputs[:samples], self._targets[:samples]
        shorter._longest = samples
        return shorter

    def score(self, model: nn.Module) -> Score:
        """Evaluate this module, not a wrapper, which may be compiled for other shapes; leave it in training mode."""
        model.eval()
        if self._may_shrink and self._is_sharded:
            self._shrink_together(model)
        sums = self._sums_of_shrinking(model) if self._may_shrink and not self._is_sharded else self.sums(model)
        model.train()
        # Ranks with the same samples count them once.
        correct, loss = (self._rank_group.sum(sums) / self._rank_group.tensor).tolist()
        return Score(accuracy=correct / self._count, loss=loss / self._count)

    def _shrink_together(self, model: nn.Module) -> None:
        """Halve the batch until a pass fits on all ranks."""
        # In a real pass, a rank that fails would leave the others waiting.

        def take_pass(samples: int) -> None:
            with self._passes(), without_communication(model):
                self._outputs(model, self._repeated[:samples])

        while self._batch_size > 1 and out_of_memory(take_pass, self._batch_size, self._rank_group):
            self._batch_size //= 2

    def _sums_of_shrinking(self, model: nn.Module) -> Tensor:
        """Return the sums in batches that are halved until they fit on this rank."""
        while True:
            try:
                return self.sums(model)
            except (RuntimeError, MemoryError) as error:
                if self._batch_size == 1 or not is_out_of_memory(error):
                    raise
            # Here the error is gone, and with it the tensors that its traceback holds.
            self._batch_size //= 2
            if self._form.device != "cpu":
                torch.cuda.empty_cache()

    def sums(self, model: nn.Module) -> Tensor:
        """Return the sums of correct predictions and of losses over the slice, shape (2,)."""
        sums = torch.zeros(2, dtype=torch.float64, device=self._form.device)
        size, passes = self._batch_size, 0
        with self._passes():
            for inputs, targets in zip(self._inputs.split(size), self._targets.split(size), strict=True):
                # An empty slice is split into one empty batch.
                if not len(targets):
                    continue
                outputs = self._outputs(model, inputs)
                sums += torch.stack([correct_sum(outputs, targets), loss_sum(outputs, targets).double()])
                passes += 1
            for _ in range(passes, self.batches):
                self._outputs(model, self._repeated[:size])
        return sums

    @contextmanager
    def _passes(self) -> Iterator[None]:
        # Not inference mode: parameters gathered in it could take no part in a later backward pass, and torchao's
        # float8 cannot multiply in it.
        with torch.no_grad(), self._precision.casting(self._form.device), uncompiled():
            yield

    def _outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        images = self._form.normalise(inputs)
        outputs: Tensor = model(images)
        if self._mirrored:
            mirrored: Tensor = model(images.flip(-1))
            # A segmentation is mirrored back; the logits of whole images have no sides.
            outputs = (outputs + (mirrored.flip(-1) if mirrored.ndim == 4 else mirrored)) / 2
        return outputs
