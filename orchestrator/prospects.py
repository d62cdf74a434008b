"""Which cells of a sweep may still become the recommended one, in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.durations import speed
from orchestrator.recommendation import FEWEST_SEEDS, SURE, is_sure
from orchestrator.record import TrialRecord
from orchestrator.request import Request
from sweeps.status import Status
from sweeps.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.contenders import Contenders

UNSETTLED = 2
"""Where chance is unknown, with one seed a cell, whoever falls short by more than so many margins is out."""

ALIKE = 1.1
"""Where chance is unknown, whoever has so many times the best one's objective is out."""


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """Cells by their ids."""

    baseline: str = ""
    """Whom accuracies are compared with; empty where nobody has the reference batch."""
    accuracy: float | None = None
    """Its mean validation accuracy."""
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

    @staticmethod
    def of(
        request: Request,
        planned: Sequence[TrialSpec],
        ends: Mapping[str, TrialRecord],
        probed: Mapping[str, Mapping[str, Any]],
    ) -> Prospects:
        """By the ends of the planned trials, and the probes of their speeds."""
        known = [record for record in ends.values() if record.status is not Status.INFEASIBLE and _ran(record)]
        blank = Prospects(
            baseline=_baseline(planned, request.reference_batch_size),
            margin=request.margin,
            levels=_levels(request, planned, probed),
            trained=frozenset(record.cell_id for record in known),
            answer="no cell is ok",
        )
        ok = [record for record in known if record.status is Status.OK]
        return _judged(blank, request, ok) if ok else blank


def _ran(record: TrialRecord) -> bool:
    return record.skipped_by in ("", "early_stop")


def _baseline(planned: Iterable[TrialSpec], reference_batch_size: int | None) -> str:
    """As `contenders.baseline_row`: rule none, the multiplier nearest 1, the fewest GPUs."""
    at_reference = [trial for trial in planned if trial.batch.global_batch_size == reference_batch_size]
    plainest = min(
        at_reference,
        key=lambda trial: (trial.lr.rule != "none", abs(math.log(trial.lr.multiplier)), trial.gpus),
        default=None,
    )
    return plainest.cell_id if plainest else ""


def _levels(
    request: Request, planned: Iterable[TrialSpec], probed: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Time for the budget, or its cost; nothing where the objective does not follow from throughput."""
    if request.objective == "energy" or request.target_accuracy is not None:
        return {}
    seconds = {trial.cell_id: (trial.gpus, _seconds(trial, probed.get(speed(trial.axes), {}))) for trial in planned}
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
    from orchestrator.collector import axis_columns, collect_for
    from orchestrator.contenders import Contenders
    from orchestrator.terms import Terms

    trials, summary = collect_for(request, ok)
    found = Contenders.of(trials, summary, Terms.of(request, axis_columns(ok)))
    chosen = found.choice.chosen
    if chosen is None:
        return blank
    ids = [str(cell) for cell in found.cells["cell_id"]]
    own = trials.loc[trials["cell_id"] == blank.baseline, "val_accuracy"].mean()
    sure = _is_settled(found, chosen)
    return replace(
        blank,
        accuracy=None if math.isnan(own) else float(own),
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
