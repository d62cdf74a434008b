"""The cells that a recommendation chooses from, with their values by seed, and the cells that cannot be chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.analysis.by_seed import BySeed
from orchestrator.analysis.objective import Measure, measured, missed_s, time_s
from orchestrator.analysis.summary import SAMPLES, rows_of
from orchestrator.analysis.trials import collect
from orchestrator.analysis.validity import is_valid, with_valid_timings
from orchestrator.config.request import Metric, Request, Terms
from orchestrator.decision.cell_estimates import Measurements, Restarts, log_objectives, score_differences
from orchestrator.decision.choice import Choice, choose
from orchestrator.decision.eligibility import Eligible, speed_is_known
from orchestrator.decision.recommendation import Remark, remark
from orchestrator.decision.thresholds import SURE, TIE
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Array, Interval, Moments, logs, mean_interval
from orchestrator.statistics.pooling import Likeness
from orchestrator.store.record import OF_STARTED, PHASES, TrialRecord
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.cell_labels import cell_label, varying
from sweeps.layout import LAYOUT_AXES, is_independent
from sweeps.lr_rule import plainness
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

OF_SCALE = ("gpus", "device_batch_size", "global_batch_size")
"""Axes along which accuracies change gradually, if at all."""

LATER = 0.5
"""With one seed per cell, totals that differ by less than this part may differ by the chance of a start-up."""


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Contenders:
    """The cells to choose from, and the choice.

    Rows are cells: the candidates; cells that repeat a candidate's training, whose accuracies still count; and the
    baseline, even if the baseline's objective is unknown or its timing is not valid.
    """

    terms: Terms
    trials: pd.DataFrame
    """All trials of the sweep, without timings that do not count."""
    tried: pd.DataFrame
    """All cells of the sweep, whatever their status."""
    cells: pd.DataFrame
    """Rows of the summary, numbered from 0, with the `score` of each (see `Metric`)."""
    further_axes: Sequence[str]
    """The columns of the axes that a cell's name lists after GPUs, batch and rule (see `varying`)."""
    measure: Measure
    choice: Choice
    """Among the candidates."""
    eligible: Eligible
    """Which of the cells that were tried may be chosen."""
    untimed: pd.DataFrame
    """Rows of `tried` that are excluded only because their timing is not valid, with their `objective`, the geometric
    mean over the seeds; the least objective first."""
    totals: Mapping[str, Total]
    """Time, energy and cost of each cell, to the target or for the budget; NaN means not known."""
    poor_reference: int | None = None
    """The row of the plainest cell at the reference batch, if it is too poor to be the baseline (see
    `better_than_baseline`)."""
    ends_later: Remark | None = None
    """The cell that training time alone would choose, if its trials end later; then total times decide."""

    def remark(self, code: str, /, **values: Any) -> Remark:
        """Return a remark whose values include the measured objective, the metric of choice and its margin."""
        common = {"measure": self.measure.name, "metric": self.metric, "margin": self.terms.report.margin}
        return remark(code, **common | values)

    @property
    def measurements(self) -> Measurements:
        """The measurements that the choice is based on."""
        return self.choice.measurements

    @property
    def metric(self) -> Metric:
        """The metric of choice."""
        return self.terms.metric

    @property
    def baseline(self) -> int | None:
        """The row that accuracies are compared with."""
        return self.choice.measurements.baseline

    @property
    def deciding_time(self) -> str:
        """The entry of `totals` with the time that decides."""
        return "total_time" if self.ends_later else "time"

    @cached_property
    def chosen(self) -> int | None:
        """The row of the cell to recommend: the favourite, if its speed is known and no untimed cell seems better."""
        favourite = self.choice.favourite
        if favourite is None or self.seem_better:
            return None
        ids = self.cells["cell_id"]
        baseline = None if self.baseline is None else ids[self.baseline]
        return favourite if speed_is_known(self.cells, ids[favourite], baseline) else None

    @cached_property
    def seem_better(self) -> Mapping[str, str]:
        """Cells without a valid timing that seem to beat the favourite and may be within the margin, the best first.

        Names by `cell_id`. As long as there is one, a slower cell is not recommended. Without a favourite all untimed
        cells count.
        """
        favourite = self.choice.favourite
        limit = math.inf if favourite is None else self.objectives[favourite] / (1 + TIE)
        better = self.untimed[self.untimed["objective"] < limit]
        if self.baseline is not None:
            losses = float(self.cells["score"][self.baseline]) - better["score"].to_numpy(dtype="float64")
            better = better[~(self.measurements.excess(losses) > 0)]
        return {row["cell_id"]: cell_label(row, self.further_axes) for row in rows_of(better)}

    @cached_property
    def objectives(self) -> Array:
        """The geometric mean of each cell's objective; NaN for cells that may not be chosen."""
        return np.asarray(np.exp(self.choice.log_objective.point))

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """The cells that may be chosen."""
        return self.cells[~np.isnan(self.choice.log_objective.point)]

    @cached_property
    def rows(self) -> Sequence[Mapping[Any, Any]]:
        """The cells as {column: value}."""
        return rows_of(self.cells)

    @cached_property
    def names(self) -> Sequence[str]:
        """The cells' names."""
        return [cell_label(row, self.further_axes) for row in self.rows]

    def id_of(self, row: int | None) -> str | None:
        """Return the id of a cell; None for none."""
        return None if row is None else str(self.cells["cell_id"][row])

    @cached_property
    def seeds(self) -> Sequence[Sequence[int]]:
        """The seeds of each cell's trials, whatever their status, without those that a rule skipped before they ran."""
        started = self.trials[self.trials["skipped_by"].isin(OF_STARTED)]
        return list(started.groupby("cell_id")["seed"].agg(list).reindex(self.cells["cell_id"]))

    @cached_property
    def fewest_seeds(self) -> int:
        """The fewest ok seeds of a candidate, without those whose further seeds would not change the choice."""
        own = self.candidates["n_ok"]
        in_question = own[~_left_out(self.candidates, self.trials)]
        return int((own if in_question.empty else in_question).min())

    @cached_property
    def stragglers(self) -> Array:
        """How many seeds of each cell have a timing that does not count because it is a straggler's."""
        slow = self.trials.loc[self.trials["timing_fault"] == Fault.STRAGGLER.value, "cell_id"].value_counts()
        return np.asarray(slow.reindex(self.cells["cell_id"], fill_value=0).to_numpy(dtype="float64"))

    def p_best(self, row: int) -> float:
        """Return the probability that no cell within the margin is more than TIE better; NaN without a comparison."""
        return float(self.choice.p_best[row]) if self.is_compared else math.nan

    @cached_property
    def is_compared(self) -> bool:
        """True with several candidates, or with one that is left because all others are ruled out."""
        if len(self.candidates) > 1:
            return True
        others = ~self.eligible.kept & ~self.eligible.repeats
        return bool(others.any()) and not self.eligible.may_be_best.any()

    def is_ruled_out(self, gpus: float) -> bool:
        """Return whether the cells with so many GPUs ran, or a rule skipped them, and none of them can be the best."""
        own = self.tried["gpus"] == gpus
        may_be_used = self.tried["status"].isin([Status.OK.value, Status.SKIPPED.value])
        return bool(may_be_used[own].any()) and not self.eligible.may_be_best[own].any()

    @cached_property
    def n_timed(self) -> Array:
        """How many seeds have a valid timing; `n_timed` of the summary counts all ok ones where none has one."""
        timed: Array = self.cells["n_timed"].where(is_valid(self.cells["timing_valid"]), 0).to_numpy(dtype="float64")
        return timed

    def timed_once(self, row: int) -> bool:
        """Return whether only one of several seeds has a valid timing, which shows nothing about chance."""
        return bool(self.n_timed[row] == 1 < self.cells["n_ok"][row])

    @property
    def on_cpu(self) -> bool:
        """True if `gpus` counts processes, because the machines have no GPUs."""
        return set(self.tried["device"].dropna()) == {"cpu"}

    @staticmethod
    def among(request: Request, ok: Sequence[TrialRecord]) -> Contenders:
        """Return the contenders among the trials that are ok so far, while the sweep still runs.

        Every timing but a straggler's counts here: disturbed ones are repeated later.
        """
        trials, cells, terms = collect(request, ok)
        trials = trials.assign(timing_valid=trials["timing_fault"] != Fault.STRAGGLER.value)
        return Contenders.of(trials, cells.assign(timing_valid=True), terms)

    @staticmethod
    def of(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms) -> Contenders:
        """Return the ok cells with a valid timing, a figure of the objective, and the metric if any cell has it.

        If the favourite's trials end later than those of another cell that qualifies, total times decide.
        """
        differing = varying(cells)
        trials = with_valid_timings(trials)
        times = time_s(trials, terms.target, terms.budget)
        measure = measured(trials, terms, terms.report.objective, times=times)
        trials = trials.assign(objective=measure.values, score=terms.metric.score(trials))
        tried = cells.reset_index(drop=True).assign(score=terms.metric.score(cells).to_numpy())
        eligible = Eligible.of(tried, trials, measure, terms)
        # A cell that repeats another one's training would be a second baseline with the same accuracy.
        may_be_compared = (tried["status"] == Status.OK.value) & ~eligible.repeats
        baseline = baseline_row(tried[may_be_compared], tuple(terms.axes))
        rows = eligible.kept | eligible.repeats | (tried.index == baseline)
        own = tried[rows].reset_index(drop=True)
        # Cells that are only compared take part without an objective, so that none of them is chosen.
        is_candidate = eligible.kept[rows].to_numpy()[:, None]
        of_score = SAMPLES.get(terms.metric.name)
        of_ok = _by_seed_of_ok(trials, own)

        def total(objective: str, *, whole: bool = False) -> Total:
            of_trials = measured(trials, terms, objective, whole=whole, times=times)
            return Total(unit=of_trials.unit, logs=logs(of_ok(of_trials.values)))

        totals = {name: total(name) for name in ("time", "energy", "cost")}
        totals |= {f"total_{name}": total(name, whole=True) for name in ("time", "cost")}
        is_on_cpu = own["device"].eq("cpu").to_numpy()
        if not is_on_cpu.all():  # no GPU is paid for
            for name in ("cost", "total_cost"):
                totals[name] = replace(totals[name], logs=np.where(is_on_cpu[:, None], np.nan, totals[name].logs))
        measurements = Measurements(
            objective=np.where(is_candidate, of_ok(trials["objective"]), np.nan),
            accuracy=of_ok(trials["score"]),
            baseline=None if baseline is None else int(rows[:baseline].sum()),
            margin=terms.report.margin,
            likeness=_likeness(own, terms),
            collapsed=of_ok(trials["collapsed"].eq(True)) > 0,
            samples=float(trials[of_score].min()) if of_score in trials else math.nan,
            restarts=_restarts(trials, own),
            left_out=_left_out(own, trials),
            timing_group=_timing_group(own, terms),
            cost=totals["cost"].means(),
        )
        untimed = tried[eligible.untimed]
        objectives = np.exp(Moments.of(logs(_by_seed_of_ok(trials, untimed)(trials["objective"]))).mean)
        # Against a reference that trained badly, nearly every cell would be within the margin.
        better, reference = better_than_baseline(measurements), measurements.baseline
        if better is not None:
            measurements = replace(measurements, baseline=better)
        contenders = Contenders(
            terms=terms,
            trials=trials,
            tried=tried,
            cells=own,
            further_axes=differing,
            measure=measure,
            choice=choose(measurements),
            eligible=eligible,
            untimed=untimed.assign(objective=objectives).sort_values("objective", kind="stable"),
            totals=totals,
            poor_reference=None if better is None else reference,
        )
        return contenders._by_total_time()

    def _by_total_time(self) -> Contenders:
        """Return the contenders compared by total times if a cell that qualifies ends before the favourite."""
        whole = measured(self.trials, self.terms, self.terms.report.objective, whole=True)
        objective = _by_seed_of_ok(self.trials, self.cells)(whole.values)
        row, favourite = self._ends_sooner(objective), self.choice.favourite
        if row is None or favourite is None:
            return self
        times = {name: self.totals[name].means().tolist() for name in ("time", "total_time")}
        ends_later = remark(
            "ends_later",
            name=self.names[favourite],
            **{name: values[favourite] for name, values in times.items()},
            of_other=times["time"][row],
            total_of_other=times["total_time"][row],
        )
        cost = self.totals["total_cost"]
        # `measured` gives a total to every cell, also to those that may not be chosen.
        objective = np.where(np.isnan(self.measurements.objective).all(axis=1, keepdims=True), np.nan, objective)
        measurements = replace(self.measurements, objective=objective, cost=cost.means())
        choice, totals = choose(measurements), {**self.totals, "cost": cost}
        return replace(self, measure=whole, choice=choice, totals=totals, ends_later=ends_later)

    def _ends_sooner(self, totals: Array) -> int | None:
        """Return the cell that ends before the favourite with probability SURE; None if there is none.

        With one seed per cell, it must end earlier by LATER.
        """
        favourite, total = self.choice.favourite, log_objectives(totals)
        qualifies = self.choice.qualifies
        if favourite is None or np.isnan(total.point[qualifies]).any():
            return None
        difference = total.minus(favourite)
        p_sooner = difference.p_below(-math.log1p(TIE))
        # With one seed there is no probability, and start-up times vary a lot.
        by_point = difference.point < -math.log1p(LATER)
        sooner = qualifies & np.where(np.isnan(p_sooner), by_point, p_sooner >= SURE)
        return int(np.where(sooner, difference.point, np.inf).argmin()) if sooner.any() else None


def _left_out(cells: pd.DataFrame, trials: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for which cells phases left out further seeds."""
    return cells["cell_id"].isin(trials.loc[trials["skipped_by"] == PHASES, "cell_id"]).to_numpy(dtype=bool)


def _restarts(trials: pd.DataFrame, cells: pd.DataFrame) -> Restarts | None:
    """Return which seeds reached the target, and how long a missed one takes; None if no seed reached one."""
    reached = trials["time_to_target_s"].notna()
    if not reached.any():
        return None
    # A failed trial says nothing of how often a training misses the target.
    tried = trials[trials["status"] == Status.OK.value]
    by_cell = tried.assign(hit=reached, missed=missed_s(tried)).groupby("cell_id")
    counts = by_cell.agg(
        hits=("hit", "sum"), n=("hit", "size"), reached_s=("time_to_target_s", "mean"), missed_s=("missed", "mean")
    )
    counts = counts.reindex(cells["cell_id"])
    return Restarts(
        hits=counts["hits"].to_numpy(dtype="float64"),
        n=counts["n"].to_numpy(dtype="float64"),
        missed=(counts["missed_s"] / counts["reached_s"]).to_numpy(dtype="float64"),
    )


def _likeness(cells: pd.DataFrame, terms: Terms) -> Likeness:
    """Return the similarity of cells, by batch and by all other axes except the GPUs."""
    recipe = [column for axis, column in terms.axes.items() if axis not in OF_SCALE]
    batch = cells["global_batch_size"].to_numpy(dtype="float64")
    return Likeness(batch=batch, recipe=_group_numbers(cells, recipe))


def baseline_row(cells: pd.DataFrame, cell_axes: Sequence[str] = ()) -> int | None:
    """Return the label of the row that accuracies are compared with: the plainest cell at the reference batch.

    That is the cell with rule `none`, the multiplier nearest 1 and the fewest GPUs. If the sweep has further axes
    (models, optimizers; not layouts, whose accuracies differ by rounding), it is the most accurate of those, because
    any cell passes against a bad reference. For the same reason it is the most accurate cell of all if no cell is known
    to be at the reference batch.
    `better_than_baseline` may replace the result.
    """
    known = cells[cells["score"].notna()]
    references = known[known["cell_id"] == known["reference_cell_id"]]
    if references.empty:
        return None if known.empty else int(known.index.to_numpy()[known["score"].to_numpy().argmax()])
    has_more_axes = any(axis not in (*STANDARD_AXES, *LAYOUT_AXES) for axis in cell_axes)
    if "strategy" in cell_axes:
        has_more_axes |= any(map(is_independent, references["strategy"]))
    order = references.assign(
        plainness=pd.Series(map(plainness, references["lr_rule"], references["lr_multiplier"]), references.index),
        accuracy=-references["score"].fillna(-np.inf) if has_more_axes else 0.0,
    )
    return int(order.sort_values(["plainness", "accuracy", "gpus"], kind="stable").index[0])


def better_than_baseline(measurements: Measurements) -> int | None:
    """Return the most accurate candidate if the baseline is so far below it that most cells pass; else None.

    It is better by more than `margins.IMPLAUSIBLE`, and the lower end of the difference's 95% interval, where it is
    known, is above one margin.
    """
    difference, by_collapse = score_differences(measurements), measurements.collapses.mean
    may_be_chosen = ~np.isnan(measurements.objective).all(axis=1)
    above = np.where(may_be_chosen, difference.point - by_collapse, np.nan)
    if np.isnan(above).all():
        return None
    best = int(np.nanargmax(above))
    is_shown = not measurements.excess(float(difference.intervals().lo[best] - by_collapse[best])) <= 0
    return best if above[best] > margins.IMPLAUSIBLE * measurements.margin and is_shown else None


def _timing_group(cells: pd.DataFrame, terms: Terms) -> npt.NDArray[np.intp]:
    """Return an equal number for cells that differ only in their learning rate."""
    rates = ("lr_rule", "lr_multiplier", "lr")
    columns = [column for axis, column in terms.axes.items() if axis not in rates and column in cells]
    return _group_numbers(cells, columns)


def _group_numbers(cells: pd.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return an equal number for cells with the same values in these columns."""
    # As text, because a missing value does not equal itself. Row by row, pandas takes ten times as long.
    texts = [cells[column].astype(str) for column in columns] or [pd.Series("", cells.index)]
    return np.asarray(pd.factorize(pd.Series(list(zip(*texts, strict=True)), dtype="object"))[0])


def _by_seed_of_ok(trials: pd.DataFrame, cells: pd.DataFrame) -> Callable[[pd.Series[Any]], Array]:
    """Return what makes a table of values of the trials: a row per cell, a column per seed; NaN without an ok seed."""
    is_ok = trials["status"] == Status.OK.value
    by_seed = BySeed(cells["cell_id"], trials.loc[is_ok, ["cell_id", "seed"]])
    return lambda values: by_seed.table(values[is_ok])
