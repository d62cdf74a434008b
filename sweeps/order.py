"""The order in which trials start."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sweeps.trial import Gang, TrialSpec


def in_order(trials: Sequence[TrialSpec]) -> list[TrialSpec]:
    """Seed by seed, and within a seed gang shape by gang shape, the direction turning at every seed.

    Going through all cells before the next seed interleaves repeats (A B A' B'), so that a machine's drift hits all
    cells alike. Trials of one shape follow one another, because they keep their workers warm; turning around at every
    seed (large to small, small to large, …) halves the number of changes of shape.
    """
    by_seed = groupby(sorted(trials, key=lambda trial: trial.seed), key=lambda trial: trial.seed)
    ordered: list[TrialSpec] = []
    for turn, (_, repeat) in enumerate(by_seed):
        ordered += sorted(repeat, key=lambda trial: _size(trial.gang), reverse=turn % 2 == 0)
    return ordered


def _size(gang: Gang) -> tuple[float, int, int]:
    return (gang.gpus, gang.ranks, gang.cpus_per_rank)
