"""Cells that a user may prefer to the chosen one: rivals, cheaper cells, larger batches, other numbers of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.analysis.summary import rows_of
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.explain import runner_up
from orchestrator.decision.gpu_steps import gain_over
from orchestrator.decision.recommendation import GpuCount, LargerBatch, Remark, remark
from orchestrator.decision.thresholds import NOTICED, SAFE, TIE
from orchestrator.text.cell_labels import cell_label, gpus_in_words
from sweeps.status import Status


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """The rows of cells that a recommendation names beside the chosen one; none by default, as without a choice."""

    safe: int | None = None  # the cell to use now, if that is another one
    cheapest: int | None = None
    rivals: Sequence[int] = ()
    runner_up: Remark | None = None

    @staticmethod
    def of(contenders: Contenders, chosen: int) -> Alternatives:
        """Return the alternatives to the chosen cell."""
        safe = contenders.choice.safe
        return Alternatives(
            safe=None if safe == chosen else safe,
            cheapest=cheapest(contenders, chosen),
            rivals=rivals(contenders, chosen),
            runner_up=runner_up(contenders, chosen),
        )

    @property
    def rows(self) -> Sequence[int | None]:
        """The rows of all of them but the runner-up."""
        return (self.safe, self.cheapest, *self.rivals)


def rivals(contenders: Contenders, chosen: int) -> list[int]:
    """Return the cells that may be the best instead of the chosen one, or tie with it; the likeliest first."""
    choice, tied = contenders.choice, contenders.choice.ties_with(chosen)
    others = (tied | (choice.p_best >= NOTICED)) & (np.arange(len(tied)) != chosen)
    return sorted(np.flatnonzero(others).tolist(), key=lambda row: (-np.nan_to_num(choice.p_best[row]), not tied[row]))


def cheapest(contenders: Contenders, chosen: int) -> int | None:
    """Return the cell that costs the least; None if the chosen one costs hardly more, by TIE at most.

    It is one of those whose accuracy holds with probability SAFE; without any, one of all eligible cells.
    """
    cost = contenders.totals["cost"].means()
    is_eligible = contenders.choice.qualifies & ~np.isnan(cost)
    is_safe = is_eligible & (contenders.choice.p_within >= SAFE)
    eligible = np.where(is_safe if is_safe.any() else is_eligible, cost, np.nan)
    if np.isnan(cost[chosen]) or cost[chosen] <= (1 + TIE) * np.nanmin(eligible):
        return None
    return int(np.nanargmin(eligible))


def larger_batches(contenders: Contenders, today: int) -> tuple[LargerBatch, ...]:
    """Return the global batches above that of the cell to use now, with their chance to keep the margin.

    NaN where it is not known.
    """
    compared, tried = contenders.cells, contenders.tried
    rows = {cell_id: row for row, cell_id in enumerate(compared["cell_id"])}
    p_within = {cell_id: contenders.choice.p_within[row] for cell_id, row in rows.items()}
    larger = tried[tried["global_batch_size"] > compared["global_batch_size"][today]]
    # The likeliest cell of each batch, else one that is ok.
    chances = larger["cell_id"].map(p_within).astype("float64").fillna(-1.0)
    ranked = larger.assign(chance=chances, not_ok=larger["status"] != Status.OK.value)
    ranked = ranked.sort_values(["global_batch_size", "chance", "not_ok"], ascending=[True, False, True], kind="stable")
    return tuple(
        LargerBatch(
            global_batch_size=int(cell["global_batch_size"]),
            cell_id=cell["cell_id"],
            name=cell_label(cell, contenders.further_axes),
            status=cell["status"],
            p_within_margin=float(p_within.get(cell["cell_id"], math.nan)),
            gain=gain_over(contenders, today, rows.get(cell["cell_id"])),
        )
        for cell in rows_of(ranked.drop_duplicates("global_batch_size"))
    )


def gpu_counts(contenders: Contenders) -> Iterator[GpuCount]:
    """Yield the best cell for each number of GPUs tried, from the fewest to the most; none if there is one number.

    The rule is that of the recommendation, among the cells with that number; at the favourite's number it is the
    favourite.
    """
    choice = contenders.choice
    counts = sorted(set(contenders.tried["gpus"].astype("float64")))
    for gpus in counts if len(counts) > 1 else ():
        known = ~np.isnan(choice.log_objective.point) & (contenders.cells["gpus"].to_numpy(dtype="float64") == gpus)
        row = choice.favourite if choice.favourite is not None and known[choice.favourite] else choice.best_of(known)
        yield GpuCount(
            gpus=gpus,
            name=gpus_in_words(gpus, on_cpu=contenders.on_cpu),
            cell_id=contenders.id_of(row),
            why_none=_why_none(contenders, gpus, known) if row is None else None,
        )


def _why_none(contenders: Contenders, gpus: float, known: npt.NDArray[np.bool_]) -> Remark:
    """Return why no cell with this number of GPUs may be chosen; `known` are those whose objective is known."""
    if known.any():
        likeliest = int(np.argmax(np.where(known, np.nan_to_num(contenders.choice.p_within), -1.0)))
        p_within = float(contenders.choice.p_within[likeliest])
        return contenders.remark("none_keeps_margin", name=contenders.names[likeliest], p_within=p_within)
    tried = contenders.tried
    ok = tried[(tried["gpus"] == gpus) & (tried["status"] == Status.OK.value)]
    if ok.empty:
        return remark("skipped_by_rule" if contenders.is_ruled_out(gpus) else "no_ok_cell")
    if set(ok["cell_id"]) <= contenders.eligible.without_metric:
        return contenders.remark("none_has_metric")
    if not contenders.measure.why and not ok["n_reached"].any():
        return contenders.remark("none_reaches_target")
    return contenders.remark("none_has_figure")
