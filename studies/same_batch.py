"""The training loop with one more input: `same_batch` gives every rank the same samples.

Early scripts with one "tower" per GPU did so, and counted the samples of all towers: more GPUs saw no more of the data.
The study of input pipelines (`sweep=published/input_pipeline`) compares it with others: `trainable=same_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sweeps.trial import Batch
from trainables.context import Context
from trainables.inputs.inputs import Feed, Inputs
from trainables.inputs.loaders import SharedInputs, Workers
from trainables.process_group import RankGroup
from trainables.supervised import settings, training
from trainables.supervised.replica import Replica

NAME = "same_batch"


def train(config: Mapping[str, Any], context: Context) -> None:
    """Train as `trainables.supervised.training:train` does, which has all inputs but this one."""
    if config["trainable"].get("input") == NAME:
        training.train(_with_shared_loader(config), context, replica_type=SameBatchReplica)
    else:
        training.train(config, context)


def errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each error in the config: see `trainables.supervised.settings`."""
    is_same = config["trainable"].get("input") == NAME
    return settings.errors(_with_shared_loader(config) if is_same else config)


def _with_shared_loader(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "trainable": {**config["trainable"], "input": "shared_loader"}}


class SameBatchReplica(Replica):
    """A replica whose inputs are `SameInputs`."""

    def build_inputs(self) -> Inputs:
        """Return the rank's input pipeline."""
        feed = self._workload.feed(self._context.batch, self._context.seed)
        return SameInputs(feed, self._gang, Workers.of(self._settings.loader))


class SameInputs(SharedInputs):
    """Rank 0 loads one rank's batch and sends it to every rank, whole.

    Its feed has the batch, and so the number of steps per epoch, of one rank. Raises ValueError for unequal
    shares.
    """

    def __init__(self, feed: Feed, gang: RankGroup, workers: Workers) -> None:
        super().__init__(replace(feed, batch=_of_one_rank(feed.batch)), gang, workers)

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`."""
        super().rebatch(_of_one_rank(batch))

    def scatter(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        """Return the whole batch, which only rank 0 has before."""
        parts = None if whole is None else [whole] * self._gang.world_size
        return self._gang.scatter(parts, torch.empty_like(like, device=self.feed.form.device))


def _of_one_rank(batch: Batch) -> Batch:
    share = batch.shares[0]
    if set(batch.shares) != {share}:
        raise ValueError(f"trainable.input={NAME} gives all ranks the same samples, not shares of {batch.shares}")
    return replace(batch, global_batch_size=share * batch.grad_accum_steps, shares=(share,))
