"""Where batches come from: resident on the device, from loaders, or from one loader for all; by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.inputs.inputs import Feed, Inputs, ResidentInputs
from trainables.process_group import Gang
from trainables.registry import check_keys


def build(name: str, feed: Feed, gang: Gang, loader: Mapping[str, Any]) -> Inputs:
    """The rank's input of this feed; the keys of `loader` are those of `Workers`: ValueError for unknown ones."""
    if name == "resident":
        return ResidentInputs(feed, gang.rank)
    from trainables.inputs.loaders import LoaderInputs, Workers  # torchvision is slow to import

    check_keys(Workers, loader, subject="trainable.loader", given=())
    if name == "loader":
        return LoaderInputs(feed, (gang.rank,), Workers(**loader))
    from trainables.inputs.loaders import SameInputs, SharedInputs

    return (SameInputs if name == "same_batch" else SharedInputs)(feed, gang, Workers(**loader))
