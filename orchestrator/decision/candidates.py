"""The cells that a recommendation chooses from, with their values by seed.

Which cells may not be chosen, and why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.cells import by_seed
from orchestrator.analysis.objective import Measure, measured
from orchestrator.analysis.trials import cell_axes, collect_for
from orchestrator.analysis.validity import is_valid, only_sound
from orchestrator.config.request import Request, Terms
from orchestrator.decision.choice import TIE, Choice, Contest, choose
from orchestrator.statistics.intervals import Array, Interval, Moments, logs, mean_interval
from orchestrator.statistics.pooling import Likeness
from orchestrator.store.record import TrialRecord
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text import figures
from orchestrator.text.rows import cell_label, varying
from sweeps.lr_rule import SAME_AT_REFERENCE, plainness
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

_LONGEST_NOTE = 200
"""Maximum length of a trial's note in a sentence, in characters."""

_SAME = "at the reference batch, where rules and warm-ups change nothing, and so the same training as"


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """A cell that cannot be chosen because its timing is not valid, with its result anyway."""

    cell_id: str
    name: str
    objective: float
    """Geometric mean over its seeds."""
    val_accuracy: float
    fault: Fault
    note: str
    """Why its timing is not valid."""


def remedy_of(fault: Fault, rerun: str = "all", *, unfinished: bool = False) -> str:
    """How to get a valid timing; `rerun` is the cell to run again, `unfinished` whether planned trials have not run."""
    if fault is Fault.TOO_SHORT:
        return (
            "give the trials a longer budget (budget.epochs, or the length that is set instead), or set"
            " trainable.window_s, if the trainable has that key"
        )
    if fault is Fault.SHARED:
        return "let each trial have its devices to itself (resources.timing=auto)"
    if fault is Fault.SEVERAL_MODELS:
        return "choose one device model (cluster.gpu_type)"
    if unfinished:
        return "let the sweep finish: the same command continues it, and then repeats disturbed timings"
    return f"run it again (rerun={rerun}), or with further seeds, while nothing else uses the machine"


@dataclass(frozen=True, kw_only=True)
class Eligible:
    """Which of a summary's cells may be chosen; one entry per cell."""

    kept: pd.Series[Any]
    repeats: pd.Series[Any]
    """Which are not kept because they are the same training as another one (see `_repeats`)."""
    left_out: Sequence[str]
    """A line for each reason why cells are not kept."""

    @staticmethod
    def of(cells: pd.DataFrame, trials: pd.DataFrame, measure: str, axes: Mapping[str, str]) -> Eligible:
        """`measure` names what is minimised; `axes` has the column of each axis that tells cells apart."""
        ok, skipped = (cells["status"] == status.value for status in (Status.OK, Status.SKIPPED))
        known = _known(cells, trials)
        valid = known & is_valid(cells["timing_valid"])
        timed = valid if valid.any() else known
        repeats = _repeats(cells, known, timed, axes)
        lines = [
            figures.counted(int((~ok & ~skipped).sum()), "cell is not ok", "cells are not ok"),
            figures.counted(int(skipped.sum()), "cell was skipped", "cells were skipped"),
            figures.counted(int((ok & ~known).sum()), f"cell has no {measure}", f"cells have no {measure}"),
            figures.counted(int((known & ~timed).sum()), "cell has no valid timing", "cells have no valid timing"),
            figures.counted(int((timed & repeats).sum()), f"cell is {_SAME} another one", f"cells are {_SAME} others"),
        ]
        return Eligible(kept=timed & ~repeats, repeats=repeats, left_out=[line for line in lines if line])


def _repeats(
    cells: pd.DataFrame, known: pd.Series[Any], timed: pd.Series[Any], axes: Mapping[str, str]
) -> pd.Series[Any]:
    """Whether each cell is the same training as another one: only chance would choose between the two.

    At the reference batch these rules and all warm-ups are (see `Comparison.references`). The first of such cells
    stands for all: one whose timing counts, of those one with rule `none`.
    """
    batch = cells.set_index("cell_id")["global_batch_size"]
    at_reference = cells["global_batch_size"] == batch.reindex(cells["reference_cell_id"]).to_numpy()
    alike = [column for axis, column in axes.items() if axis not in ("lr_rule", "warmup_epochs")]
    same = known & at_reference & cells["lr_rule"].isin(SAME_AT_REFERENCE)
    ranked = cells.assign(untimed=~timed, scaled=cells["lr_rule"] != "none")[same]
    found = ranked.sort_values(["untimed", "scaled"], kind="stable")
    further = found.index[found.duplicated([*alike, "device", "lr_multiplier"])]
    return pd.Series(cells.index.isin(further), index=cells.index)


def _known(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.Series[Any]:
    """Whether each cell is ok and has a figure of the objective, valid or not."""
    return (cells["status"] == Status.OK.value) & cells["cell_id"].isin(trials.loc[trials["objective"] > 0, "cell_id"])


def disturbed(cells: pd.DataFrame, trials: pd.DataFrame, columns: Sequence[str]) -> list[Disturbed]:
    """Cells that may not be chosen but have a figure; `columns` distinguish them."""
    cells = cells[_known(cells, trials)]
    if cells.empty:
        return []
    ok = trials[trials["status"] == Status.OK.value]
    objectives = np.exp(Moments.of(logs(by_seed(cells["cell_id"], ok, "objective"))).mean).tolist()
    rows = zip(cells.to_dict("records"), objectives, strict=True)
    found = [
        Disturbed(
            cell_id=row["cell_id"],
            name=cell_label(row, columns),
            objective=value,
            val_accuracy=row["val_accuracy"],
            fault=Fault(row["timing_fault"]),
            note=str(row["note"]).rstrip("."),
        )
        for row, value in rows
    ]
    return sorted(found, key=lambda each: each.objective)


def commonest_end(trials: pd.DataFrame) -> str:
    """How most trials ended, in a sentence, if none is ok."""
    if trials.empty or (trials["status"] == Status.OK.value).any():
        return ""
    ends = trials.groupby(["status", "note"], sort=False).size()
    (status, note), count = ends.index[int(ends.to_numpy().argmax())], int(ends.max())
    text = f"{status}: {note[:_LONGEST_NOTE]}" if note else status
    return f"{count} of {len(trials)} trials ended as {text.rstrip('.')}."


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
    disturbed: Sequence[Disturbed]
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
    def seem_better(self) -> list[Disturbed]:
        """Disturbed cells with less of the objective than the choice and, if known, within the margin; best first.

        That their figures cannot be trusted is no reason to trust a slower cell.
        """
        if self.choice.favourite is None:
            return []
        limit = math.exp(self.choice.log_objective.point[self.choice.favourite] - math.log1p(TIE))
        baseline = self.contest.baseline
        least = -math.inf if baseline is None else float(self.cells["val_accuracy"][baseline]) - self.contest.margin
        return [each for each in self.disturbed if each.objective < limit and not each.val_accuracy < least]

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

        All timings count: disturbed ones are measured again later, and are good enough until then.
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
        columns = varying(cells)
        names = [cell_label(row, columns) for row in own.to_dict("records")]
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
            disturbed=disturbed(cells[~kept & ~eligible.repeats], trials, columns),
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
