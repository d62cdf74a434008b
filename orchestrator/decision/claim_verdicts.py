"""Verdicts on a sweep's claims: looks up both sides of each claim in the frames and judges them.

The two sides are compared by seed: times, rates and speed-ups by the logarithm of left over right; accuracies and other
values that may be 0 by left minus right. A claim is *confirmed* if all of the 95% interval agrees with it, *refuted* if
none of it does, else *inconclusive*, as it is with too few seeds or epochs, or with seeds that are copies. The margin,
in the units of the sides, favours the claim: `a >= b` with a margin of 0.01 holds unless a is below b − 0.01, and
`a == b` also requires `a <= b + 0.01`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.by_seed import by_seed
from orchestrator.analysis.summary import SAMPLES
from orchestrator.analysis.validity import (
    is_invalid,
    is_ratio_scaled,
    is_timed,
    timed_by_one_process,
    with_valid_timings,
)
from orchestrator.decision.claim_expressions import Claim, Claimed, ExpressionError
from orchestrator.statistics.intervals import Array, at_least, least_error, mean_interval
from orchestrator.statistics.seeds_needed import seeds_to_exclude_0
from orchestrator.text.cell_labels import status
from sweeps.errors import nearest
from sweeps.status import Status

CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"

_ROUNDING = 1e-12
"""Differences of equal numbers, such as 0.91 − 0.9 and 0.92 − 0.91, differ by less."""

UNDECIDED_BY_INTERVAL = "the interval includes values for and against it"


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides of a claim by seed, arrays of one shape; NaN if a seed lacks a cell."""

    left: Array
    right: Array
    by_ratio: bool
    """Whether the sides are times, rates or the like, which are compared by ratio."""
    by_chance: bool = False
    """Whether they vary from seed to seed, as times and accuracies do, but counts need not."""
    samples: float | None = None
    """The number of samples, of all seeds together, of which accuracies are the share; NaN if unknown. None for other
    quantities."""

    @staticmethod
    def of(
        left: Array,
        right: Array,
        *,
        by_ratio: bool,
        margin: float = 0.0,
        by_chance: bool = False,
        samples: float | None = None,
    ) -> Sides:
        """Keep the seeds that have both sides. Ratios need values above 0 and a margin below all of them."""
        known = ~np.isnan(left) & ~np.isnan(right)
        left, right = left[known], right[known]
        above = bool((left > 0).all() and (right > margin).all())
        return Sides(left=left, right=right, by_ratio=by_ratio and above, by_chance=by_chance, samples=samples)

    @property
    def are_copies(self) -> bool:
        """True if all seeds have the same values of a quantity that varies by chance, or the same difference."""
        if not self.by_chance or all(bool((side == side[0]).all()) for side in (self.left, self.right)):
            return self.by_chance
        apart = self.compared()
        equal = abs(apart[0]) > _ROUNDING and bool(np.ptp(apart) < _ROUNDING)
        return equal and self.samples is not None and math.isnan(self.samples)

    def compared(self, shift: float = 0.0) -> Array:
        """Logarithm of left / (right + shift), or left − (right + shift)."""
        right = self.right + shift
        return np.asarray(np.log(self.left / right) if self.by_ratio else self.left - right)

    def mean(self, values: Array) -> float:
        """Geometric if the sides are compared by ratio."""
        return float(np.exp(np.log(values).mean()) if self.by_ratio else values.mean()) if len(values) else math.nan


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a claim with its figures; NaN means not known."""

    claim: Claim
    verdict: str
    why: str = ""
    """Why the verdict is inconclusive."""
    left: float = math.nan
    right: float = math.nan
    """Means of the two sides."""
    by_ratio: bool = False
    point: float = math.nan
    """Left side over right side where `by_ratio`, else left less right."""
    lo: float = math.nan
    hi: float = math.nan
    n: int = 0
    """Seeds that all cells of the claim have."""
    one_process: bool = False
    """Whether one process timed all seeds of a cell, so that the interval does not cover how processes differ."""
    seeds_to_settle: int | None = None
    """Total seeds to settle it; None if settled, if no practical number suffices, or if fewer than two say nothing."""


def judge(claim: Claim, sides: Sides, epochs: float = math.inf) -> Verdict:
    """Judge a claim; `epochs` is the fewest of its trials, NaN if one does not report it."""
    n, order = len(sides.left), Claimed.parse(claim.expression).order
    # Values by seed that are above (or not below) 0 if the claim holds; an equality has two bounds.
    below, above = sides.compared(-claim.margin), -sides.compared(claim.margin)
    tests = [below, above] if order == "==" else [below if order in (">", ">=") else above]
    # The standard error of the mean difference that the number of samples implies.
    least = 0.0
    if n and not sides.by_ratio and sides.samples is not None:
        least = float(least_error(sides.compared().mean(), np.asarray(sides.samples)))
    ends = [_interval(test, least)[1:] for test in tests]
    holds = operator.gt if order in "<>" else operator.ge
    reading = INCONCLUSIVE
    if not np.isnan(ends).any():
        if all(holds(lo, 0) for lo, _ in ends):
            reading = CONFIRMED
        elif not all(holds(hi, 0) for _, hi in ends):
            reading = REFUTED
    why = _why(claim, sides, epochs) or (UNDECIDED_BY_INTERVAL if reading == INCONCLUSIVE else "")
    point, lo, hi = _interval(sides.compared(), least)
    if sides.by_ratio:
        with np.errstate(over="ignore"):
            point, lo, hi = np.exp([point, lo, hi]).tolist()
    return Verdict(
        claim=claim,
        verdict=INCONCLUSIVE if why else reading,
        why=why,
        left=sides.mean(sides.left),
        right=sides.mean(sides.right),
        by_ratio=sides.by_ratio,
        point=point,
        lo=lo,
        hi=hi,
        n=n,
        seeds_to_settle=_to_settle(claim, reading, tests, n) if why else None,
    )


def _why(claim: Claim, sides: Sides, epochs: float) -> str:
    """Return why a claim cannot be judged; empty if it can."""
    n = len(sides.left)
    if n == 0:
        return "no seed has values for both sides"
    if n < 2:
        return "one seed gives no interval"
    if n < claim.needs_seeds:
        return f"it needs {claim.needs_seeds} seeds, and has {n}"
    if sides.are_copies:
        return f"all {n} seeds are identical, which says nothing about chance"
    if claim.needs_epochs > 0 and not epochs >= claim.needs_epochs:
        had = "the trials do not report theirs" if math.isnan(epochs) else f"the shortest trial had {epochs:.4g}"
        return f"it needs {claim.needs_epochs:g} epochs, and {had}"
    return ""


def _interval(values: Array, least: float) -> tuple[float, float, float]:
    """Return the mean and the ends of its interval, for a standard error of at least this; NaN without values."""
    if not len(values):
        return math.nan, math.nan, math.nan
    interval = at_least(mean_interval(values[None, :]), np.asarray(least))
    return float(interval.point[0]), float(interval.lo[0]), float(interval.hi[0])


def _to_settle(claim: Claim, reading: str, tests: Sequence[Array], n: int) -> int | None:
    """Return the seeds that settle an inconclusive claim; the required number if the present seeds agree already."""
    if n < 2:
        return None
    if reading != INCONCLUSIVE:
        return claim.needs_seeds if n < claim.needs_seeds else None
    nearest = min(tests, key=lambda test: float(test.mean()))  # the strongest against, or weakest for
    seeds = seeds_to_exclude_0(nearest)
    return None if seeds is None else max(claim.needs_seeds, seeds)


_OF_BASELINE = ("speedup", "efficiency")
"""Columns that compare a cell with its baseline; computed here by seed."""

_LEARNT = ("accuracy", "val_accuracy", "loss")


def verdicts(claims: Sequence[Claim], trials: pd.DataFrame, cells: pd.DataFrame) -> list[Verdict]:
    """Judge each claim; a claim about cells that are missing or not ok is inconclusive, with the reason."""
    values = _Values(trials, cells)
    return [_verdict(claim, values) for claim in claims]


def counts_of(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return how many claims have each verdict that occurs: confirmed, refuted, inconclusive."""
    found = Counter(verdict.verdict for verdict in verdicts)
    return {word: found[word] for word in (CONFIRMED, REFUTED, INCONCLUSIVE) if found[word]}


def _verdict(claim: Claim, values: _Values) -> Verdict:
    try:
        claimed = Claimed.parse(claim.expression)
        left, right = claimed.sides(values)
        origin = values.origin_of(claimed.references)
    except ExpressionError as error:
        return Verdict(claim=claim, verdict=INCONCLUSIVE, why=str(error))
    by_ratio = not claimed.subtracts and all(map(is_ratio_scaled, claimed.columns))
    samples = origin.samples if claimed.columns <= set(SAMPLES) else None
    by_chance = any(is_timed(column) or column in (*_OF_BASELINE, *_LEARNT) for column in claimed.columns)
    sides = Sides.of(left, right, by_ratio=by_ratio, margin=claim.margin, by_chance=by_chance, samples=samples)
    verdict = replace(judge(claim, sides, origin.fewest_epochs), one_process=origin.has_one_process)
    if origin.has_invalid_timing and verdict.n:  # further seeds with such timings would not settle it, either
        why = "the timing of one of its cells is not valid"
        return replace(verdict, verdict=INCONCLUSIVE, why=why, seeds_to_settle=None)
    return verdict


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The properties of the trials that a claim's values are of, which decide how far the values can be trusted."""

    fewest_epochs: float
    """NaN if a trial does not report its epochs; infinite without trials."""
    has_invalid_timing: bool
    has_one_process: bool
    """Whether one process timed all seeds of a cell."""
    samples: float
    """The fewest samples, of all seeds of a cell together, of its accuracies; NaN if unknown, infinite without any."""


class _Values:
    """The values of a sweep's cells by seed."""

    def __init__(self, trials: pd.DataFrame, cells: pd.DataFrame) -> None:
        self._cells = cells
        self._ok = with_valid_timings(trials)[trials["status"] == Status.OK.value]
        ends = trials["status"].map(Status)
        self._biased = set(trials.loc[ends.map(Status.is_result).astype(bool) & (ends != Status.OK), "cell_id"])
        """Cells with a seed that diverged, ran out of memory …: their other seeds alone are biased."""
        self._seeds = sorted(self._ok["seed"].unique())

    def __call__(self, column: str, selection: Mapping[str, Any]) -> Array:
        known = [name for name in self._ok.columns if pd.api.types.is_numeric_dtype(self._ok[name])]
        if column not in (*known, *_OF_BASELINE):
            raise ExpressionError(f"there is no column {column!r} of numbers{nearest(column, [*known, *_OF_BASELINE])}")
        cells = self._cells_with(column, selection)
        if column not in _OF_BASELINE:
            return self._by_seed(column, cells["cell_id"])
        ratios = self._by_seed("samples_per_s", cells["cell_id"])
        ratios = ratios / self._by_seed("samples_per_s", cells["baseline_cell_id"])
        if column == "speedup":
            return ratios
        gpus = self._cells.set_index("cell_id")["gpus"]
        at_baseline = gpus.reindex(cells["baseline_cell_id"]).to_numpy(dtype="float64")
        return np.asarray(ratios / (cells["gpus"].to_numpy(dtype="float64") / at_baseline)[:, None])

    def origin_of(self, references: Sequence[tuple[str, Mapping[str, Any]]]) -> _Origin:
        """Return the origin of these values, given as (column, selection)."""
        timed: set[str] = set()
        used: set[str] = set()
        samples = [math.inf]
        for column, selection in references:
            cells = self._cells_with(column, selection)
            ids = set(cells["cell_id"])
            if column in _OF_BASELINE:
                ids |= set(cells["baseline_cell_id"])
            used |= ids
            if column in _OF_BASELINE or is_timed(column):
                timed |= ids
            if column in SAMPLES:
                samples.append(self._fewest_samples(column, ids))
        timings = self._cells[self._cells["cell_id"].isin(timed)]
        epochs = self._ok.loc[self._ok["cell_id"].isin(used), "epochs"]
        return _Origin(
            fewest_epochs=float(epochs.min(skipna=False)) if len(epochs) else math.inf,
            has_invalid_timing=bool(is_invalid(timings["timing_valid"]).any()),
            has_one_process=bool(timed_by_one_process(timings).any()),
            samples=float(np.min(samples)),
        )

    def _fewest_samples(self, column: str, cell_ids: set[str]) -> float:
        known = self._ok[self._ok["cell_id"].isin(cell_ids) & self._ok[column].notna()]
        counts = known[SAMPLES[column]] if SAMPLES[column] in known else pd.Series(np.nan, index=known.index)
        of_cell = counts.groupby(known["cell_id"]).agg(lambda seeds: seeds.sum(skipna=False))
        return float(of_cell.min(skipna=False))

    def _cells_with(self, column: str, selection: Mapping[str, Any]) -> pd.DataFrame:
        chosen = self._cells
        for axis, value in selection.items():
            name = axis if axis in chosen else f"axes.{axis}"
            if name not in chosen:
                raise ExpressionError(f"there is no axis {axis!r}{nearest(axis, list(self._cells.columns))}")
            chosen = chosen[chosen[name].isna() if value is None else chosen[name] == value]
        selected = ", ".join(f"{axis}={value}" for axis, value in selection.items())
        if chosen.empty:
            raise ExpressionError(f"no cell has {selected}")
        bad = chosen[(chosen["n_ok"] == 0) | chosen["cell_id"].isin(self._biased)]
        if len(bad):
            raise ExpressionError(f"{column}({selected}): a cell is {status(bad.to_dict('records')[0])}")
        return chosen

    def _by_seed(self, column: str, cell_ids: pd.Series[Any]) -> Array:
        return by_seed(cell_ids, self._ok[self._ok["cell_id"].isin(list(cell_ids))], column, self._seeds)
