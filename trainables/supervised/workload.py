"""The data of a trial and their form, on one rank's device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sweeps.trial import Batch
from trainables import data
from trainables.component_registry import check_keys
from trainables.context import Context
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.feed import Feed, Form, Split, TokenForm
from trainables.inputs.sequences import parts_of
from trainables.step.precision import Precision, precision_on
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
