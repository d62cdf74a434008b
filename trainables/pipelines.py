"""Input pipelines by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.augmentation import Augmentation
from trainables.context import Batch
from trainables.inputs import Form, Inputs, ResidentInputs
from trainables.options import check_keys
from trainables.process_group import Gang
from trainables.split import Part

PIPELINES = ("resident", "loader", "shared_loader")


def build(
    name: str,
    part: Part,
    *,
    form: Form,
    augmentation: Augmentation,
    batch: Batch,
    gang: Gang,
    seed: int,
    loader: Mapping[str, Any],
) -> Inputs:
    """The rank's input of this part of the data; the keys of `loader` are those of `Workers`.

    Raises ValueError for unknown keys, and where the part does not fill one global batch.
    """
    common: dict[str, Any] = {"form": form, "augmentation": augmentation, "batch": batch, "seed": seed}
    if name == "resident":
        return ResidentInputs(part.images, part.targets, rank=gang.rank, **common)
    from trainables.loader_inputs import LoaderInputs, Workers  # torchvision is slow to import

    check_keys(Workers, loader, subject="trainable.loader", given=())
    common["workers"] = Workers(**loader)
    if name == "loader":
        return LoaderInputs(part.images, part.targets, ranks=(gang.rank,), **common)
    from trainables.shared_inputs import SharedInputs

    return SharedInputs(part.images, part.targets, gang=gang, **common)
