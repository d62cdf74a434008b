"""The cells that a recommendation chooses from, with their values by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.collection.by_seed import by_seed
from orchestrator.collection.collector import cell_axes, collect_for
from orchestrator.collection.measure import Measure, measured
from orchestrator.collection.timed import is_valid, only_sound
from orchestrator.config.request import Request
from orchestrator.config.terms import Terms
from orchestrator.decision.choice import TIE, Choice, choose
from orchestrator.decision.contest import Contest
from orchestrator.decision.left_out import Eligible, Spoiled, commonest_end, spoiled
from orchestrator.journal.record import TrialRecord
from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.means import Array, Interval, Moments, logs
from orchestrator.statistics.pooling import Likeness
from orchestrator.text.cell_in_words import in_words, telling
from sweeps.lr_rule import plainness
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

_OF_SCALE = ("gpus", "device_batch_size", "global_batch_size")
"""Axes along which accuracies change gradually, if at all."""

_ROUNDING = 1e-9
"""Added to the margin: a loss of just the margin is within it, also where 1.0 - 0.99 comes out above 0.01."""

_SEED = 0
"""Seed of the random draws, so that the same frames give the same recommendation."""


@dataclass(frozen=True, kw_only=True)
class Total:
    """What a trial of each cell takes: time, energy or cost."""

    unit: str
    logs: Array
    """Rows are cells, columns are seeds; NaN means not known."""

    def means(self) -> Array:
        """Geometric mean of each cell."""
        return np.asarray(np.exp(Moments.of(self.logs).mean))

    def intervals(self) -> Interval:
        """95% intervals of these means."""
        return mean_interval(self.logs).map(np.exp)


@dataclass(frozen=True, kw_only=True)
class Contenders:
    """The cells to choose from, and the choice.

    Rows are cells: the candidates, those that repeat another one's training, whose accuracies count all the same, and
    the baseline even if its objective is not known or its timing is not valid.
    """

    cells: pd.DataFrame
    """Rows of the summary, numbered from 0."""
    tried: pd.DataFrame
    """All cells of the sweep, whatever their status."""
    seeds: Sequence[Sequence[int]]
    """The trials of each cell, whatever their status."""
    names: Sequence[str]
    """In words."""
    measure: Measure
    contest: Contest
    choice: Choice
    """Among the candidates."""
    left_out: Sequence[str]
    """A line for each reason why other cells cannot be chosen."""
    spoiled: Sequence[Spoiled]
    """Cells excluded because others have valid timings; the least objective first."""
    commonest_end: str
    """How most trials ended, in a sentence, if none is ok; else empty."""
    totals: Mapping[str, Total]
    """Time, energy and cost of each cell, to the target or for the budget; NaN means not known."""
    unfinished: bool
    """Whether planned trials have not run yet."""

    @property
    def chosen(self) -> int | None:
        """The row of the cell to recommend: the favourite, unless it cannot be known to be the fastest because its own
        timing, or that of a cell that seems better, is not valid.
        """
        return None if self.seem_better or not self.are_timed else self.choice.favourite

    @property
    def are_timed(self) -> bool:
        """Whether the candidates' timings are valid: if any cell's is, cells without are no candidates."""
        return bool(is_valid(self.candidates["timing_valid"]).all())

    @property
    def seem_better(self) -> list[Spoiled]:
        """Spoiled cells with less of the objective than the choice and, as far as known, within the margin; best first.

        That their figures cannot be trusted is no reason to trust a slower cell.
        """
        if self.choice.favourite is None:
            return []
        limit = math.exp(self.choice.log_objective.point[self.choice.favourite] - math.log1p(TIE))
        baseline = self.contest.baseline
        least = -math.inf if baseline is None else float(self.cells["val_accuracy"][baseline]) - self.contest.margin
        return [each for each in self.spoiled if each.objective < limit and not each.val_accuracy < least]

    @property
    def candidates(self) -> pd.DataFrame:
        """The cells that may be chosen."""
        return self.cells[~np.isnan(self.choice.log_objective.point)]

    def p_best(self, row: int) -> float:
        """Probability that no cell within the margin is more than TIE better; NaN if there is only one candidate."""
        return math.nan if len(self.candidates) == 1 else float(self.choice.p_best[row])

    @property
    def at_reference(self) -> bool:
        """Whether the baseline is at the reference batch."""
        row = self.contest.baseline
        return row is not None and self.cells["cell_id"][row] == self.cells["reference_cell_id"][row]

    @staticmethod
    def among(request: Request, ok: Sequence[TrialRecord]) -> Contenders:
        """During a sweep: the contenders among the trials that are ok so far.

        All timings count: spoiled ones are measured again later, and are good enough until then.
        """
        trials, cells = (frame.assign(timing_valid=True) for frame in collect_for(request, ok))
        return Contenders.of(trials, cells, Terms.of(request, cell_axes(ok)))

    @staticmethod
    def of(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms) -> Contenders:
        """The ok cells with a known objective; only those with valid timings, if there are any."""
        trials = only_sound(trials)
        found = measured(trials, terms.objective, terms.target, terms.price_per_gpu_hour, terms.budget)
        trials, cells = trials.assign(objective=found.values), cells.reset_index(drop=True)
        eligible = Eligible.of(cells, trials, found.name, terms.axes)
        kept = eligible.kept
        to_compare = (cells["status"] == Status.OK.value) & ~eligible.repeats
        baseline = baseline_row(cells[to_compare], tuple(terms.axes.values()))
        rows = kept | eligible.repeats | (cells.index == baseline)
        own, candidates = cells[rows].reset_index(drop=True), kept[rows].to_numpy()
        contest = Contest(
            objective=np.where(candidates[:, None], _by_seed(trials, own, "objective"), np.nan),
            accuracy=_by_seed(trials, own, "val_accuracy"),
            baseline=None if baseline is None else int(rows[:baseline].sum()),
            margin=terms.margin + _ROUNDING,
            likeness=_likeness(own, terms),
        )
        columns = telling(cells)
        names = [in_words(row, columns) for row in own.to_dict("records")]
        seeds = trials.groupby("cell_id")["seed"].agg(list)
        return Contenders(
            cells=own,
            tried=cells,
            seeds=list(seeds.reindex(own["cell_id"])),
            names=names,
            measure=found,
            contest=contest,
            choice=choose(contest, np.random.default_rng(_SEED)),
            left_out=eligible.left_out,
            spoiled=spoiled(cells[~kept & ~eligible.repeats], trials, columns),
            commonest_end=commonest_end(trials),
            totals={each: _total(trials, own, each, terms) for each in ("time", "energy", "cost")},
            unfinished=terms.unfinished,
        )


def _likeness(cells: pd.DataFrame, terms: Terms) -> Likeness:
    """Similarity of cells, by batch and by all other axes except the GPUs."""
    recipe = [column for axis, column in terms.axes.items() if axis not in _OF_SCALE]
    alike = cells[recipe].astype(str).agg(tuple, axis="columns") if recipe else pd.Series(0, cells.index)
    batch = cells["global_batch_size"].to_numpy(dtype="float64")
    return Likeness(batch=batch, recipe=np.asarray(pd.factorize(alike)[0]))


def baseline_row(cells: pd.DataFrame, cell_axes: Sequence[str] = ()) -> int | None:
    """The label of the row that accuracies are compared with: the plainest cell at the reference batch.

    That is rule `none`, the multiplier nearest 1 and the fewest GPUs; where the sweep has further axes (models,
    optimizers), the highest mean validation accuracy among those, since anything would pass against a bad reference.
    For the same reason it is the highest of all if no cell is known to be at the reference batch.
    """
    known = cells[cells["val_accuracy"].notna()]
    references = known[known["cell_id"] == known["reference_cell_id"]]
    if references.empty:
        return None if known.empty else int(known.index.to_numpy()[known["val_accuracy"].to_numpy().argmax()])
    further = any(column not in STANDARD_AXES for column in cell_axes)
    order = references.assign(
        plainness=pd.Series(map(plainness, references["lr_rule"], references["lr_multiplier"]), references.index),
        accuracy=-references["val_accuracy"].fillna(-np.inf) if further else 0.0,
    )
    return int(order.sort_values(["plainness", "accuracy", "gpus"], kind="stable").index[0])


def _by_seed(trials: pd.DataFrame, cells: pd.DataFrame, column: str) -> Array:
    """Values with a row per cell and a column per seed; NaN if a cell has no such ok seed."""
    return by_seed(cells["cell_id"], trials[trials["status"] == Status.OK.value], column)


def _total(trials: pd.DataFrame, cells: pd.DataFrame, objective: str, terms: Terms) -> Total:
    found = measured(trials, objective, terms.target, terms.price_per_gpu_hour, terms.budget)
    return Total(unit=found.unit, logs=logs(_by_seed(trials.assign(total=found.values), cells, "total")))
