"""Two phases: short probes of every speed, then training of only those cells that can still be recommended."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.journal.durations import speed
from orchestrator.journal.outcome import Outcome
from orchestrator.plan.prospects import Prospects
from sweeps.probe import probe_of
from sweeps.status import Status
from sweeps.trial import TrialSpec

RULE = "phases"
"""What `skipped_by` says of trials that were not asked for."""

SLACK = 1.1
"""A cell whose probe is slower than the best one's by more than this cannot beat it: probes are short."""


def probes(trials: Iterable[TrialSpec], probed: Collection[str]) -> list[TrialSpec]:
    """One probe of each speed that has none yet; none at all if the trainable has no probes."""
    found: dict[str, TrialSpec] = {}
    for trial in trials:
        probe = None if speed(trial.axes) in probed else probe_of(trial)
        if probe is not None:
            found.setdefault(speed(trial.axes), probe)
    return list(found.values())


def next_trials(waiting: Sequence[TrialSpec], prospects: Prospects) -> list[TrialSpec]:
    """Those of the waiting trials that have to run next to know the answer; none once it is known.

    First all seeds of the cell that accuracies are compared with; then a seed of every cell that may be faster than
    the best one so far, the fastest first, speed by speed; then, seed by seed, the cells that the whole sweep may yet
    choose. Of cells whose training is the same, as that of all rules is at the reference batch, one is asked for.
    """
    waiting = [trial for trial in waiting if trial.cell_id not in prospects.twins]
    base = [trial for trial in waiting if trial.cell_id == prospects.baseline]
    if base:
        return base
    if fresh := _fastest(_untrained(waiting, prospects), prospects):
        return [_bounded(trial, prospects) for trial in fresh]
    further = _first_seeds(trial for trial in waiting if trial.cell_id in prospects.open)
    return [_bounded(trial, prospects) for trial in further]


def skipped(trial: TrialSpec, prospects: Prospects) -> Outcome:
    """The end of a trial that would change nothing."""
    if trial.cell_id in prospects.twins:
        why = "the same training as that of a cell with a plainer rule or rate; see"
    elif trial.cell_id in prospects.out:
        why = f"a seed of this cell ended as {prospects.out[trial.cell_id]}, and so it cannot be"
    elif trial.cell_id in prospects.trained:
        why = "further seeds of this cell would not change"
    else:
        why = "by its probe this cell is slower than"
    note = f"sweep.phases: {why} the answer ({prospects.answer})"
    return Outcome(status=Status.SKIPPED, note=note, wall_s=0.0, skipped_by=RULE)


def _untrained(waiting: Iterable[TrialSpec], prospects: Prospects) -> list[TrialSpec]:
    """A seed of every cell that has none, and may be faster than the best one."""
    bound = prospects.levels.get(prospects.chosen, math.inf) * SLACK
    return _first_seeds(
        trial
        for trial in waiting
        if trial.cell_id not in prospects.trained and prospects.levels.get(trial.cell_id, 0.0) <= bound
    )


def _fastest(trials: Sequence[TrialSpec], prospects: Prospects) -> list[TrialSpec]:
    """Those with the least level; all whose level is unknown come first."""
    unknown = [trial for trial in trials if trial.cell_id not in prospects.levels]
    if unknown or not trials:
        return unknown
    least = min(trials, key=lambda trial: prospects.levels[trial.cell_id])
    return [trial for trial in trials if speed(trial.axes) == speed(least.axes)]


def _first_seeds(trials: Iterable[TrialSpec]) -> list[TrialSpec]:
    first: dict[str, TrialSpec] = {}
    for trial in trials:
        if trial.cell_id not in first or trial.seed < first[trial.cell_id].seed:
            first[trial.cell_id] = trial
    return list(first.values())


def _bounded(trial: TrialSpec, prospects: Prospects) -> TrialSpec:
    """The trial, which need not be timed if its accuracy turns out to be hopeless."""
    settings: Mapping[str, object] = trial.config.get("trainable") or {}
    bound = prospects.bound(trial.cell_id, trial.seed)
    if bound is None or not settings.get("probe"):
        return trial
    return replace(trial, config={**trial.config, "trainable": {**settings, "give_up_below": bound}})
