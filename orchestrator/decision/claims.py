"""A sweep's claims: looks both sides of each up in the frames and judges them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.by_seed import by_seed
from orchestrator.collection.loss_curves import LossCurves
from orchestrator.collection.timed import is_invalid, is_ratio_scaled, is_timed, only_sound, timed_by_one_process
from orchestrator.decision.claim import Claim
from orchestrator.decision.claim_expression import OF_CURVES, Claimed, ExpressionError
from orchestrator.decision.verdict import INCONCLUSIVE, Sides, Verdict, judge
from orchestrator.statistics.curve_distance import FEWEST, FEWEST_SEEDS, Curve, distances, pseudo_values
from orchestrator.statistics.means import Array
from orchestrator.text.rows import status
from sweeps.mistakes import nearest
from sweeps.status import Status

_OF_BASELINE = ("speedup", "efficiency")
"""Columns that compare a cell with its baseline; computed here by seed."""

_LEARNT = ("accuracy", "val_accuracy", "loss", *OF_CURVES)


def needs_curves(claims: Sequence[Claim]) -> bool:
    """Whether any claim is about loss curves."""
    return any(Claimed.parse(claim.expression).columns & set(OF_CURVES) for claim in claims)


def verdicts(
    claims: Sequence[Claim], trials: pd.DataFrame, cells: pd.DataFrame, curves: LossCurves | None = None
) -> list[Verdict]:
    """One verdict per claim; a claim about cells that are missing or not ok is inconclusive, with the reason.

    Without `curves`, claims about loss curves are inconclusive.
    """
    return [_verdict(claim, _Values(trials, cells, curves or {})) for claim in claims]


def _verdict(claim: Claim, values: _Values) -> Verdict:
    try:
        claimed = Claimed.parse(claim.expression)
        left, right = claimed.sides(values)
    except ExpressionError as error:
        return Verdict(claim=claim, verdict=INCONCLUSIVE, why=str(error))
    by_ratio = not claimed.subtracts and all(map(is_ratio_scaled, claimed.columns))
    by_chance = any(is_timed(column) or column in (*_OF_BASELINE, *_LEARNT) for column in claimed.columns)
    sides = Sides.of(left, right, by_ratio=by_ratio, margin=claim.margin, by_chance=by_chance)
    found = replace(judge(claim, sides, values.fewest_epochs), one_process=values.of_one_process)
    if values.is_doubtful and found.n:  # further seeds with such timings would not settle it, either
        why = "the timing of one of its cells is not valid"
        return replace(found, verdict=INCONCLUSIVE, why=why, seeds_to_settle=None)
    return found


class _Values:
    """Looks up values by column and selection, and records the epochs of the trials involved."""

    def __init__(self, trials: pd.DataFrame, cells: pd.DataFrame, curves: LossCurves) -> None:
        self._cells = cells
        self._curves = curves
        self._ok = only_sound(trials)[trials["status"] == Status.OK.value]
        ends = trials["status"].map(Status)
        self._unsound = set(trials.loc[ends.map(Status.is_result).astype(bool) & (ends != Status.OK), "cell_id"])
        """Cells of which a seed diverged, ran out of memory …: the others alone would flatter them."""
        self._seeds = sorted(self._ok["seed"].unique())
        self.fewest_epochs = math.inf
        self.is_doubtful = False
        """Whether any timing looked up so far is invalid …"""
        self.of_one_process = False
        """… or of a cell that one process timed."""

    def __call__(self, column: str, *selections: Mapping[str, Any]) -> Array:
        if column in OF_CURVES:
            one, other = (self._curves_of(column, selection) for selection in selections)
            return self._distance(column, one, other)[None, :]
        (selection,) = selections
        cells = self._selected(column, selection)
        if column not in _OF_BASELINE:
            return self._by_seed(column, cells["cell_id"])
        ratios = self._by_seed("samples_per_s", cells["cell_id"])
        ratios = ratios / self._by_seed("samples_per_s", cells["baseline_cell_id"])
        if column == "speedup":
            return ratios
        gpus = self._cells.set_index("cell_id")["gpus"]
        at_baseline = gpus.reindex(cells["baseline_cell_id"]).to_numpy(dtype="float64")
        return np.asarray(ratios / (cells["gpus"].to_numpy(dtype="float64") / at_baseline)[:, None])

    def _distance(self, name: str, one: Sequence[Curve | None], other: Sequence[Curve | None]) -> Array:
        """Distance between two cells by seed; or each seed's part in the distance between seeds."""
        between = name == "loss_distance"
        found = distances(one, other) if between else (pseudo_values(one) + pseudo_values(other)) / 2
        if np.isnan(found).all():
            seeds = "" if between else f" of {FEWEST_SEEDS} seeds of each cell"
            raise ExpressionError(f"{name} needs curves{seeds} with {FEWEST} epochs in common")
        return found

    def _curves_of(self, name: str, selection: Mapping[str, Any]) -> Sequence[Curve | None]:
        """The selected cell's curves, one per seed; exactly one cell must be selected."""
        cells = self._cells_with(name, selection)
        if len(cells) != 1:
            selected = ", ".join(f"{axis}: {value}" for axis, value in selection.items())
            raise ExpressionError(f"{{{selected}}} of {name} selects {len(cells)} cells: narrow it")
        cell_id = cells["cell_id"].iloc[0]
        curves = self._curves.get(cell_id, {})
        if not curves:
            raise ExpressionError("no curves: no trial of one of its cells has a loss in its metrics.jsonl")
        self._look_at([cell_id])
        return [curves.get(seed) for seed in self._seeds]

    def _selected(self, column: str, selection: Mapping[str, Any]) -> pd.DataFrame:
        known = [name for name in self._ok.columns if pd.api.types.is_numeric_dtype(self._ok[name])]
        if column not in (*known, *_OF_BASELINE):
            raise ExpressionError(f"there is no column {column!r} of numbers{nearest(column, [*known, *_OF_BASELINE])}")
        return self._cells_with(column, selection)

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
        bad = chosen[(chosen["n_ok"] == 0) | chosen["cell_id"].isin(self._unsound)]
        if len(bad):
            raise ExpressionError(f"{column}({selected}): a cell is {status(bad.to_dict('records')[0])}")
        return chosen

    def _look_at(self, cell_ids: Iterable[Any]) -> pd.DataFrame:
        """The ok trials of these cells."""
        looked_at = self._ok[self._ok["cell_id"].isin(list(cell_ids))]
        if len(looked_at):  # NaN if any trial does not report it
            self.fewest_epochs = float(np.minimum(self.fewest_epochs, looked_at["epochs"].min(skipna=False)))
        return looked_at

    def _by_seed(self, column: str, cell_ids: pd.Series[Any]) -> Array:
        looked_at = self._look_at(cell_ids)
        if is_timed(column):
            cells = self._cells[self._cells["cell_id"].isin(cell_ids)]
            self.is_doubtful |= bool(is_invalid(cells["timing_valid"]).any())
            self.of_one_process |= bool(timed_by_one_process(cells).any())
        return by_seed(cell_ids, looked_at, column, self._seeds)
