"""The sentences of a recommendation, the first of which says it all."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.collection.untrained import is_untrained
from orchestrator.config.terms import AT_YOUR_PRICE
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.left_out import remedy_of
from orchestrator.decision.words import difference, objective
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text import figures
from orchestrator.text.units import suited

_MOST_NAMED = 2
"""How many cells a sentence names besides the first."""


def recommended(found: Contenders, chosen: int, verb: str = "Use") -> list[str]:
    """Sentences on the cell, what it takes and what it loses."""
    loss, baseline = found.choice.accuracy_difference.point[chosen], found.contest.baseline
    if baseline is None:
        return _without_accuracy(found, chosen)
    lead = f"{verb} {found.names[chosen]}: {found.measure.name} {objective(found, chosen)}"
    if baseline == chosen:
        return [f"{lead}, the baseline itself{_paid(found, chosen)}."]
    known = not math.isnan(found.choice.log_objective.point[baseline])
    lead += f", against {objective(found, baseline)} of the baseline ({found.names[baseline]})" if known else ""
    of = "the baseline's" if known else f"that of the baseline ({found.names[baseline]})"
    paid = _paid(found, chosen, baseline if known else None)
    return [f"{lead}{paid}; {difference(loss, of)} ({found.contest.margin:g} lower is allowed)."]


def nothing(found: Contenders) -> list[str]:
    """Sentences on why no cell is recommended."""
    if found.choice.favourite is not None:
        return (_too_early if found.seem_better else _untimed)(found, found.choice.favourite)
    why = "; ".join(found.left_out) or "no trial has ended"
    if len(found.candidates):
        baseline = found.names[found.contest.baseline or 0]
        lead = (
            "No recommendation: the validation accuracy of every cell that could be chosen is likely to be more than"
            f" {found.contest.margin:g} below that of the baseline ({baseline})."
        )
        return [lead, f"Not considered: {why}."] if found.left_out else [lead]
    if found.commonest_end:
        return [f"No recommendation: {why}.", found.commonest_end]
    if found.measure.unit == "s" and any(line.endswith(f"no {found.measure.name}") for line in found.left_out):
        why += " (trials have one that report samples_per_s and samples, or train_s)"
    return [f"No recommendation by {found.measure.name}: {why}."]


def _untimed(found: Contenders, favourite: int) -> list[str]:
    """Why no timing is valid and how to get one; only then, which cell seems best."""
    cell = found.cells.loc[favourite]
    left_out = [f"Not considered: {'; '.join(found.left_out)}."] if found.left_out else []
    why, remedy = str(cell["note"]).rstrip("."), remedy_of(Fault(str(cell["timing_fault"])))
    return [
        f"No recommendation yet: no timing is valid ({why}). To know, {remedy}.",
        *recommended(found, favourite, "So far the best seems to be"),
        *left_out,
    ]


def _too_early(found: Contenders, favourite: int) -> list[str]:
    """Which cells seem better than the best one with a valid timing, and how to find out."""
    first, *others = found.seem_better
    unit = suited(found.measure.unit, first.objective)
    own = unit.text(math.exp(found.choice.log_objective.point[favourite]))
    lead = (
        f"No recommendation yet: the best seems to be {first.name}, with {found.measure.name}"
        f" {unit.text(first.objective)} against {own} of {found.names[favourite]}, but its timing is not valid"
        f" ({first.note}). To know, {remedy_of(first.fault, first.cell_id)}."
    )
    named = [f"{each.name}, {unit.text(each.objective)}" for each in others[:_MOST_NAMED]]
    named += [f"{len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
    further = [f"Others seem better without a valid timing, too: {'; '.join(named)}."] if named else []
    unknown = [_accuracy_unknown(found)] if found.contest.baseline is None else []
    return [lead, *unknown, *further, f"Not considered: {'; '.join(found.left_out)}."]


def _paid(found: Contenders, chosen: int, beside: int | None = None) -> str:
    """The time and cost of the cell and of another one, unless the objective says so already."""
    text = ""
    for total, word in ((found.totals["time"], "in"), (found.totals["cost"], "for")):
        values = total.means()
        if total.unit == found.measure.unit or math.isnan(values[chosen]):
            continue
        other = math.nan if beside is None else float(values[beside])
        unit = suited(total.unit, float(values[chosen]), other)
        own = unit.text(values[chosen])
        against = "" if math.isnan(other) else f", against {unit.number(other)}"
        if total.unit == AT_YOUR_PRICE:
            own, word = f"cost {own}", "at"
        text += f", {word} {own}" if beside is None else f"; {own}{against}"
    return text


def _without_accuracy(found: Contenders, chosen: int) -> list[str]:
    """What is known if trials report no validation accuracy: only the least objective."""
    row = found.cells.to_dict("records")[chosen]
    least = f"Least {found.measure.name}, {objective(found, chosen)}: {found.names[chosen]}{_paid(found, chosen)}"
    speedup = float(row["speedup"])
    if row["cell_id"] != row["baseline_cell_id"] and not math.isnan(speedup):
        least += f", at {figures.times(speedup)}× its baseline's throughput"
    sentences = [f"{least}.", _accuracy_unknown(found)]
    accuracy = found.cells["accuracy"].mask(is_untrained(found.cells))
    own = float(accuracy[chosen])
    if not math.isnan(own) and (best := int(np.nanargmax(accuracy))) != chosen:  # the fastest may not be the best
        highest = f"the highest is {accuracy[best]:.3f} ({found.names[best]})"
        sentences.append(f"On the test set its accuracy is {own:.3f}; {highest}.")
    return sentences


def _accuracy_unknown(found: Contenders) -> str:
    unknown = "Whether it trains as well as the others is not known: no trial reported a validation accuracy"
    if found.tried["accuracy"].isna().all():
        return f"{unknown}."
    return f"{unknown}, and accuracy on the test set chooses nothing: report it as val_accuracy, too."
