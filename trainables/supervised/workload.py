"""What a trial trains on and is judged by: a data set, split, and the form in which a model is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables import data
from trainables.context import Batch
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.inputs import Feed, Form
from trainables.inputs.split import Part, Split
from trainables.options import check_keys
from trainables.process_group import Gang
from trainables.step.precision import Precision
from trainables.supervised.evaluation import Evaluation
from trainables.supervised.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Workload:
    """On one rank's device."""

    split: Split
    form: Form
    augmentation: Augmentation
    precision: Precision
    input_shape: tuple[int, int, int]
    num_classes: int

    @staticmethod
    def of(config: Mapping[str, Any], settings: Settings, precision: Precision, *, device: str, seed: int) -> Workload:
        """The config's data; `seed` draws the validation set. Raises DataError, and ValueError for wrong keys."""
        dataset = data.load(config["data"], device=device)
        augment = config["data"].get("augment") or {}
        check_keys(Augmentation, augment, subject="data.augment", given=())
        return Workload(
            split=Split.of(dataset, val_fraction=settings.val_fraction, seed=seed),
            form=Form(
                device=device,
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

    def feed(self, batch: Batch, seed: int) -> Feed:
        """What is trained on. Raises ValueError where it does not fill one global batch."""
        return Feed(part=self.split.train, form=self.form, augmentation=self.augmentation, batch=batch, seed=seed)

    def evaluation(self, part: Part, gang: Gang, settings: Settings) -> Evaluation:
        """A part to score models on, which the ranks of the gang divide among themselves."""
        return Evaluation(
            part,
            gang=gang,
            form=self.form,
            precision=self.precision,
            batch_size=settings.eval_batch_size,
            shrinks=settings.micro_batch == "auto",
            mirrored=settings.eval_mirrored,
        )
