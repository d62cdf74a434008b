"""`sweep.phases`: short probes of every speed, then training of only those cells that can still be recommended.

`Prospects` says which cells may still become the recommended one; `Midway` computes the probability of that. A cell's
mean over all its seeds is its present mean plus the change by its further seeds. With n seeds of variance σ² and r more
to come, the change is a moderated t around 0 with variance σ²/n · r/(n + r): the posterior predictive distribution of a
normal mean with a flat prior.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from orchestrator.config.request import Request
from orchestrator.decision.choice import TIE
from orchestrator.decision.contest import NORMAL, Contest, Means, accuracies, log_objectives
from orchestrator.decision.recommendation import FEWEST_SEEDS, SURE
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Array, Moments
from orchestrator.store.alike import same_speed
from orchestrator.store.record import TrialOutcome, TrialRecord
from sweeps.axes import is_number
from sweeps.identity import equivalent_cells
from sweeps.lr_rule import plainness
from sweeps.probe import probe_of
from sweeps.status import Status
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """The cells that may still be recommended in the middle of a sweep. Cells are given by their ids."""

    baseline: str = ""  # the cell at the reference batch, which is trained first; empty if there is none
    first_bound: float | None = None
    """The validation accuracy of a cell's first seed below which it need not be tested and timed, if any."""
    first_bounds: Mapping[int, float] = field(default_factory=dict)
    """The same by seed, for the seeds that the baseline has, which hold out the same samples."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """{cell that may still win: validation accuracy of its next seed below which it is out}; without the baseline."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """The objective as predicted by the probes, up to a common factor; without cells whose probe has no figures."""
    trained: frozenset[str] = frozenset()
    chosen: str = ""  # the best cell so far; empty if there is none
    answer: str = ""  # the label of the best cell, or why there is none
    may_still_win: frozenset[str] = frozenset()
    """The trained cells that the whole sweep may still choose; empty once the choice is sure."""
    ruled_out: Mapping[str, Status] = field(default_factory=dict)
    """Cells that cannot be recommended because of how one of their seeds ended."""
    equivalent_cells: Mapping[str, str] = field(default_factory=dict)
    """{cell: another one with the same training}; only one of the two is trained."""

    def bound(self, cell_id: str, seed: int) -> float | None:
        """Return the validation accuracy below which this seed of the cell need not be tested and timed, if any."""
        if cell_id in self.trained or self.first_bound is None:
            return self.bounds.get(cell_id)
        return self.first_bounds.get(seed, self.first_bound)

    @staticmethod
    def of(
        request: Request,
        planned: Sequence[TrialSpec],
        ends: Mapping[str, TrialRecord],
        probed: Mapping[str, Mapping[str, Any]],
    ) -> Prospects:
        """Derive the prospects from the ends of planned trials and the figures of probes."""
        known = [record for record in ends.values() if record.ran]
        # A cell has the worst status of its seeds, and only an ok cell can be chosen in the end.
        ruled_out = {record.cell_id: record.status for record in known if record.status is not Status.OK}
        plain = sorted(planned, key=lambda trial: (*plainness(trial.lr.rule, trial.lr.multiplier), trial.gpus))
        trained = frozenset(record.cell_id for record in known)
        # The cell that will be the baseline, as far as that does not depend on accuracies.
        reference = request.reference_batch_size
        baseline = next((trial.cell_id for trial in plain if trial.batch.global_batch_size == reference), "")
        without_results = Prospects(
            baseline=baseline,
            levels=_levels(request, planned, probed),
            trained=trained,
            answer="no cell is ok",
            ruled_out=ruled_out,
            equivalent_cells=equivalent_cells(
                sorted(plain, key=lambda trial: (trial.cell_id != baseline, trial.cell_id not in trained))
            ),
        )
        ok = [record for record in known if record.cell_id not in ruled_out]
        known_ids = {record.trial_id for record in known}
        seeds_left = Counter(trial.cell_id for trial in planned if trial.trial_id not in known_ids)
        return _with_results(without_results, request, ok, seeds_left) if ok else without_results


def _levels(
    request: Request, planned: Iterable[TrialSpec], probed: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return the predicted objective of each cell; empty if the objective does not follow from throughput."""
    if request.settings.report.objective == "energy" or request.target is not None:
        return {}
    # Without a target all cells do the same work, so that seconds per unit of work order them as the objective does.
    by_cost = request.settings.report.objective == "cost"
    levels: dict[str, float] = {}
    for trial in planned:
        seconds = _seconds(trial, probed.get(same_speed(trial.axes), {}))
        if seconds is not None:
            levels[trial.cell_id] = seconds * (trial.gpus_held if by_cost else 1)
    return levels


def _seconds(trial: TrialSpec, probe: Mapping[str, Any]) -> float | None:
    """Return the seconds of one epoch, sample, token or step, as the budget is given; None if the probe lacks it."""
    epoch_s, samples_per_s = probe.get("epoch_s"), probe.get("samples_per_s")
    if not samples_per_s:
        return None
    match trial.length:
        # Every cell takes these seconds, and so a probe cannot tell which is better.
        case {"seconds": _}:
            return None
        case {"epochs": _}:
            return None if epoch_s is None else float(epoch_s)
        case {"steps": _}:
            return float(trial.batch.global_batch_size / samples_per_s)
        case {"tokens": _}:
            return float(1 / (probe.get("sequence_length") or 1) / samples_per_s)
        case _:
            return float(1 / samples_per_s)


def _with_results(
    without_results: Prospects, request: Request, ok: Sequence[TrialRecord], seeds_left: Mapping[str, int]
) -> Prospects:
    """Add what the ok trials say; `seeds_left` has the number of further seeds of each cell."""
    # Only here, because it loads pandas, which a plan without results does not need.
    from orchestrator.decision.candidates import Contenders

    contenders = Contenders.among(request, ok)
    chosen, baseline = contenders.choice.favourite, contenders.contest.baseline
    ids = [str(cell) for cell in contenders.cells["cell_id"]]
    midway = Midway(contest=contenders.contest, left=[seeds_left[cell] for cell in ids])
    rows = midway.open(chosen)
    bounds = {ids[row]: midway.bound(row) for row in rows}

    # A first seed is given up far below the baseline's same seed: its cell may still have better seeds.
    metric, distance = request.metric, margins.SHORT * request.settings.report.margin
    first_bound, first_bounds = None, dict[int, float]()
    if baseline is not None:
        first_bound = float(contenders.cells["score"][baseline]) - distance
        for record in ok:
            value = record.metrics.get(metric.name)
            if record.cell_id == ids[baseline] and is_number(value):
                first_bounds[record.seed] = metric.sign * float(value) - distance
    return replace(
        without_results,
        first_bound=first_bound,
        first_bounds=first_bounds,
        bounds={cell: bound for cell, bound in bounds.items() if bound is not None},
        chosen="" if chosen is None else ids[chosen],
        answer="no cell that can be chosen keeps the margin" if chosen is None else contenders.names[chosen],
        may_still_win=frozenset(ids[row] for row in rows),
    )


RULE = "phases"  # the value of `skipped_by` for trials that the phases left out

SLACK = 1.1
"""A cell cannot beat the best one if its probe is slower by more than this factor, which allows for short probes."""


def probes(trials: Iterable[TrialSpec], probed: Collection[str]) -> list[TrialSpec]:
    """Return one probe of each speed that has none yet; nothing if the trainable has no probes."""
    by_speed: dict[str, TrialSpec] = {}
    for trial in trials:
        probe = None if same_speed(trial.axes) in probed else probe_of(trial)
        if probe is not None:
            by_speed.setdefault(same_speed(trial.axes), probe)
    return list(by_speed.values())


def next_trials(waiting: Sequence[TrialSpec], prospects: Prospects) -> list[TrialSpec]:
    """Return the waiting trials that must run next to find the answer; none once it is known.

    All seeds of the baseline run first. Then one seed runs of every cell that may be faster than the best one so far,
    the fastest first, speed by speed. Then the cells that the whole sweep may still choose run, seed by seed. One of
    several equivalent cells is trained, for example of all rules at the reference batch.
    """
    waiting = [trial for trial in waiting if trial.cell_id not in prospects.equivalent_cells]
    # Every other cell is measured against the baseline: without it nothing can be ruled out.
    base = [trial for trial in waiting if trial.cell_id == prospects.baseline]
    if base:
        return base
    slowest = prospects.levels.get(prospects.chosen, math.inf) * SLACK
    fresh = _first_seeds(
        trial
        for trial in waiting
        if trial.cell_id not in prospects.trained and prospects.levels.get(trial.cell_id, 0.0) <= slowest
    )
    if fresh:
        # Without a probe's figures a cell has no level; such cells run first, since they may be the fastest.
        chosen = [trial for trial in fresh if trial.cell_id not in prospects.levels]
        if not chosen:
            fastest = same_speed(min(fresh, key=lambda trial: prospects.levels[trial.cell_id]).axes)
            chosen = [trial for trial in fresh if same_speed(trial.axes) == fastest]
        return [_bounded(trial, prospects) for trial in chosen]
    next_seeds = _first_seeds(trial for trial in waiting if trial.cell_id in prospects.may_still_win)
    return [_bounded(trial, prospects) for trial in next_seeds]


def skipped(trial: TrialSpec, prospects: Prospects) -> TrialOutcome:
    """Return the outcome of a trial that cannot change the recommendation."""
    if trial.cell_id in prospects.equivalent_cells:
        why = "the same training as that of a cell with a plainer rule or rate; see"
    elif trial.cell_id in prospects.ruled_out:
        why = f"a seed of this cell ended as {prospects.ruled_out[trial.cell_id]}, and so it cannot be"
    elif trial.cell_id in prospects.trained:
        why = "further seeds of this cell would not change"
    else:
        why = "by its probe this cell is slower than"
    note = f"sweep.phases: {why} the answer ({prospects.answer})"
    return TrialOutcome(note=note, wall_s=0.0, skipped_by=RULE)


def _first_seeds(trials: Iterable[TrialSpec]) -> list[TrialSpec]:
    """Return the trial of the lowest seed of each cell."""
    first: dict[str, TrialSpec] = {}
    for trial in trials:
        if trial.cell_id not in first or trial.seed < first[trial.cell_id].seed:
            first[trial.cell_id] = trial
    return list(first.values())


def _bounded(trial: TrialSpec, prospects: Prospects) -> TrialSpec:
    """Return the trial with the accuracy below which it need not be timed."""
    bound = prospects.bound(trial.cell_id, trial.seed)
    if bound is None or not trial.settings.get("probe"):
        return trial
    return trial.with_settings(give_up_below=bound)


ALIKE = 1.1
"""With one seed per cell, a cell with more than this many times the objective of the best one is out."""

DRAWS = 4_000  # random draws of the end of the sweep; probabilities are accurate to ±1%

_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Midway:
    """A contest in the middle of its sweep. Rows are cells."""

    contest: Contest
    left: Sequence[int]  # how many further seeds each cell may have

    def open(self, chosen: int | None) -> set[int]:
        """Return the rows of the chosen cell and of those that the whole sweep may still choose.

        These have a probability above 1 - SURE, or an unknown one. Empty once the choice is sure and has enough seeds.
        """
        level, p_chosen = self._log_objectives.point, self.p_chosen
        short = self._shortfalls > margins.SHORT * self.contest.margin
        beaten = np.full(len(level), False) if chosen is None else level > level[chosen] + math.log(ALIKE)
        alike = np.isnan(p_chosen) & ~np.isnan(level) & ~beaten & ~short
        if chosen is None:
            return set(np.flatnonzero((p_chosen > 1 - SURE) | alike).tolist())
        if p_chosen[chosen] >= SURE and not alike.any():
            return {chosen} if self._log_objectives.n[chosen] < FEWEST_SEEDS else set()
        return {chosen, *np.flatnonzero((p_chosen > 1 - SURE) | alike).tolist()}

    @cached_property
    def p_chosen(self) -> Array:
        """Probability that the whole sweep chooses each cell; NaN if chance is unknown, with one seed per cell.

        The sweep chooses the lowest objective among the cells whose mean accuracy is within the margin; of a tie the
        cell with the fewest hours, and of those the most accurate one. This simplifies the rule of `decision.choice`,
        which also asks how sure the tie and the accuracies are. Accuracies are not pooled over similar cells: pooling
        gave the same answers at the same cost (docs/results/batch_scaling/phases).
        """
        generator = np.random.default_rng(_SEED)
        # Random draws of the means over all seeds, shape (draws, cells).
        level, accuracy = (
            replace(means, error=self._moves(means)).draws(generator, DRAWS)
            for means in (self._log_objectives, self._accuracies)
        )
        base = self.contest.baseline
        misses = np.full(level.shape, False)
        if base is not None:
            # NaN compares as false: a cell without an accuracy misses nothing.
            misses = margins.excess(accuracy[:, [base]] - accuracy, self.contest.margin) > 0
        least = np.where(misses | np.isnan(level), np.inf, level)
        tied = np.isfinite(least) & (least <= least.min(axis=1, keepdims=True) + math.log1p(TIE))
        hours = np.where(tied, np.nan_to_num(self.contest.log_hours, nan=0.0), np.inf)
        cheap = tied & (hours <= hours.min(axis=1, keepdims=True) + math.log1p(TIE))
        best = np.where(cheap, np.nan_to_num(accuracy, nan=0.0), -np.inf).argmax(axis=1)
        counts = np.bincount(best[tied.any(axis=1)], minlength=len(self.left))
        accuracy_unknown = ~np.isnan(self._shortfalls) & np.isnan(self._accuracies.error)
        # With one seed there is no variance to draw from, and a probability of 0 or 1 would be made up.
        unknown = (np.asarray(self.left) > 0) & (np.isnan(self._log_objectives.error) | accuracy_unknown)
        return np.where(unknown, np.nan, counts / len(level))

    def bound(self, row: int) -> float | None:
        """Return the accuracy of the cell's next seed below which its mean will not be within the margin.

        Below the bound, the mean is within the margin with a probability of at most 1 - SURE. If chance is unknown,
        the cell is `margins.SHORT` short instead. None for the baseline, without a baseline, and without a further
        seed.
        """
        from scipy.special import stdtrit

        base, own, margin = self.contest.baseline, self._accuracies, self.contest.margin
        if base is None or row == base or not self.left[row] or math.isnan(self._shortfalls[row]):
            return None
        n, left = own.n[row] + 1, self.left[row] - 1  # once that seed is in
        still = own.error[row] * math.sqrt(own.n[row] / n * left / (n + left)), own.freedom[row]
        of_base = self._moves(own)[base], own.freedom[base]
        freedom = min((degrees for error, degrees in (still, of_base) if error != 0), default=NORMAL)
        gain = float(stdtrit(min(freedom, NORMAL), SURE)) * math.hypot(still[0], of_base[0])  # the quantile SURE of t
        least = own.point[base] - (margins.SHORT * margin if math.isnan(gain) else margin + gain)
        return float(n * least - own.n[row] * own.point[row])

    @cached_property
    def _log_objectives(self) -> Means:
        return log_objectives(self.contest.objective)

    @cached_property
    def _accuracies(self) -> Means:
        return accuracies(self.contest)

    @property
    def _shortfalls(self) -> Array:
        """Shortfall of each cell's accuracy, over the seeds that it shares with the baseline, if any; else NaN."""
        base, values, points = self.contest.baseline, self.contest.accuracy, self._accuracies.point
        if base is None:
            return np.full(len(points), np.nan)
        paired = Moments.of(values[base] - values).mean
        return np.where(np.isnan(paired), points[base] - points, paired)

    def _moves(self, means: Means) -> Array:
        """Return the scale of the t by which the further seeds move each mean; 0 without further seeds."""
        left = np.asarray(self.left)
        return np.where(left > 0, means.error * np.sqrt(left / np.maximum(means.n + left, 1)), 0.0)
