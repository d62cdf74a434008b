"""The cells that a recommendation chooses from, with their values by seed, and the cells that cannot be chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.cells import SAMPLES, by_seed
from orchestrator.analysis.objective import Measure, measured
from orchestrator.analysis.trials import cell_axes, collect_for
from orchestrator.analysis.validity import is_valid, only_sound
from orchestrator.analysis.work import is_short
from orchestrator.config.request import Metric, Request, Terms
from orchestrator.decision.choice import TIE, Choice, Contest, accuracy_differences, choose, log_objectives
from orchestrator.decision.recommendation import SURE, Remark, remark
from orchestrator.statistics.intervals import Array, Interval, Moments, logs, mean_interval
from orchestrator.statistics.pooling import Likeness
from orchestrator.store.record import TrialRecord
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.rows import cell_label, varying
from sweeps.lr_rule import SAME_AT_REFERENCE, plainness
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES


@dataclass(frozen=True, kw_only=True)
class Untimed:
    """A cell that cannot be chosen because its timing is not valid, with the figures of that timing."""

    cell_id: str
    name: str
    objective: float
    """Geometric mean over its seeds."""
    score: float
    """Mean over its seeds, as in `Metric`."""
    fault: Fault
    note: str
    """Why its timing is not valid, for people."""


PROVISIONAL = (Fault.DISTURBED.value, Fault.SHARED.value)
"""Faults of timings that still allow a provisional choice: under a steady load they remain comparable."""


@dataclass(frozen=True, kw_only=True)
class Eligible:
    """Which of a summary's cells may be chosen; one entry per cell."""

    kept: pd.Series[Any]
    repeats: pd.Series[Any]
    """Which are not kept because they are the same training as another one (see `_repeats`)."""
    left_out: Sequence[Remark]
    """A remark for each reason why cells are not kept, with their number."""

    without_metric: frozenset[str]
    """The `cell_id` of each ok cell that `has_metric` rules out."""

    @staticmethod
    def of(
        cells: pd.DataFrame, trials: pd.DataFrame, measure: Measure, terms: Terms, *, provisional: bool = False
    ) -> Eligible:
        """Find the eligible cells.

        Cells with a fault in PROVISIONAL are eligible with `provisional`, or if no cell has a valid timing.
        """
        ok, skipped = (cells["status"] == status.value for status in (Status.OK, Status.SKIPPED))
        with_metric = has_metric(cells, trials)
        has_figure = _known(cells, trials)
        known = has_figure & with_metric
        valid = known & is_valid(cells["timing_valid"])
        usable = valid | (known & cells["timing_fault"].isin(PROVISIONAL))
        timed = valid if valid.any() and not provisional else usable if usable.any() else known
        # A cell that did less than its work is never chosen over one that did all of it.
        short = is_short(cells["work_done"])
        timed = timed & ~short if (timed & ~short).any() else timed
        repeats = _repeats(cells, known, timed, terms.axes)
        groups = {
            "cells_not_ok": ~ok & ~skipped,
            "cells_skipped": skipped,
            "no_figure": ok & ~has_figure,
            "no_metric": has_figure & ~with_metric,
            "cells_short": known & short & ~timed,
            "cells_not_timed": known & ~short & ~timed,
            "same_training": timed & repeats,
        }
        left_out = [
            remark(code, count=int(rows.sum()), measure=measure.name, metric=terms.metric)
            for code, rows in groups.items()
            if rows.any()
        ]
        without_metric = frozenset(cells.loc[ok & ~with_metric, "cell_id"])
        return Eligible(kept=timed & ~repeats, repeats=repeats, left_out=left_out, without_metric=without_metric)


def has_metric(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether all of its ok seeds have the metric of choice, or no ok seed of any cell has it.

    No cell is chosen without the metric where others have it: a seed without one has usually diverged.
    """
    ok = trials[trials["status"] == Status.OK.value]
    lacking = ok.loc[ok["score"].isna(), "cell_id"]
    return ~cells["cell_id"].isin(lacking) | bool(ok["score"].isna().all())


def _repeats(
    cells: pd.DataFrame, known: pd.Series[Any], timed: pd.Series[Any], axes: Mapping[str, str]
) -> pd.Series[Any]:
    """Return whether each cell is the same training as another one, so that only chance could choose between the two.

    Rules in SAME_AT_REFERENCE and warm-ups change nothing at the reference batch (see `Comparison.references`). Of such
    cells, the first one is kept: one with a valid timing, and among those one with rule `none`.
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
    """Return whether each cell is ok and has a figure of the objective, valid or not."""
    return (cells["status"] == Status.OK.value) & cells["cell_id"].isin(trials.loc[trials["objective"] > 0, "cell_id"])


def untimed(cells: pd.DataFrame, trials: pd.DataFrame, differing: Sequence[str]) -> list[Untimed]:
    """Return the cells that have a figure of the objective; the least first.

    The figure is false if too few workers trained, and a cell that did less than its work is not chosen.
    """
    is_sound = (cells["timing_fault"] != Fault.TOO_FEW_WORKERS.value) & ~is_short(cells["work_done"])
    cells = cells[_known(cells, trials) & is_sound]
    if cells.empty:
        return []
    ok = trials[trials["status"] == Status.OK.value]
    objectives = np.exp(Moments.of(logs(by_seed(cells["cell_id"], ok, "objective"))).mean).tolist()
    found = [
        Untimed(
            cell_id=row["cell_id"],
            name=cell_label(row, differing),
            objective=objective,
            score=row["score"],
            fault=Fault(row["timing_fault"]),
            note=str(row["note"]).rstrip("."),
        )
        for row, objective in zip(cells.to_dict("records"), objectives, strict=True)
    ]
    return sorted(found, key=lambda each: each.objective)


def commonest_end(trials: pd.DataFrame) -> Remark | None:
    """Return how most trials ended; None if a trial is ok."""
    if trials.empty or (trials["status"] == Status.OK.value).any():
        return None
    ends = trials.groupby(["status", "note"], sort=False).size()
    status, note = ends.index[int(ends.to_numpy().argmax())]
    return remark("commonest_end", count=int(ends.max()), trials=len(trials), status=status, note=note)


OF_SCALE = ("gpus", "device_batch_size", "global_batch_size")
"""Axes along which accuracies change gradually, if at all."""

LATER = 0.1
"""With one seed per cell, start-up times that differ by less than this part of the total may differ by chance."""

UNSOUND = 10
"""A cell at the reference batch is no baseline if another one is better by more than this multiple of the margin."""

_ROUNDING = 1e-9
"""Added to the margin: a loss of just the margin is within it, also where 1.0 - 0.99 comes out above 0.01."""

_SEED = 0
"""Seed of the random draws, so that the same frames give the same recommendation."""


@dataclass(frozen=True, kw_only=True)
class Total:
    """The time, energy or cost of a trial of each cell."""

    unit: str
    logs: Array
    """Rows are cells, columns are seeds; NaN means not known."""

    def means(self) -> Array:
        """Return the geometric mean of each cell."""
        return np.asarray(np.exp(Moments.of(self.logs).mean))

    def intervals(self) -> Interval:
        """Return 95% intervals of these means."""
        return mean_interval(self.logs).map(np.exp)


@dataclass(frozen=True, kw_only=True)
class Contenders:
    """The cells to choose from, and the choice.

    Rows are cells: the candidates; cells that repeat a candidate's training, whose accuracies still count; and the
    baseline, even if the baseline's objective is unknown or its timing is not valid.
    """

    cells: pd.DataFrame
    """Rows of the summary, numbered from 0, with the `score` of each (see `Metric`)."""
    tried: pd.DataFrame
    """All cells of the sweep, whatever their status."""
    seeds: Sequence[Sequence[int]]
    """The trials of each cell, whatever their status."""
    names: Sequence[str]
    """Their labels."""
    measure: Measure
    metric: Metric
    contest: Contest
    choice: Choice
    """Among the candidates."""
    left_out: Sequence[Remark]
    """A remark for each reason why other cells cannot be chosen."""
    untimed: Sequence[Untimed]
    """Cells excluded because others have valid timings; the least objective first."""
    without_metric: frozenset[str]
    """The `cell_id` of each ok cell that lacks the metric where others have it."""
    commonest_end: Remark | None
    """How most trials ended, if none is ok."""
    totals: Mapping[str, Total]
    """Time, energy and cost of each cell, to the target or for the budget; NaN means not known."""
    whole: Array
    """The objective with start-up, compilation and evaluation, by cell and seed; NaN for energies."""
    unfinished: bool
    """Whether planned trials have not run yet."""
    stragglers: Array
    """How many seeds of each cell have a timing that does not count because it is a straggler's."""
    poor_reference: int | None = None
    """The row of the plainest cell at the reference batch, if it is too poor to be the baseline (see
    `better_than_baseline`)."""
    ends_later: Remark | None = None
    """The cell that training time alone would choose, if its trials end later; then total times decide."""

    @property
    def deciding_time(self) -> str:
        """The entry of `totals` with the time that decides."""
        return "total_time" if self.ends_later else "time"

    @property
    def chosen(self) -> int | None:
        """The row of the cell to recommend: the favourite, unless a better cell has no usable timing, or all have none.

        Timings with a fault in PROVISIONAL are usable, and the choice is provisional then.
        """
        usable = self._valid | self.candidates["timing_fault"].isin(PROVISIONAL)
        return None if self.seem_better or not usable.all() else self.choice.favourite

    @property
    def are_timed(self) -> bool:
        """True if the candidates' timings are valid; others are candidates only if they seem better, or none is."""
        return bool(self._valid.all())

    @property
    def untimed_candidates(self) -> int:
        """The number of candidates without a valid timing."""
        return int((~self._valid).sum())

    @property
    def _valid(self) -> pd.Series[bool]:
        return is_valid(self.candidates["timing_valid"])

    @property
    def seem_better(self) -> list[Untimed]:
        """Cells without a valid timing that seem to beat the favourite and may be within the margin; the best first.

        As long as there is one, a slower cell is not recommended.
        """
        if self.choice.favourite is None:
            return []
        limit = math.exp(self.choice.log_objective.point[self.choice.favourite] - math.log1p(TIE))
        baseline = self.contest.baseline
        least = -math.inf if baseline is None else float(self.cells["score"][baseline]) - self.contest.margin
        return [each for each in self.untimed if each.objective < limit and not each.score < least]

    @property
    def objectives(self) -> Array:
        """The geometric mean of each cell's objective; NaN for cells that may not be chosen."""
        return np.asarray(np.exp(self.choice.log_objective.point))

    @property
    def candidates(self) -> pd.DataFrame:
        """The cells that may be chosen."""
        return self.cells[~np.isnan(self.choice.log_objective.point)]

    def p_best(self, row: int) -> float:
        """Return the probability that no cell within the margin is more than TIE better; NaN for a single candidate."""
        return math.nan if len(self.candidates) == 1 else float(self.choice.p_best[row])

    @property
    def n_ok(self) -> Array:
        """How many seeds of each cell are ok."""
        return self.cells["n_ok"].to_numpy(dtype="float64")

    @property
    def n_timed(self) -> Array:
        """How many of these have a valid timing; `n_timed` of the summary counts all of them where none has one."""
        timed: Array = self.cells["n_timed"].where(is_valid(self.cells["timing_valid"]), 0).to_numpy(dtype="float64")
        return timed

    def timed_once(self, row: int) -> bool:
        """Return whether only one of several seeds has a valid timing, which shows nothing about chance."""
        return bool(self.n_timed[row] == 1 < self.n_ok[row])

    @property
    def on_cpu(self) -> bool:
        """True if `gpus` counts processes, because the machines have no GPUs."""
        return "cpu" in set(self.tried["device"])

    @property
    def at_reference(self) -> bool:
        """True if the baseline is at the reference batch."""
        row = self.contest.baseline
        return row is not None and self.cells["cell_id"][row] == self.cells["reference_cell_id"][row]

    @staticmethod
    def among(request: Request, ok: Sequence[TrialRecord]) -> Contenders:
        """Return the contenders among the trials that are ok so far, while the sweep still runs.

        Every timing but a straggler's counts here: disturbed ones are repeated later.
        """
        trials, cells = collect_for(request, ok)
        trials = trials.assign(timing_valid=trials["timing_fault"] != Fault.STRAGGLER.value)
        return Contenders.of(trials, cells.assign(timing_valid=True), Terms.of(request, cell_axes(ok)))

    @staticmethod
    def of(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms) -> Contenders:
        """Return the ok cells with a known objective; only those with a valid timing, if any cell has one.

        If a cell with a fault in PROVISIONAL seems better than all of these, such cells are contenders, too. If the
        favourite's trials end later than those of another cell that qualifies, total times decide.
        """
        found = Contenders._of(trials, cells, terms)
        open_yet = any(each.fault.value in PROVISIONAL for each in found.seem_better)
        found = Contenders._of(trials, cells, terms, provisional=True) if open_yet else found
        if (row := found._ends_sooner()) is None:
            return found
        times = {name: found.totals[name].means().tolist() for name in ("time", "total_time")}
        ends_later = remark(
            "ends_later",
            name=found.names[found.choice.favourite or 0],
            **{name: values[found.choice.favourite or 0] for name, values in times.items()},
            of_other=times["time"][row],
            total_of_other=times["total_time"][row],
        )
        return Contenders._of(trials, cells, terms, provisional=open_yet, ends_later=ends_later)

    def _ends_sooner(self) -> int | None:
        """Return the cell that ends before the favourite with probability SURE; None if there is none.

        With one seed per cell, it must end earlier by LATER.
        """
        favourite, total = self.choice.favourite, log_objectives(self.whole)
        eligible = self.choice.passes & ~np.isnan(self.choice.log_objective.point)
        if favourite is None or np.isnan(total.point[eligible]).any():
            return None
        apart = total.minus(favourite)
        p_sooner = apart.p_below(-math.log1p(TIE))
        sooner = eligible & np.where(np.isnan(p_sooner), apart.point < -math.log1p(LATER), p_sooner >= SURE)
        return int(np.where(sooner, apart.point, np.inf).argmin()) if sooner.any() else None

    @staticmethod
    def _of(
        trials: pd.DataFrame,
        cells: pd.DataFrame,
        terms: Terms,
        *,
        provisional: bool = False,
        ends_later: Remark | None = None,
    ) -> Contenders:
        trials = only_sound(trials)
        steady, whole = (_measured(trials, terms.objective, terms, whole=each) for each in (False, True))
        found = whole if ends_later else steady
        tried, differing = cells, varying(cells)
        trials = trials.assign(objective=found.values, score=terms.metric.score(trials))
        cells = cells.reset_index(drop=True).assign(score=terms.metric.score(cells))
        eligible = Eligible.of(cells, trials, found, terms, provisional=provisional)
        kept = eligible.kept
        to_compare = (cells["status"] == Status.OK.value) & ~eligible.repeats
        baseline = baseline_row(cells[to_compare], tuple(terms.axes.values()))
        rows = kept | eligible.repeats | (cells.index == baseline)
        own, candidates = cells[rows].reset_index(drop=True), kept[rows].to_numpy()
        contest = Contest(
            objective=np.where(candidates[:, None], _by_seed(trials, own, "objective"), np.nan),
            accuracy=_by_seed(trials, own, "score"),
            baseline=None if baseline is None else int(rows[:baseline].sum()),
            margin=terms.margin + _ROUNDING,
            likeness=_likeness(own, terms),
            collapsed=_by_seed(trials.assign(collapsed=trials["collapsed"].eq(True)), own, "collapsed") > 0,
            samples=_samples(trials, terms),
        )
        better = better_than_baseline(contest)
        poor_reference = None if better is None else contest.baseline
        contest = contest if better is None else replace(contest, baseline=better)
        names = [cell_label(row, differing) for row in own.to_dict("records")]
        seeds = trials.groupby("cell_id")["seed"].agg(list)
        return Contenders(
            cells=own,
            tried=tried,
            seeds=list(seeds.reindex(own["cell_id"])),
            names=names,
            measure=found,
            metric=terms.metric,
            contest=contest,
            choice=choose(contest, np.random.default_rng(_SEED)),
            left_out=eligible.left_out,
            untimed=untimed(
                cells[~kept & ~eligible.repeats & ~cells["cell_id"].isin(eligible.without_metric)], trials, differing
            ),
            without_metric=eligible.without_metric,
            commonest_end=commonest_end(trials),
            totals={
                "time": _total(trials, own, "time", terms),
                "total_time": _total(trials, own, "time", terms, whole=True),
                "energy": _total(trials, own, "energy", terms),
                "cost": _total(trials, own, "cost", terms, whole=ends_later is not None),
            },
            whole=_by_seed(trials.assign(whole=whole.values), own, "whole"),
            ends_later=ends_later,
            unfinished=terms.unfinished,
            stragglers=_stragglers(trials, own),
            poor_reference=poor_reference,
        )


def _stragglers(trials: pd.DataFrame, cells: pd.DataFrame) -> Array:
    slow = trials.loc[trials["timing_fault"] == Fault.STRAGGLER.value, "cell_id"].value_counts()
    return np.asarray(slow.reindex(cells["cell_id"], fill_value=0).to_numpy(dtype="float64"))


def _samples(trials: pd.DataFrame, terms: Terms) -> float:
    """Return the fewest samples of which a score is the share; NaN if it is no share, or unknown."""
    column = SAMPLES.get(terms.metric.name)
    return float(trials[column].min()) if column in trials else math.nan


def _likeness(cells: pd.DataFrame, terms: Terms) -> Likeness:
    """Return the similarity of cells, by batch and by all other axes except the GPUs."""
    recipe = [column for axis, column in terms.axes.items() if axis not in OF_SCALE]
    alike = cells[recipe].astype(str).agg(tuple, axis="columns") if recipe else pd.Series(0, cells.index)
    batch = cells["global_batch_size"].to_numpy(dtype="float64")
    return Likeness(batch=batch, recipe=np.asarray(pd.factorize(alike)[0]))


def baseline_row(cells: pd.DataFrame, cell_axes: Sequence[str] = ()) -> int | None:
    """Return the label of the row that accuracies are compared with: the plainest cell at the reference batch.

    That is the cell with rule `none`, the multiplier nearest 1 and the fewest GPUs. If the sweep has further axes
    (models, optimizers), it is the most accurate of those, because any cell passes against a bad reference. For the
    same reason it is the most accurate cell of all if no cell is known to be at the reference batch.
    `better_than_baseline` may replace the result.
    """
    known = cells[cells["score"].notna()]
    references = known[known["cell_id"] == known["reference_cell_id"]]
    if references.empty:
        return None if known.empty else int(known.index.to_numpy()[known["score"].to_numpy().argmax()])
    further = any(column not in STANDARD_AXES for column in cell_axes)
    order = references.assign(
        plainness=pd.Series(map(plainness, references["lr_rule"], references["lr_multiplier"]), references.index),
        accuracy=-references["score"].fillna(-np.inf) if further else 0.0,
    )
    return int(order.sort_values(["plainness", "accuracy", "gpus"], kind="stable").index[0])


def better_than_baseline(contest: Contest) -> int | None:
    """Return the most accurate candidate if the baseline is so far below it that most cells pass; else None.

    It is better by more than UNSOUND margins, and the lower end of the difference's 95% interval, where it is known, is
    above one margin.
    """
    found = accuracy_differences(contest)
    lost, may_be = contest.lost.mean, ~np.isnan(contest.objective).all(axis=1)
    above = np.where(may_be, found.point - lost, np.nan)
    if np.isnan(above).all():
        return None
    best = int(np.nanargmax(above))
    shown = not found.intervals().lo[best] - lost[best] <= contest.margin
    return best if above[best] > UNSOUND * contest.margin and shown else None


def _by_seed(trials: pd.DataFrame, cells: pd.DataFrame, column: str) -> Array:
    """Return values with a row per cell and a column per seed; NaN if a cell has no such ok seed."""
    return by_seed(cells["cell_id"], trials[trials["status"] == Status.OK.value], column)


def _measured(trials: pd.DataFrame, objective: str, terms: Terms, *, whole: bool) -> Measure:
    price, currency = terms.price_per_gpu_hour, terms.currency
    return measured(trials, objective, terms.target, price, terms.budget, currency, whole=whole)


def _total(trials: pd.DataFrame, cells: pd.DataFrame, objective: str, terms: Terms, *, whole: bool = False) -> Total:
    found = _measured(trials, objective, terms, whole=whole)
    return Total(unit=found.unit, logs=logs(_by_seed(trials.assign(total=found.values), cells, "total")))
