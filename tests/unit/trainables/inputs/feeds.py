"""Feeds of small random images, and the batches that they give."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from sweeps.trial import Batch
from trainables.inputs.feed import Feed, Form, Part
from trainables.inputs.inputs import Inputs, Minibatch, ResidentInputs

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
IMAGES = torch.randint(0, 256, (50, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(50)


def form(*, channels_last: bool = False, dtype: torch.dtype = torch.float64) -> Form:
    return Form(device="cpu", dtype=dtype, channels_last=channels_last, mean=MEAN, std=STD)


def batch(shares: tuple[int, ...], accum: int = 1) -> Batch:
    return Batch(global_batch_size=sum(shares) * accum, grad_accum_steps=accum, shares=shares)


def feed(shares: tuple[int, ...], accum: int = 1, *, targets: torch.Tensor = LABELS, **other: Any) -> Feed:
    given: dict[str, Any] = {"form": form(), "seed": 3} | other
    return Feed(part=Part(images=IMAGES, targets=targets), batch=batch(shares, accum), **given)


def source(*, shares: tuple[int, ...], accum: int = 1, rank: int = 0, **other: Any) -> ResidentInputs:
    return ResidentInputs(feed(shares, accum, **other), rank)


def epoch(inputs: Inputs, number: int, start: int = 0) -> Iterator[Minibatch]:
    """The passes of the whole steps in an epoch, from its sample `start` on."""
    size, batch = inputs.feed.epoch_samples, inputs.feed.batch
    steps = (size - start) // batch.global_batch_size
    return islice(inputs.minibatches((number - 1) * size + start), steps * batch.grad_accum_steps)


def global_batches(shares: tuple[int, ...], accum: int, **other: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each step's samples, the ranks' contiguous parts put together."""
    ranks = [list(epoch(source(shares=shares, accum=accum, rank=rank, **other), 2)) for rank in range(len(shares))]
    steps = []
    for first in range(0, len(ranks[0]), accum):
        passes = [minibatch for own in ranks for minibatch in own[first : first + accum]]
        steps.append((torch.cat([x for x, _ in passes]), torch.cat([y for _, y in passes])))
    return steps
