"""The trials' values by cell and seed, and the differences between cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.equivalence import Difference
from orchestrator.statistics.means import Array, Interval, Moments, welch


def by_cell(cell_ids: pd.Index[Any] | pd.Series[Any], ok: pd.DataFrame, column: str) -> Array:
    """A row for each of these cells with its seeds' values, padded with NaN to the cell with the most seeds."""
    row, cells = pd.factorize(ok["cell_id"])
    order = np.argsort(row, kind="stable")
    place = np.empty_like(row)  # among the seeds of its cell
    place[order] = np.arange(len(row)) - np.searchsorted(row[order], row[order])
    table = np.full((len(cells) + 1, place.max(initial=-1) + 1), np.nan)  # the last row: of cells without any
    table[row, place] = ok[column].to_numpy(dtype="float64")
    found: Array = table[pd.Index(cells).get_indexer(pd.Index(cell_ids))]
    return found


def by_seed(
    cell_ids: pd.Index[Any] | pd.Series[Any], ok: pd.DataFrame, column: str, seeds: list[Any] | None = None
) -> Array:
    """A row for each of these cells, a column for each of these seeds (default: all); NaN if a cell lacks the seed."""
    table = ok.pivot_table(index="cell_id", columns="seed", values=column, aggfunc="last", dropna=False)
    return np.asarray(table.reindex(index=cell_ids, columns=seeds).to_numpy(dtype="float64"))


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Differences of a column's means between each cell and another one; paired if both have the same seeds."""

    paired: Array
    """Rows are cells; differences for the seeds that both have."""
    own: Moments
    other: Moments

    @staticmethod
    def of(ok: pd.DataFrame, column: str, cell_ids: pd.Index[Any], others: pd.Series[Any]) -> Differences:
        """The differences of these ok trials; `others` has the `cell_id` that each cell is compared with."""
        seeds = ok[["cell_id", "seed", column]]
        pairs = seeds.assign(other=ok["cell_id"].map(others).astype(ok["cell_id"].dtype)).merge(
            seeds.set_axis(["other", "seed", "at other"], axis="columns"), on=["other", "seed"]
        )
        return Differences(
            paired=by_cell(cell_ids, pairs.assign(difference=pairs[column] - pairs["at other"]), "difference"),
            own=Moments.of(by_cell(cell_ids, ok, column)),
            other=Moments.of(by_cell(others, ok, column)),
        )

    @property
    def same_seeds(self) -> npt.NDArray[np.bool_]:
        """For each cell, whether the comparison is paired."""
        n = Moments.of(self.paired).n
        return np.asarray((n == self.own.n) & (n == self.other.n))

    def interval(self) -> Interval:
        """The interval of each cell's difference; Welch's if the seeds are not the same."""
        by_pairs, by_welch, same = mean_interval(self.paired), welch(self.own, self.other), self.same_seeds
        ends = {end: np.where(same, getattr(by_pairs, end), getattr(by_welch, end)) for end in ("point", "lo", "hi")}
        return Interval(**ends)

    def tested(self) -> list[Difference]:
        """Each cell's difference for tests of equivalence; not bootstrapped, because they need a standard error."""
        pairs, same = Moments.of(self.paired), self.same_seeds
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = self.own.variance / self.own.n, self.other.variance / self.other.n
            freedom = sum(parts) ** 2 / (parts[0] ** 2 / (self.own.n - 1) + parts[1] ** 2 / (self.other.n - 1))
            error = np.sqrt(np.where(same, pairs.variance / pairs.n, sum(parts)))
        point = np.where(same, pairs.mean, self.own.mean - self.other.mean)
        freedom = np.where(same, pairs.n - 1, np.where(np.isnan(freedom), self.own.n + self.other.n - 2, freedom))
        return [
            Difference(point=float(p), error=float(e), freedom=float(f))
            for p, e, f in zip(point, error, freedom, strict=True)
        ]
