"""A column of trials as a table of cells and seeds, and its differences between cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.statistics.intervals import Array, Interval, Moments, mean_interval, welch, welch_error
from orchestrator.statistics.margins import Difference


class BySeed:
    """Places the values of trials in a table: a row for each cell, a column for each seed; NaN if a cell lacks it."""

    def __init__(
        self, cell_ids: pd.Index[Any] | pd.Series[Any], ok: pd.DataFrame, seeds: list[Any] | None = None
    ) -> None:
        """`ok` has the trials, `seeds` the columns (default: all seeds of the trials)."""
        # Dictionaries and not indexes of pandas, which take several times as long to build for the rows of a sweep.
        cells, drawn = ok["cell_id"].tolist(), ok["seed"].tolist()
        columns = sorted(set(drawn)) if seeds is None else seeds
        row_of = {cell: row for row, cell in enumerate(dict.fromkeys(cells))}
        column_of = {seed: column for column, seed in enumerate(columns)}
        # The last row stays empty, for cells without trials; the last column takes the seeds that are not asked for.
        self._shape = len(row_of) + 1, len(columns) + 1
        self._row = np.array([row_of[cell] for cell in cells], dtype="intp")
        self._column = np.array([column_of.get(seed, -1) for seed in drawn], dtype="intp")
        self._wanted = np.array([row_of.get(cell, -1) for cell in cell_ids], dtype="intp")

    def table(self, of_trials: pd.Series[Any]) -> Array:
        """Return the table of one value for each trial."""
        values = of_trials.to_numpy(dtype="float64", na_value=np.nan)
        table, known = np.full(self._shape, np.nan), ~np.isnan(values)
        table[self._row[known], self._column[known]] = values[known]
        return table[self._wanted, :-1]


def by_seed(
    cell_ids: pd.Index[Any] | pd.Series[Any], ok: pd.DataFrame, column: str, seeds: list[Any] | None = None
) -> Array:
    """Return the table of one column (see `BySeed`)."""
    return BySeed(cell_ids, ok, seeds).table(ok[column])


@dataclass(frozen=True, kw_only=True)
class Differences:
    """The differences of a column's means between each cell and another one; paired if both have the same seeds."""

    paired: Array
    """Rows are cells; differences for the seeds that both have."""
    own: Moments
    other: Moments

    @staticmethod
    def of(ok: pd.DataFrame, column: str, cell_ids: pd.Index[Any], others: pd.Series[Any]) -> Differences:
        """Compare ok trials; `others` has the `cell_id` that each cell is compared with."""
        own, other = (by_seed(ids, ok, column) for ids in (cell_ids, others))
        return Differences(paired=own - other, own=Moments.of(own), other=Moments.of(other))

    @property
    def same_seeds(self) -> npt.NDArray[np.bool_]:
        """For each cell, whether the comparison is paired."""
        n = Moments.of(self.paired).n
        return np.asarray((n == self.own.n) & (n == self.other.n))

    def interval(self) -> Interval:
        """Return the interval of each cell's difference; Welch's if the seeds are not the same."""
        by_pairs, by_welch, same = mean_interval(self.paired), welch(self.own, self.other), self.same_seeds
        ends = {end: np.where(same, getattr(by_pairs, end), getattr(by_welch, end)) for end in ("point", "lo", "hi")}
        return Interval(**ends)

    def tested(self, least: Array) -> list[Difference]:
        """Return each cell's difference for tests of equivalence, which need a standard error and so no bootstrap.

        Errors are at least `least`.
        """
        pairs, same = Moments.of(self.paired), self.same_seeds
        squared, freedom = welch_error(self.own, self.other)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.sqrt(np.where(same, pairs.variance / pairs.n, squared))
        point = np.where(same, pairs.mean, self.own.mean - self.other.mean)
        freedom = np.where(same, pairs.n - 1, freedom)
        return [
            Difference(point=float(p), error=float(e), freedom=float(f))
            for p, e, f in zip(point, np.maximum(error, least), freedom, strict=True)
        ]
