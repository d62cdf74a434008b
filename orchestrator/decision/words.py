"""Phrases shared by the sentences about a recommendation."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.decision.choice import TIE
from orchestrator.decision.contenders import Contenders
from orchestrator.text.units import Unit, suited

BEST = f"the best, or within {TIE:.0%} of the best"
BY_LIKE_CELLS = "judged together with cells of similar batch size"


def probability(value: float) -> str:
    """`97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    return "over 99%" if value > 0.99 else "below 1%" if value < 0.01 else f"{value:.0%}"


def objective(found: Contenders, row: int) -> str:
    """The cell's objective, with the unit."""
    return unit_of(found).text(math.exp(found.choice.log_objective.point[row]))


def unit_of(found: Contenders) -> Unit:
    """The unit of the objective, from the chosen cell and the baseline so that it is the same everywhere."""
    rows = [row for row in (found.choice.favourite, found.contest.baseline) if row is not None]
    return suited(found.measure.unit, *np.exp(found.choice.log_objective.point[rows]))


def difference(by: float) -> str:
    """A difference of validation accuracies from the baseline's, as a phrase."""
    return f"validation accuracy {comparison(by)}"


def comparison(by: float) -> str:
    """`0.0093 lower than the baseline's`."""
    size = f"{abs(by):.4f}"
    return (
        f"{size} {'higher' if by > 0 else 'lower'} than the baseline's" if float(size) else "the same as the baseline's"
    )


def like_cells(found: Contenders, row: int, lets_in: float = math.inf) -> str:
    """A phrase that explains why a cell whose own mean keeps the margin is not likely to.

    Or, conversely, why a margin that its own mean does not keep lets it in.
    """
    own, pooled = found.choice.accuracy_difference.point[row], found.choice.pooled_difference[row]
    unlike = own >= -found.contest.margin > pooled or -own > lets_in + 1e-9
    return f", {BY_LIKE_CELLS}" if unlike else ""
