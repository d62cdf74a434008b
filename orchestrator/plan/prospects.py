"""Which cells of a sweep may still become the recommended one, in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.config.request import Request
from orchestrator.decision.recommendation import FEWEST_SEEDS, SURE, is_sure
from orchestrator.journal.durations import speed
from orchestrator.journal.record import TrialRecord
from sweeps.lr_rule import plainness
from sweeps.status import Status
from sweeps.trial import TrialSpec
from sweeps.twins import twins

if TYPE_CHECKING:
    from orchestrator.decision.contenders import Contenders

UNSETTLED = 2
"""Where chance is unknown, with one seed a cell, whoever falls short by more than so many margins is out."""

ALIKE = 1.1
"""Where chance is unknown, whoever has so many times the best one's objective is out."""


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """Cells by their ids."""

    baseline: str = ""
    """Who will be at the reference batch, and is trained first; empty where nobody is."""
    accuracy: float | None = None
    """The mean validation accuracy of the cell that accuracies are compared with by now."""
    margin: float = 0.0
    levels: Mapping[str, float] = field(default_factory=dict)
    """What the objective will come to by the probes, up to a common factor; without those whose probe does not tell."""
    trained: frozenset[str] = frozenset()
    chosen: str = ""
    """The best so far; empty where there is none."""
    answer: str = ""
    """The same, for people."""
    open: frozenset[str] = frozenset()
    """Of the trained ones those that may yet turn out best, the chosen one among them, unless that is sure."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """By each cell whose training is another's, too, that one: one of them is trained."""

    @staticmethod
    def of(
        request: Request,
        planned: Sequence[TrialSpec],
        ends: Mapping[str, TrialRecord],
        probed: Mapping[str, Mapping[str, Any]],
    ) -> Prospects:
        """By the ends of the planned trials, and the probes of their speeds."""
        known = [record for record in ends.values() if record.status is not Status.INFEASIBLE and _ran(record)]
        plain = sorted(planned, key=lambda trial: (*plainness(trial.lr.rule, trial.lr.multiplier), trial.gpus))
        trained = frozenset(record.cell_id for record in known)
        baseline = _baseline(plain, request.reference_batch_size)
        blank = Prospects(
            baseline=baseline,
            margin=request.margin,
            levels=_levels(request, planned, probed),
            trained=trained,
            answer="no cell is ok",
            twins=twins(sorted(plain, key=lambda each: (each.cell_id != baseline, each.cell_id not in trained))),
        )
        ok = [record for record in known if record.status is Status.OK]
        return _judged(blank, request, ok) if ok else blank


def _ran(record: TrialRecord) -> bool:
    return record.skipped_by in ("", "early_stop")


def _baseline(plain: Iterable[TrialSpec], reference_batch_size: int | None) -> str:
    """Whom `contenders.baseline_row` will choose, as far as that does not depend on accuracies."""
    at_reference = (trial.cell_id for trial in plain if trial.batch.global_batch_size == reference_batch_size)
    return next(at_reference, "")


def _levels(
    request: Request, planned: Iterable[TrialSpec], probed: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Time for the budget, or its cost; nothing where the objective does not follow from throughput."""
    if request.objective == "energy" or request.target_accuracy is not None:
        return {}
    seconds = {each.cell_id: (each.gpus_held, _seconds(each, probed.get(speed(each.axes), {}))) for each in planned}
    by_cost = request.objective == "cost"
    return {cell: s * (gpus if by_cost else 1) for cell, (gpus, s) in seconds.items() if s is not None}


def _seconds(trial: TrialSpec, probe: Mapping[str, Any]) -> float | None:
    """Of one epoch, sample or step, in whichever the budget is given; None where the probe does not tell."""
    budget: Mapping[str, Any] = trial.config.get("budget") or {}
    per_epoch, pace = probe.get("epoch_s"), probe.get("samples_per_s")
    if not pace or budget.get("seconds") is not None:
        return None
    if budget.get("epochs") is not None:
        return None if per_epoch is None else float(per_epoch)
    return (trial.batch.global_batch_size if budget.get("steps") is not None else 1) / float(pace)


def _judged(blank: Prospects, request: Request, ok: Sequence[TrialRecord]) -> Prospects:
    from orchestrator.decision.contenders import Contenders

    found = Contenders.among(request, ok)
    chosen, baseline = found.choice.chosen, found.contest.baseline
    if chosen is None:
        return blank
    ids = [str(cell) for cell in found.cells["cell_id"]]
    sure = _is_settled(found, chosen)
    return replace(
        blank,
        accuracy=None if baseline is None else float(found.cells["val_accuracy"][baseline]),
        chosen=ids[chosen],
        answer=found.names[chosen],
        open=frozenset() if sure else frozenset(ids[row] for row in {chosen, *_rivals(found, chosen)}),
    )


def _is_settled(found: Contenders, chosen: int) -> bool:
    within = found.choice.p_within[chosen]
    sure = is_sure(found.choice.p_best[chosen]) and (math.isnan(within) or is_sure(within))
    return sure and len(found.seeds[chosen]) >= FEWEST_SEEDS


def _rivals(found: Contenders, chosen: int) -> list[int]:
    """Cells that are the best with a probability above 1 - SURE, or of which that cannot be said yet."""
    choice = found.choice
    least, worst = choice.level.point[chosen] + math.log(ALIKE), -UNSETTLED * found.contest.margin
    return [
        row
        for row, p_best in enumerate(choice.p_best)
        if p_best > 1 - SURE
        or (math.isnan(p_best) and choice.level.point[row] <= least and not choice.shortfall.point[row] < worst)
    ]
