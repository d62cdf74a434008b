"""Which cells may still become the recommended one, in the middle of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.config.request import Request
from orchestrator.journal.durations import speed
from orchestrator.journal.record import TrialRecord
from sweeps.lr_rule import plainness
from sweeps.number import is_number
from sweeps.status import Status
from sweeps.trial import TrialSpec
from sweeps.twins import twins

GIVEN_UP = 2
"""A first seed that falls short of the baseline's same seed by so many margins ends with its training, and is not
timed."""


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """Cells by their ids."""

    baseline: str = ""
    """The cells that will be at the reference batch, and are trained first; empty if there are none."""
    accuracy: float | None = None
    """The mean validation accuracy, so far, of the cell that accuracies are compared with."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """The same for each of its seeds."""
    margin: float = 0.0
    bounds: Mapping[str, float] = field(default_factory=dict)
    """{open cell: validation accuracy of its next seed below which it is out}; without the baseline."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """The objective as foretold by the probes, up to a common factor; without cells whose probe does not tell."""
    trained: frozenset[str] = frozenset()
    chosen: str = ""
    """The best so far; empty if there is none."""
    answer: str = ""
    """The same, for people."""
    open: frozenset[str] = frozenset()
    """The trained cells that the whole sweep may yet choose; empty once the choice is sure."""
    out: Mapping[str, Status] = field(default_factory=dict)
    """Cells that cannot be recommended because of how one of their seeds ended."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """{cell: another one with the same training}; only one of the two is trained."""

    def bound(self, cell_id: str, seed: int) -> float | None:
        """The validation accuracy below which this seed of the cell is not worth being tested and timed, if any is.

        Of a first seed, when chance is unknown, what is far below that of the baseline with the same seed, which holds
        out the same samples; of a further one see `Outlook.bound`.
        """
        if cell_id in self.trained or self.accuracy is None:
            return self.bounds.get(cell_id)
        return self.by_seed.get(seed, self.accuracy) - GIVEN_UP * self.margin

    @staticmethod
    def of(
        request: Request,
        planned: Sequence[TrialSpec],
        ends: Mapping[str, TrialRecord],
        probed: Mapping[str, Mapping[str, Any]],
    ) -> Prospects:
        """By the ends of the planned trials, and the probes of their speeds."""
        known = [record for record in ends.values() if record.status is not Status.INFEASIBLE and _ran(record)]
        # A cell's status is the worst of its seeds', and only an ok one can be chosen in the end.
        out = {record.cell_id: record.status for record in known if record.status is not Status.OK}
        plain = sorted(planned, key=lambda trial: (*plainness(trial.lr.rule, trial.lr.multiplier), trial.gpus))
        trained = frozenset(record.cell_id for record in known)
        baseline = _baseline(plain, request.criteria.reference_batch_size)
        blank = Prospects(
            baseline=baseline,
            margin=request.criteria.margin,
            levels=_levels(request, planned, probed),
            trained=trained,
            answer="no cell is ok",
            out=out,
            twins=twins(sorted(plain, key=lambda each: (each.cell_id != baseline, each.cell_id not in trained))),
        )
        ok = [record for record in known if record.cell_id not in out]
        ended = {record.trial_id for record in known}
        left = Counter(trial.cell_id for trial in planned if trial.trial_id not in ended)
        return _judged(blank, request, ok, left) if ok else blank


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
    if request.criteria.objective == "energy" or request.criteria.target_accuracy is not None:
        return {}
    seconds = {each.cell_id: (each.gpus_held, _seconds(each, probed.get(speed(each.axes), {}))) for each in planned}
    by_cost = request.criteria.objective == "cost"
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


def _judged(blank: Prospects, request: Request, ok: Sequence[TrialRecord], left: Mapping[str, int]) -> Prospects:
    from orchestrator.decision.contenders import Contenders
    from orchestrator.plan.outlook import Outlook

    found = Contenders.among(request, ok)
    chosen, baseline = found.choice.favourite, found.contest.baseline
    ids = [str(cell) for cell in found.cells["cell_id"]]
    outlook = Outlook(contest=found.contest, left=[left[cell] for cell in ids])
    rows = outlook.open(chosen)
    return replace(
        blank,
        accuracy=None if baseline is None else float(found.cells["val_accuracy"][baseline]),
        by_seed={} if baseline is None else _accuracies(ok, ids[baseline]),
        bounds={ids[row]: bound for row in rows if (bound := outlook.bound(row)) is not None},
        chosen="" if chosen is None else ids[chosen],
        answer="no cell that can be chosen keeps the margin" if chosen is None else found.names[chosen],
        open=frozenset(ids[row] for row in rows),
    )


def _accuracies(ok: Iterable[TrialRecord], cell_id: str) -> dict[int, float]:
    """By seed, as far as they are known."""
    accuracies = ((record.seed, record.metrics.get("val_accuracy")) for record in ok if record.cell_id == cell_id)
    return {seed: float(value) for seed, value in accuracies if is_number(value)}
