"""The order in which trials start, before it is known when room becomes free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from orchestrator.scheduling.placement import Shape
from sweeps.trial import TrialSpec

Expected = Callable[[TrialSpec], float | None]
"""Seconds that a trial is expected to take; None if unknown."""


class Stretch:
    """Trials of one shape and one seed; they run one after another, longest first, to keep their workers warm."""

    def __init__(self, shape: Shape, trials: Iterable[TrialSpec]) -> None:
        self.shape = shape
        self.trials = deque(trials)
        self._opened = False

    def open(self, expected_s: Expected) -> None:
        """Begin this stretch: on the first call, sort it by what is known so far."""
        if not self._opened:
            self.sort(expected_s)
        self._opened = True

    def remove(self, trial: TrialSpec) -> None:
        """Remove a trial that has started; fast at either end."""
        if self.trials[-1] is trial:
            self.trials.pop()
        else:
            self.trials.remove(trial)

    def sort(self, expected_s: Expected) -> None:
        """Sort longest first, unknown durations before all, because they may be longer; otherwise keep the order."""
        longest_first = sorted(self.trials, key=lambda trial: -_or_ever(expected_s(trial)))
        self.trials = deque(longest_first)


def stretches(trials: Sequence[TrialSpec], expected_s: Expected, *, seed_by_seed: bool = False) -> list[Stretch]:
    """The trials as stretches, in the order in which they run.

    Going through all cells before the next seed interleaves repeats (A B A' B'), so that a machine's drift hits all
    cells alike. For trials that have whole nodes to themselves (`exclusive`) nothing else matters: the order is seed
    by seed, within a seed shape by shape, and turns around at every seed (large to small, small to large, …), which
    halves the number of shape changes. Otherwise packing comes first: large gangs before small ones, because small ones
    fill the gaps that large ones leave, and seed by seed within each shape. If the sweep may end
    early (`seed_by_seed`), all go seed by seed, so that repeats are missing then rather than the small gangs with
    which the large ones are compared.
    """
    in_turns = [trial for trial in trials if seed_by_seed or trial.timing == "exclusive"]
    others = [trial for trial in trials if not seed_by_seed and trial.timing != "exclusive"]
    found: list[Stretch] = []
    for turn, (_, repeat) in enumerate(groupby(sorted(in_turns, key=_seed), key=_seed)):
        found += _by_shape(repeat, large_first=turn % 2 == 0)
    for stretch in _by_shape(others, large_first=True):
        seeds = groupby(sorted(stretch.trials, key=_seed), key=_seed)
        found += [Stretch(stretch.shape, repeat) for _, repeat in seeds]
    for stretch in found:
        stretch.sort(expected_s)
    return found


def in_order(
    trials: Sequence[TrialSpec], expected_s: Expected = lambda trial: None, *, seed_by_seed: bool = False
) -> list[TrialSpec]:
    """The trials in the order in which they start if only one runs at a time."""
    return [trial for stretch in stretches(trials, expected_s, seed_by_seed=seed_by_seed) for trial in stretch.trials]


def _by_shape(trials: Iterable[TrialSpec], *, large_first: bool) -> list[Stretch]:
    alike: dict[Shape, list[TrialSpec]] = {}
    for trial in trials:
        alike.setdefault(Shape.of(trial), []).append(trial)
    by_size = sorted(alike.items(), key=lambda item: item[0].size, reverse=large_first)
    return [Stretch(shape, same) for shape, same in by_size]


def _seed(trial: TrialSpec) -> int:
    return trial.seed


def _or_ever(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
