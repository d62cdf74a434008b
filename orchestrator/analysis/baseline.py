"""Finds the cell that each cell is compared with: the baseline in speed, the reference in accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sweeps.errors import ConfigError
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

BATCH_SIDES = frozenset({"global_batch_size", "device_batch_size"})

MIXED = "mixed devices"
"""Column of the cells: whether a cell's seeds ran on different device models. No axis can have this name."""

MACHINES = ("host names", "machine ids")
"""Columns of the cells: the host names and the unique ids of the machines that the ok seeds ran on, each a frozenset;
empty if unknown. No axis can have these names."""

RATE = ("lr_rule", "lr_multiplier")
"""Axes that change only numbers in a step, for rules in SAME_AT_REFERENCE."""

PLACES = ("nodes",)
"""Axes that change where a trial runs, and not its training."""

FIXED_SIDE = {"strong": "global_batch_size", "weak": "device_batch_size"}
"""The side of the batch that stays the same as GPUs are added; the other one is freed."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A sweep's rules for comparing cells.

    Raises ValueError for an unknown scaling, ConfigError for an axis that no result has.
    """

    scaling: str
    """`strong`: the same global batch on more GPUs; `weak`: the same per-device batch."""
    baseline: Mapping[str, Any] = field(default_factory=dict)
    """Values that the baseline has on some axes, {axis: value}; the cells compared with it may differ there."""
    reference_batch_size: int | None = None
    """The global batch at which the reference learning rate holds; None: accuracies are not compared."""
    axis_columns: Mapping[str, str] = field(default_factory=dict)
    """Axes beyond the standard ones, {axis: column of the frames}."""

    def __post_init__(self) -> None:
        if self.scaling not in FIXED_SIDE:
            raise ValueError(f"scaling is {self.scaling!r}; it must be one of {', '.join(FIXED_SIDE)}")
        known = {*STANDARD_AXES, *self.axis_columns} - {"seed"}
        for axis in self.baseline:
            if axis not in known:
                problem = f"sweep.baseline names {axis!r}, which is not an axis of these results"
                raise ConfigError([f"{problem}; axes: {', '.join(sorted(known))}"])

    def baselines(self, cells: pd.DataFrame) -> pd.Series[Any]:
        """Return for each cell the `cell_id` of its baseline in speed, which has the same device model and axes.

        If the cell with the fewest GPUs is not ok under the same rule and multiplier, one with another rate takes its
        place.
        """
        equal = ["device_model", FIXED_SIDE[self.scaling], *self._alike]
        named = {self.axis_columns.get(axis, axis): value for axis, value in self.baseline.items()}
        own = baseline_cells(cells, equal, named)
        if not named.keys().isdisjoint(RATE):
            return own
        gpus = cells.set_index("cell_id")["gpus"]
        # A rate does not change the speed of a step. Rules outside SAME_AT_REFERENCE may.
        same_work = cells[cells["lr_rule"].isin(SAME_AT_REFERENCE)]
        but_rate = [column for column in equal if column not in RATE]
        for others in (same_work[same_work["lr_rule"] == "none"], same_work):
            at_other_rate = baseline_cells(same_work, but_rate, named, among=others).reindex(own.index)
            own = at_other_rate.where(at_other_rate.map(gpus) < own.map(gpus).fillna(math.inf), own)
        return own

    def references(self, cells: pd.DataFrame) -> pd.Series[Any]:
        """Return for each cell the `cell_id` of its reference in accuracy: the same axes at the reference batch.

        If the sweep has no such cell with the same warm-up or rule, an equal training takes its place: at the reference
        batch, warm-ups and the rules in SAME_AT_REFERENCE change nothing.
        """
        at_reference = {"global_batch_size": self.reference_batch_size}
        own = baseline_cells(cells, self._alike, at_reference)
        but_warmup = [column for column in self._alike if column != self.axis_columns.get("warmup_epochs")]
        of_any_warmup = baseline_cells(cells, but_warmup, at_reference)
        same = cells[cells["lr_rule"].isin(SAME_AT_REFERENCE)]
        of_any_rule = baseline_cells(same, [column for column in but_warmup if column != "lr_rule"], at_reference)
        of_any = of_any_warmup.where(of_any_warmup.notna(), of_any_rule)
        return own.where(own.notna(), of_any)

    def on_fewest_nodes(self, cells: pd.DataFrame) -> pd.Series[Any]:
        """Return for each cell the `cell_id` of the ok cell that differs at most in its nodes, and has the fewest."""
        return baseline_cells(cells, ["gpus", "device_model", *sorted(BATCH_SIDES), *self._alike], {})

    @property
    def _alike(self) -> list[str]:
        others = (column for axis, column in self.axis_columns.items() if axis not in PLACES)
        return ["sweep", "lr_rule", "lr_multiplier", *others]


def same_machines(cells: pd.DataFrame) -> pd.Series[Any]:
    """Return whether each cell ran on the machines of its baseline; NA if unknown.

    Machine ids decide. Host names are compared only if one of the two cells has no ids.
    """
    baseline = cells["baseline_cell_id"]
    compared: list[bool | None] = [None] * len(cells)
    # Host names come first and are overruled: each container on a machine has another host name, and several machines
    # may share one.
    for column in MACHINES:
        known = dict(zip(cells["cell_id"], cells[column], strict=True))
        for place, (own, other) in enumerate(zip(cells[column], map(known.get, baseline), strict=True)):
            if own and other:
                compared[place] = own == other
    return pd.Series(pd.array(compared, dtype="boolean"), index=cells.index)


def baseline_cells(
    cells: pd.DataFrame, equal: Iterable[str], named: Mapping[str, Any], *, among: pd.DataFrame | None = None
) -> pd.Series[Any]:
    """Return for each cell the `cell_id` of the ok cell with the fewest GPUs that equals it in the columns `equal`.

    `named` requires values of the baseline in columns that are then free to differ: {column: value}. Naming one side
    of the batch frees the other, too. A cell whose seeds ran on different device models has no baseline and is none.
    NaN if there is no such cell. Rows are as in `cells`; missing values equal each other. `among` has the candidates,
    by default all cells.
    """
    freed = BATCH_SIDES | named.keys() if BATCH_SIDES & named.keys() else named.keys()
    key = [column for column in equal if column not in freed]
    candidates = cells if among is None else among
    may_be_baseline = (candidates["status"] == Status.OK.value) & ~candidates[MIXED]
    for column, value in named.items():
        may_be_baseline &= candidates[column] == value
    places = [axis for axis in PLACES if axis in candidates]
    order = ["gpus", *places, "global_batch_size", "cell_id"]
    # Sorted and looked up as plain values: for small frames, pandas would take a third of the time of a whole summary.
    ranked = []
    for may_be, row in zip(may_be_baseline, _rows(candidates, [*order, *key]), strict=True):
        if may_be:
            rank, values = row[: len(order)], row[len(order) :]
            ranked.append(([(value is None, value) for value in rank], values))
    first: dict[tuple[Any, ...], Any] = {}
    for ranks, values in sorted(ranked):
        _, cell_id = ranks[-1]
        first.setdefault(values, cell_id)
    rows = zip(cells[MIXED], _rows(cells, key), strict=True)
    own = [None if is_mixed else first.get(values) for is_mixed, values in rows]
    return pd.Series(own, index=cells.index, dtype=cells["cell_id"].dtype)


def _rows(frame: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of these columns as plain values, None where one is missing."""
    rows = zip(*(frame[column].tolist() for column in columns), strict=True)
    return [tuple(None if value is pd.NA or value != value else value for value in row) for row in rows]  # NaN != NaN
