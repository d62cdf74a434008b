"""The sentences that a decision begins with, the first of which says it all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from orchestrator.collection.timed import is_valid
from orchestrator.collection.untrained import is_untrained
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.left_out import remedy_of
from orchestrator.decision.verdict import CONFIRMED, INCONCLUSIVE, REFUTED, Verdict
from orchestrator.decision.words import comparison, objective
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text import figures
from orchestrator.text.cell_in_words import in_words, telling
from orchestrator.text.units import suited

_MOST_NAMED = 2
"""How many cells a sentence names besides the first."""

_VERBS = {"time": "takes", "energy": "uses", "cost": "costs"}
_BEST = {"time": "The fastest is", "energy": "The least energy is used by", "cost": "The cheapest is"}
"""By what is minimised."""


def recommended(found: Contenders, chosen: int, verb: str = "Use") -> list[str]:
    """Sentences on the cell, what it takes and what it loses."""
    accuracy_difference, baseline = found.choice.accuracy_difference.point[chosen], found.contest.baseline
    if baseline is None:
        return _without_accuracy(found, chosen)
    lead = f"{verb} {found.names[chosen]}"
    if baseline == chosen:
        return [f"{lead}, which is the baseline: training {_listed(_taken(found, chosen))}."]
    compared = f"validation accuracy is {comparison(accuracy_difference)}"
    allowed = f"(up to {found.contest.margin:g} lower is allowed)"
    return [
        f"{lead}: training {_listed([*_taken(found, chosen, baseline), f'{compared} {allowed}'])}.",
        f"The baseline is {found.names[baseline]}.",
    ]


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
        why += " (trials need to report samples_per_s and samples, or train_s)"
    return [f"No recommendation by {found.measure.name}: {why}."]


def without_objective(cells: pd.DataFrame, judged: Sequence[Verdict]) -> list[str]:
    """The outcome of the claims and the largest speed-up among the cells of a summary."""
    why = "Nothing is recommended, as requested (report.objective=none)."
    return [sentence for sentence in (_of_claims(judged), _of_scaling(cells), why) if sentence]


def _of_claims(judged: Sequence[Verdict]) -> str:
    if not judged:
        return ""
    verdicts = [verdict.verdict for verdict in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in (CONFIRMED, REFUTED, INCONCLUSIVE)}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    return f"Claims: {', '.join(parts)}."


def _of_scaling(cells: pd.DataFrame) -> str:
    """The largest speed-up over a baseline with fewer GPUs, preferably of valid timings; empty if there is none."""
    if not len(cells):
        return ""
    gpus = cells.set_index("cell_id")["gpus"]
    more = cells["gpus"] > gpus.reindex(cells["baseline_cell_id"]).to_numpy()
    scaled = cells[more & cells["speedup"].notna()]
    if scaled.empty:
        return ""
    valid = is_valid(scaled["timing_valid"])
    scaled = scaled[valid] if valid.any() else scaled
    row = scaled.to_dict("records")[int(scaled["speedup"].to_numpy().argmax())]
    speed = figures.with_interval(row["speedup"], row["speedup_lo"], row["speedup_hi"], figures.times, "×")
    best = "The largest speed-up is" if row["speedup"] > 1 else "No cell is faster with more GPUs: the best speed-up is"
    ideal, cell = f"{figures.percent(row['efficiency'])}% of the ideal", in_words(row, telling(scaled))
    doubt = "" if valid.any() else " (its timing is not valid)"
    return f"{best} {speed}, {ideal}, for {cell}{doubt}."


def _untimed(found: Contenders, favourite: int) -> list[str]:
    """Why no timing is valid and how to get one; only then, which cell seems best."""
    cell = found.cells.loc[favourite]
    left_out = [f"Not considered: {'; '.join(found.left_out)}."] if found.left_out else []
    why, fault = str(cell["note"]).rstrip("."), Fault(str(cell["timing_fault"]))
    remedy = remedy_of(fault, unfinished=found.unfinished)
    return [
        f"No recommendation yet, because no timing is valid ({why}). To get one, {remedy}.",
        *recommended(found, favourite, "So far the best cell seems to be"),
        *left_out,
    ]


def _too_early(found: Contenders, favourite: int) -> list[str]:
    """Which cells seem better than the best one with a valid timing, and how to find out."""
    first, *others = found.seem_better
    unit = suited(found.measure.unit, first.objective)
    own = unit.text(math.exp(found.choice.log_objective.point[favourite]))
    remedy = remedy_of(first.fault, first.cell_id, unfinished=found.unfinished)
    lead = (
        f"No recommendation yet: the best cell seems to be {first.name}, whose {found.measure.name} is"
        f" {unit.text(first.objective)}, compared with {own} for {found.names[favourite]}; but its timing is not valid"
        f" ({first.note}). To find out, {remedy}."
    )
    named = [f"{each.name}, {unit.text(each.objective)}" for each in others[:_MOST_NAMED]]
    named += [f"{len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
    further = [f"Other cells without a valid timing seem better, too: {'; '.join(named)}."] if named else []
    unknown = _accuracy_unknown(found) if found.contest.baseline is None else []
    return [lead, *unknown, *further, f"Not considered: {'; '.join(found.left_out)}."]


def _taken(found: Contenders, chosen: int, baseline: int | None = None) -> list[str]:
    """Phrases such as `for the fixed budget takes 30.0 s (baseline: 60.0 s)`: the objective, then time and cost."""
    kind, _, purpose = found.measure.name.partition(" ")
    beside = "" if baseline is None or not _has_objective(found, baseline) else objective(found, baseline)
    phrases = [f"{purpose} {_VERBS[kind]} {objective(found, chosen)}{_baseline(beside)}"]
    for each in ("time", "cost"):
        total = found.totals[each]
        own, other = (math.nan if row is None else float(total.means()[row]) for row in (chosen, baseline))
        if total.unit == found.measure.unit or math.isnan(own):
            continue
        unit = suited(total.unit, own, other)
        phrases.append(f"{_VERBS[each]} {unit.text(own)}{_baseline(unit.number(other) if beside else '')}")
    return phrases


def _has_objective(found: Contenders, row: int) -> bool:
    return not math.isnan(found.choice.log_objective.point[row])


def _baseline(text: str) -> str:
    return f" (baseline: {text})" if text else ""


def _listed(phrases: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b, and c`."""
    *others, last = phrases
    return f"{', '.join(others)}{',' * (len(others) > 1)} and {last}" if others else last


def _without_accuracy(found: Contenders, chosen: int) -> list[str]:
    """What is known if trials report no validation accuracy: only the least objective."""
    row = found.cells.to_dict("records")[chosen]
    kind, _, _ = found.measure.name.partition(" ")
    best = f"{_BEST[kind]} {found.names[chosen]}: training {_listed(_taken(found, chosen))}"
    speedup = float(row["speedup"])
    if row["cell_id"] != row["baseline_cell_id"] and not math.isnan(speedup):
        best += f", at {figures.times(speedup)}× the throughput of its baseline"
    sentences = [f"{best}.", *_accuracy_unknown(found)]
    accuracy = found.cells["accuracy"].mask(is_untrained(found.cells))
    own = float(accuracy[chosen])
    if not math.isnan(own) and (top := int(np.nanargmax(accuracy))) != chosen:  # the fastest may not be the best
        highest = f"the highest is {accuracy[top]:.3f} ({found.names[top]})"
        sentences.append(f"On the test set its accuracy is {own:.3f}; {highest}.")
    return sentences


def _accuracy_unknown(found: Contenders) -> list[str]:
    unknown = "Whether it trains as well as the others is not known, because no trial reported a validation accuracy."
    on_test_set = "Accuracy on the test set is not used to choose; report a val_accuracy, too."
    return [unknown] if found.tried["accuracy"].isna().all() else [unknown, on_test_set]
