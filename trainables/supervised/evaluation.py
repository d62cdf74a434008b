"""The data of a trial (`Workload`), and exact scores by all ranks together (`Evaluation`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sweeps.trial import Batch
from trainables import data
from trainables.context import Context
from trainables.inputs.inputs import Augmentation, Feed, Form, Part, Split, TokenForm
from trainables.inputs.sequences import Sequences, parts_of
from trainables.rank import is_out_of_memory
from trainables.registry import check_keys
from trainables.step.compilation import uncompiled
from trainables.step.sharding import without_communication
from trainables.step.shares import Replicas, out_of_memory
from trainables.step.training_step import Precision, correct_sum, loss_sum, precision_on
from trainables.supervised.settings import TrainingSettings
from trainables.tokens import Corpus


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A split data set and the form in which a model receives it, on one rank's device."""

    split: Split
    form: Form
    augmentation: Augmentation = Augmentation()
    precision: Precision
    input_shape: tuple[int, ...]  # C, H, W of images; the length of sequences
    num_classes: int  # classes; for texts the model's vocabulary or, without one, one more than the largest token
    epoch_size: int | None = None  # see `Feed`
    bytes_per_token: float | None = None

    @staticmethod
    def of(config: Mapping[str, Any], settings: TrainingSettings, context: Context) -> Workload:
        """Load the config's data for a trial, whose seed draws the validation set.

        Raises DataError, and ValueError for wrong keys and for a precision that the device lacks.
        """
        precision = precision_on(settings.precision, context.device, master_weights=settings.master_weights)
        dataset = data.load(config["data"], device=context.device)
        if isinstance(dataset, Corpus):
            return Workload._of_texts(dataset, config, settings, precision, context)
        augment = config["data"].get("augment") or {}
        check_keys(Augmentation, augment, subject="data.augment", given=())
        return Workload(
            split=Split.of(dataset, val_fraction=settings.val_fraction, seed=context.seed),
            form=Form(
                device=context.device,
                dtype=precision.inputs,
                channels_last=settings.memory_format == "channels_last",
                mean=dataset.mean,
                std=dataset.std,
            ),
            augmentation=Augmentation(**augment),
            precision=precision,
            input_shape=dataset.input_shape,
            num_classes=dataset.num_classes,
        )

    @staticmethod
    def _of_texts(
        corpus: Corpus, config: Mapping[str, Any], settings: TrainingSettings, precision: Precision, context: Context
    ) -> Workload:
        # A sharded language model computes on gathered copies of its parameters, without autocast.
        if context.layout.is_sharded:
            precision = replace(precision, autocast=None, gathers=precision.autocast)
        length = int(corpus.sequence_length or config["model"]["sequence_length"])
        train, validation, test = parts_of(corpus, length, val_fraction=settings.val_fraction, seed=context.seed)
        return Workload(
            split=Split(train=train, validation=validation, test=test),
            form=TokenForm(device=context.device),
            precision=precision,
            input_shape=(length,),
            num_classes=int(config["model"].get("vocabulary") or corpus.vocabulary),
            epoch_size=corpus.epoch_tokens and max(1, corpus.epoch_tokens // length),
            bytes_per_token=corpus.bytes_per_token,
        )

    @property
    def sequence_length(self) -> int | None:
        """The tokens of a sample; None for images."""
        return self.input_shape[0] if isinstance(self.form, TokenForm) else None

    def feed(self, batch: Batch, seed: int) -> Feed:
        """Return the training data as input pipelines take it. Raises ValueError if it does not fill a global batch."""
        return Feed(
            part=self.split.train,
            form=self.form,
            augmentation=self.augmentation,
            batch=batch,
            seed=seed,
            epoch_size=self.epoch_size,
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over all samples of a set."""

    accuracy: float
    loss: float


class Evaluation:
    """A set of which each rank holds a slice, so that every sample counts exactly once."""

    def __init__(
        self, part: Part | Sequences, workload: Workload, settings: TrainingSettings, replicas: Replicas
    ) -> None:
        """Move the rank's slice of the part to its device."""
        context, gang = replicas.context, replicas.gang
        self._form, self._precision, self._gang = workload.form, workload.precision, gang
        inputs, targets = part.take(gang.share_of(len(part)))
        self._inputs, self._targets = self._form.place(inputs), targets.to(self._form.device)
        self._count = len(part)
        # A forward pass of a sharded model needs all ranks, which therefore take the same number of passes.
        self._together = context.layout.is_sharded
        self._most = math.ceil(self._count / gang.data_ranks) if self._together else len(self._targets)
        size = settings.eval_batch_size
        # The outputs of sequences are large: a pass has no more of them than a training pass.
        if workload.sequence_length:
            size = min(size, max(context.batch.shares))
        self._batch_size = max(1, min(size, self._most))  # so that halving shrinks the first batch
        self._shrinks, self._mirrored = settings.micro_batch == "auto", settings.eval_mirrored
        # A rank without samples takes its passes with one of another rank.
        self._stand_in = self._inputs if len(self._targets) else self._form.place(part.take(slice(1))[0])

    @property
    def batches(self) -> int:
        """The forward passes of each rank."""
        return math.ceil(self._most / self._batch_size)

    def first(self, batches: int) -> Evaluation:
        """Return the evaluation of the rank's first batches alone."""
        shorter = copy.copy(self)
        samples = min(batches * self._batch_size, self._most)
        shorter._inputs, shorter._targets = self._inputs[:samples], self._targets[:samples]
        shorter._most = samples
        return shorter

    def score(self, model: nn.Module) -> Score:
        """Evaluate this module, not a wrapper, which may be compiled for other shapes; leave it in training mode."""
        model.eval()
        if self._together and self._shrinks:
            self._fit(model)
        while (sums := self.sums(model)) is None:
            self._batch_size //= 2
            if self._form.device != "cpu":
                torch.cuda.empty_cache()
        model.train()
        # Ranks with the same samples count them once.
        correct, loss = (self._gang.sum(sums) / self._gang.tensor).tolist()
        return Score(accuracy=correct / self._count, loss=loss / self._count)

    def _fit(self, model: nn.Module) -> None:
        """Halve the batch until a pass fits on all ranks."""
        # In a real pass, a rank that fails would leave the others waiting.

        def take_pass(samples: int) -> None:
            with self._passes(), without_communication(model):
                self._outputs(model, self._form.normalise(self._stand_in[:samples]))

        while self._batch_size > 1 and out_of_memory(take_pass, self._batch_size, self._gang):
            self._batch_size //= 2

    def sums(self, model: nn.Module) -> Tensor | None:
        """Return the sums of correct predictions and of losses over the slice; None to try a smaller batch."""
        sums = torch.zeros(2, dtype=torch.float64, device=self._form.device)
        size, taken = self._batch_size, 0
        try:
            with self._passes():
                for inputs, targets in zip(self._inputs.split(size), self._targets.split(size), strict=True):
                    if self._together and not len(targets):
                        continue
                    outputs = self._outputs(model, self._form.normalise(inputs))
                    sums += torch.stack([correct_sum(outputs, targets), loss_sum(outputs, targets).double()])
                    taken += 1
                for _ in range(taken, math.ceil(self._most / size) if self._together else 0):
                    self._outputs(model, self._form.normalise(self._stand_in[:size]))
        except (RuntimeError, MemoryError) as error:
            if not self._shrinks or self._together or size == 1 or not is_out_of_memory(error):
                raise
            return None
        return sums

    @contextmanager
    def _passes(self) -> Iterator[None]:
        # Not inference mode: parameters gathered in it could take no part in a later backward pass, and torchao's
        # float8 cannot multiply in it.
        with torch.no_grad(), self._precision.casting(self._form.device), uncompiled():
            yield

    def _outputs(self, model: nn.Module, images: Tensor) -> Tensor:
        outputs: Tensor = model(images)
        if self._mirrored:
            mirrored: Tensor = model(images.flip(-1))
            # A segmentation is mirrored back; the logits of whole images have no sides.
            outputs = (outputs + (mirrored.flip(-1) if mirrored.ndim == 4 else mirrored)) / 2
        return outputs
