"""Two phases: first one seed of every cell, then further seeds only where they can still change the recommendation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.backend import Outcome
from orchestrator.record import TrialRecord
from orchestrator.request import Request
from sweeps.status import Status
from sweeps.trial import TrialSpec

RULE = "phases"
"""What `skipped_by` says of trials that were not asked for."""


@dataclass(frozen=True, kw_only=True)
class Open:
    """Where the answer is still open."""

    cells: frozenset[str]
    answer: str
    """The recommendation so far, for the trials that are skipped."""


def probe(trials: Sequence[TrialSpec], planned: Iterable[TrialSpec]) -> tuple[list[TrialSpec], list[TrialSpec]]:
    """Those of the trials that have the first seed of their cell in the whole plan, and the others."""
    first: dict[str, int] = {}
    for trial in planned:
        first[trial.cell_id] = min(trial.seed, first.get(trial.cell_id, trial.seed))
    probing = [trial for trial in trials if trial.seed == first[trial.cell_id]]
    return probing, [trial for trial in trials if trial.seed != first[trial.cell_id]]


def still_open(request: Request, ends: Mapping[str, TrialRecord]) -> Open:
    """The recommended cell, the one it is measured against, and those that may yet beat it, unless that is settled."""
    from orchestrator.collector import axis_columns, collect_for
    from orchestrator.decision import decide
    from orchestrator.terms import Terms

    known = [record for record in ends.values() if record.skipped_by != RULE]
    if not known:
        return Open(cells=frozenset(), answer="no trial has ended")
    trials, summary = collect_for(request, known)
    found = decide(trials, summary, Terms.of(request, axis_columns(known)))
    return Open(cells=frozenset(more.cell_id for more in found.more_seeds), answer=found.name or "no cell is ok")


def next_seeds(found: Open, later: Sequence[TrialSpec]) -> tuple[list[TrialSpec], list[TrialSpec]]:
    """The next seed of every open cell, and all that is left."""
    seeds: dict[str, int] = {}
    for trial in later:
        seeds[trial.cell_id] = min(trial.seed, seeds.get(trial.cell_id, trial.seed))
    asked = [trial for trial in later if trial.cell_id in found.cells and trial.seed == seeds[trial.cell_id]]
    return asked, [trial for trial in later if trial not in asked]


def skipped(answer: str) -> Outcome:
    """The end of a trial that would change nothing."""
    note = f"sweep.phases: further seeds of this cell would not change the answer ({answer})"
    return Outcome(status=Status.SKIPPED, note=note, wall_s=0.0, skipped_by=RULE)
