"""Turns the frames of a sweep into its recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from orchestrator.config.terms import Terms
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.doubts import doubts
from orchestrator.decision.further_seeds import commands, further_seeds, more_seeds, unsettled
from orchestrator.decision.lead import nothing, recommended, without_objective
from orchestrator.decision.reasons import reasons
from orchestrator.decision.recommendation import NO_OBJECTIVE, Recommendation
from orchestrator.decision.shortlist import shortlist
from orchestrator.decision.trade_offs import counted, front, gpu_counts
from orchestrator.decision.verdict import Verdict
from orchestrator.decision.would_change import would_change


def decide(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms, judged: Sequence[Verdict] = ()) -> Recommendation:
    """The recommendation for a sweep with these frames (see `collector.collect`); `judged` are its claims."""
    if terms.objective == NO_OBJECTIVE:
        lead, *further = without_objective(cells, judged)
        return Recommendation(
            objective=NO_OBJECTIVE,
            measure="",
            margin=terms.margin,
            lead=lead,
            further=tuple(further),
            provisional=False,
        )
    found = Contenders.of(trials, cells, terms)
    chosen, baseline, unbeaten = found.chosen, found.contest.baseline, front(found)
    lead, *further = nothing(found) if chosen is None else recommended(found, chosen)
    outcome = Recommendation(
        objective=terms.objective,
        measure=found.measure.name,
        margin=terms.margin,
        baseline_cell_id=None if baseline is None else str(found.cells["cell_id"][baseline]),
        lead=lead,
        further=tuple(further),
        provisional=True,
        front=unbeaten,
        gpu_counts=gpu_counts(found),
        counted=counted(found),
        cost_unit=found.totals["cost"].unit,
        left_out=tuple(found.left_out),
        shortlist=shortlist(found, unbeaten, terms),
    )
    return outcome if chosen is None else _with_reasons(outcome, found, chosen, terms)


def _with_reasons(outcome: Recommendation, found: Contenders, chosen: int, terms: Terms) -> Recommendation:
    """Adds the chosen cell, why it is that one, how certain this is, and what would make it more certain."""
    doubtful = doubts(found, chosen)
    asked, needed = further_seeds(found, chosen)
    return replace(
        outcome,
        cell_id=str(found.cells["cell_id"][chosen]),
        name=found.names[chosen],
        provisional=bool(doubtful) or found.contest.baseline is None,
        doubts=tuple(doubtful),
        p_best=found.p_best(chosen),
        p_within_margin=float(found.choice.p_within[chosen]),
        behind=math.nan if len(found.candidates) == 1 else found.choice.behind,
        reasons=tuple(reasons(found)),
        would_change=(*would_change(found, chosen), *unsettled(found, chosen)),
        more_seeds=tuple(more_seeds(found, asked, needed)),
        commands=tuple(commands(found, asked, needed, terms)),
    )
