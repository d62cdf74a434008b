"""Input pipelines by name: data resident on the device, a loader per rank; sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.inputs.feed import Feed
from trainables.inputs.inputs import Inputs, ResidentInputs, SequenceInputs
from trainables.inputs.loaders import LoaderInputs, Workers
from trainables.inputs.sequences import Sequences
from trainables.process_group import RankGroup


def build(name: str, feed: Feed, rank_group: RankGroup, loader: Mapping[str, Any]) -> Inputs:
    """Return the rank's input of this feed; `loader` has the keys of `Workers`. Raises ValueError for unknown keys."""
    if isinstance(feed.part, Sequences):
        return SequenceInputs(feed, rank_group.data_rank)
    if name == "resident":
        return ResidentInputs(feed, rank_group.rank)
    return LoaderInputs(feed, (rank_group.rank,), Workers.of(loader))
