"""The training loop with two more inputs, in which rank 0 loads for all ranks: `trainable=same_batch`.

`shared_loader` divides the global batch among the ranks, as was usual from 2016 to 2018. `same_batch` gives every rank
the same samples. Early scripts with one "tower" per GPU did so, and counted the samples of all towers: more GPUs saw no
more of the data. The study of input pipelines (`sweep=published/input_pipeline`) compares them with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sweeps.trial import Batch
from trainables.context import Context
from trainables.inputs.feed import Feed
from trainables.inputs.inputs import Inputs, Minibatch
from trainables.inputs.loaders import LoaderInputs, Workers
from trainables.process_group import RankGroup
from trainables.supervised import settings, training
from trainables.supervised.replica import Replica

NAME, SHARED = "same_batch", "shared_loader"


def train(config: Mapping[str, Any], context: Context) -> None:
    """Train as `trainables.supervised.training:train` does, which has all inputs but these two."""
    if config["trainable"].get("input") in (NAME, SHARED):
        training.train(_with_loader(config), context, replica_type=SharedReplica)
    else:
        training.train(config, context)


def errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each error in the config: see `trainables.supervised.settings`."""
    is_ours = config["trainable"].get("input") in (NAME, SHARED)
    return settings.errors(_with_loader(config) if is_ours else config)


def _with_loader(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with an input that the loop knows, and ours in another key."""
    given = config["trainable"]
    return {**config, "trainable": {**given, "input": "loader", "shared_input": given["input"]}}


class SharedReplica(Replica):
    """A replica whose inputs are `SharedInputs` or `SameInputs`."""

    def build_inputs(self) -> Inputs:
        """Return the rank's input pipeline."""
        feed = self._workload.feed(self._context.batch, self._context.seed)
        kind = SameInputs if self._config["trainable"]["shared_input"] == NAME else SharedInputs
        return kind(feed, self._rank_group, Workers.of(self._settings.loader))


class SharedInputs(Inputs):
    """Rank 0 loads the global batch onto its device and scatters it; other ranks have neither workers nor images.

    Samples and their order are those of `ResidentInputs`, as with `LoaderInputs`.
    """

    def __init__(self, feed: Feed, rank_group: RankGroup, workers: Workers) -> None:
        # Messages are plain float32 (float64) in any precision: not every format and layout can be sent everywhere.
        wide = feed.form.dtype if feed.form.dtype.itemsize >= 4 else torch.float32
        plain = replace(feed, form=replace(feed.form, dtype=wide, channels_last=False))
        super().__init__(feed)
        self._rank_group, self._wide = rank_group, wide
        self._loader = LoaderInputs(plain, range(len(feed.batch.shares)), workers)

    def minibatches(self, start: int) -> Iterator[Minibatch]:
        """See `Inputs`; every rank must take all passes that the others take."""
        form, part, most = self.feed.form, self.feed.images, max(self.feed.batch.shares)
        layout = torch.channels_last if form.channels_last else torch.contiguous_format
        image_place = torch.empty(most, *part.images.shape[1:], dtype=self._wide, device="meta")
        target_place = torch.empty(most, *part.targets.shape[1:], dtype=part.targets.dtype, device="meta")
        loaded: Iterator[tuple[Tensor | None, Tensor | None]]
        if self._rank_group.rank == 0:
            loaded = self._loader.minibatches(start)
        else:
            loaded = repeat((None, None))
        for images, targets in loaded:
            own = self.scatter(images, like=image_place).to(form.dtype, memory_format=layout)
            yield own, self.scatter(targets, like=target_place)

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`."""
        self.feed = replace(self.feed, batch=batch)
        self._loader.rebatch(batch)

    def close(self) -> None:
        """End the workers."""
        self._loader.close()

    def scatter(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        """Return this rank's share of a batch, which only rank 0 has before."""
        shares = self.feed.batch.shares
        # Every rank's part is as long as the longest: a scatter knows only one shape.
        parts = None if whole is None else list(pad_sequence(whole.split(shares), batch_first=True))
        received = self._rank_group.scatter(parts, torch.empty_like(like, device=self.feed.form.device))
        return received[: shares[self._rank_group.rank]]


class SameInputs(SharedInputs):
    """Rank 0 loads one rank's batch and sends it to every rank, whole.

    Its feed has the batch, and so the number of steps per epoch, of one rank. Raises ValueError for unequal
    shares.
    """

    def __init__(self, feed: Feed, rank_group: RankGroup, workers: Workers) -> None:
        super().__init__(replace(feed, batch=_of_one_rank(feed.batch)), rank_group, workers)

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`."""
        super().rebatch(_of_one_rank(batch))

    def scatter(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        """Return the whole batch, which only rank 0 has before."""
        parts = None if whole is None else [whole] * self._rank_group.world_size
        return self._rank_group.scatter(parts, torch.empty_like(like, device=self.feed.form.device))


def _of_one_rank(batch: Batch) -> Batch:
    share = batch.shares[0]
    if set(batch.shares) != {share}:
        raise ValueError(f"trainable.input={NAME} gives all ranks the same samples, not shares of {batch.shares}")
    return replace(batch, global_batch_size=share * batch.grad_accum_steps, shares=(share,))
