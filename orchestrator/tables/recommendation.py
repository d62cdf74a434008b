"""The recommendation in words: as Markdown, as JSON for programs, and as plain sentences for the page and the terminal.

Every sentence is in `recommendation.md.j2`, which has a macro for each code of a remark. docs/recommendation.yaml lists
the keys of the JSON object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from orchestrator.decision.choice import LOSS_QUANTILE
from orchestrator.decision.recommendation import (
    CLEAR,
    NO_OBJECTIVE,
    SPEED_ONLY,
    TIED,
    Cell,
    GpuCount,
    Recommendation,
)
from orchestrator.decision.thresholds import SAFE, TIE
from orchestrator.store.files import finite
from orchestrator.tables.candidates import (
    Candidates,
    accuracy_holds,
    by_rate,
    calls,
    equal_rivals,
    name_beside,
    quotient,
    used_now,
)
from orchestrator.tables.next_step import next_step
from orchestrator.tables.recommendation_sentences import UNBOUNDED, filled, probability, sentence, template
from orchestrator.tables.scaling_answers import answers, by_batch
from orchestrator.text.numbers import counted

_NOT_CLEAR = "Not CLEAR"
"""The label of the reasons why a recommendation is provisional."""

RUNNER_UP = "Runner-up"
"""The label of how the next eligible cell compares."""

TIE_LABEL = "Tied"
"""The same in a tie, followed by the other cells that tie."""

_FAR_LESS = 0.8
"""The share of the speed-up of training that is left with start-up, below which the headline has both."""

_MOST_TIED = 4
"""The most tied cells in a sentence, those that differ in the rate alone counting as one."""

_LONGEST_TIED = 240
"""The most characters of tied cells in a sentence, of which the first one is always named."""

Labelled = Sequence[tuple[str, str]]
"""Facts as (label, text)."""


@dataclass(frozen=True, kw_only=True)
class RecommendationText:
    """A recommendation in plain sentences, without markup."""

    title: str
    verdict: str
    """CLEAR, SPEED ONLY, TIED or UNDECIDED; empty without an objective."""
    lead: str
    """The recommendation in one sentence."""
    details: Sequence[str]
    """Sentences that belong to the lead."""
    answers: Labelled
    """Whether more GPUs are worth it, whether larger batches are safe, and the runner-up or the tied cells."""
    facts: Labelled
    """What the choice holds for, and why it is provisional."""
    caveats: Sequence[str]
    """Reasons why it is provisional, as phrases."""
    behind: str
    """How much may be lost by the choice; empty if there is only one seed."""
    reasons: Sequence[str]
    sensitivity: Sequence[str]
    """Measurements or settings that would change it."""

    @property
    def sentence(self) -> str:
        """The lead, the details and the caveats."""
        caveats = [f"{label}: {text}." for label, text in self.facts if label == _NOT_CLEAR]
        return " ".join(filter(None, [self.lead, *self.details, *caveats]))


def in_sentences(recommendation: Recommendation) -> RecommendationText:
    """Return the recommendation in plain sentences."""
    no_choice = math.isnan(recommendation.behind) or recommendation.cell_id is None
    safe = _of_used_now(recommendation)
    # Beside a cell to use meanwhile, chances are those of the cell that may take its place.
    chosen = recommendation.chosen
    of_cell = {"of": name_beside(used_now(recommendation), chosen) if safe and chosen else ""}
    caveats = [filled(remark.code, {**of_cell, **remark.values}) for remark in recommendation.caveats]
    lead_values = {
        "call": calls(recommendation).get(recommendation.cell_id),
        "safe": safe,
        "is_to_target": recommendation.is_to_target,
        "tied": len(equal_rivals(recommendation)) + 1 if recommendation.verdict == TIED else 0,
        "sure": _sure(recommendation),
        "holds": recommendation.p_within_margin >= SAFE or recommendation.verdict == CLEAR,
        "gain_with_start_up": _gain_with_start_up(recommendation),
    }
    lead, *details = [
        filled(remark.code, {**remark.values, **lead_values})
        for remark in (recommendation.headline, *recommendation.details)
    ]
    facts = []
    if recommendation.tokens:
        length = f"trainings of about {recommendation.tokens:,.0f} tokens; longer ones allow larger batches"
        facts.append(("Valid for", length))
    if caveats:
        facts.append((_NOT_CLEAR, "; ".join(caveats)))
    facts += by_batch(recommendation)
    return RecommendationText(
        title="In short" if recommendation.terms.report.objective == NO_OBJECTIVE else "Recommendation",
        verdict=recommendation.verdict.upper(),
        lead=lead,
        details=details,
        answers=[*answers(recommendation), *_runner_up(recommendation)],
        facts=facts,
        caveats=caveats,
        behind="" if no_choice else filled("behind", recommendation),
        reasons=[sentence(remark) for remark in recommendation.reasons],
        sensitivity=[sentence(remark) for remark in recommendation.sensitivity],
    )


def _sure(recommendation: Recommendation) -> str:
    """Return the probability that a choice without doubts is the best; else a line has it with the doubts."""
    is_sure = recommendation.verdict in (CLEAR, SPEED_ONLY) and not math.isnan(recommendation.p_best)
    return probability(recommendation.p_best, short=True) if is_sure else ""


def _gain_with_start_up(recommendation: Recommendation) -> float:
    """Return the chosen cell's speed-up with start-up; NaN unless that is far less, and on CPUs."""
    if recommendation.on_cpu or recommendation.deciding_time != "time":
        return math.nan
    cells = recommendation.baseline, recommendation.chosen
    training, whole = (quotient(*cells, figure) for figure in ("time", "total_time"))
    return whole if whole < _FAR_LESS * training else math.nan


def _of_used_now(recommendation: Recommendation) -> dict[str, Any] | None:
    """Return what the headline tells of the cell to use while the choice may lose accuracy; None without one."""
    safe = used_now(recommendation)
    if safe is None:
        return None
    device = "cpu" if recommendation.on_cpu or safe.on_cpu else ""
    return {
        "name": name_beside(None, safe),
        "cell": {**safe.values, "device": device},
        "is_baseline": safe == recommendation.baseline,
    }


def _runner_up(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield how the next eligible cell compares with the choice, and which others tie with the choice."""
    after = recommendation.runner_up
    cell, chosen = recommendation.cell(after.values["cell_id"] if after else None), recommendation.chosen
    if after is None or cell is None or chosen is None:
        return
    rivals = equal_rivals(recommendation)
    if rivals and recommendation.verdict == TIED:
        yield TIE_LABEL, _tied(rivals, recommendation)
        return
    # The table compares it if it is the cell to use now.
    if cell.cell_id in calls(recommendation):
        return
    values = {
        **after.values,
        "name": by_rate([cell], chosen),
        "holds": "" if math.isnan(cell.p_within_margin) else accuracy_holds(cell, recommendation),
    }
    yield RUNNER_UP, filled("runner_up", values)


def _tied(rivals: Sequence[Cell], recommendation: Recommendation) -> str:
    """Return the cells that tie with the choice, and why they are not it: `8×64 none, dearer: accuracy holds 82%`."""
    word, parts = f"{recommendation.terms.metric.word} holds ", list[str]()
    chosen = recommendation.chosen
    by_name: dict[str, list[Cell]] = {}
    for rival in rivals:
        by_name.setdefault(name_beside(chosen, rival), []).append(rival)
    for name, alike in list(by_name.items())[:_MOST_TIED]:
        parts.append(by_rate(alike, chosen) if len(alike) < 3 else f"{name}, {len(alike)} LRs")
        # The figure behind the name tells a lower accuracy.
        why = [cell.why_not for cell in alike if cell.why_not and cell.why_not.values.get("why") != "more_accurate"]
        reasons = {filled("short_of_choice", remark) for remark in why} - {""}
        parts[-1] += f", {reasons.pop()}" if len(reasons) == 1 else ""
        known = sorted(cell.p_within_margin for cell in alike if not math.isnan(cell.p_within_margin))
        if known and len(alike) == 1:
            parts[-1] += f": {word}{accuracy_holds(alike[0], recommendation)}"
            word = ""
        elif known:
            ends = dict.fromkeys(probability(chance, short=True) for chance in (known[0], known[-1]))
            parts[-1] += f": {word}{'–'.join(ends).replace('%–', '–')}"
            word = ""
    # Names of many axes would need the room of the whole answer.
    while len(parts) > 1 and sum(map(len, parts)) > _LONGEST_TIED:
        parts.pop()
    more = [counted(len(by_name) - len(parts), "other", "others")] if len(by_name) > len(parts) else []
    return "; ".join([*parts, *more])


def recommendation_markdown(recommendation: Recommendation, trials: pd.DataFrame, sweep: str) -> str:
    """Return the recommendation as Markdown, the first of the tables."""
    text = in_sentences(recommendation)
    tables = Candidates.of(recommendation), Candidates.tied(recommendation)
    return str(template().document(text, *tables, next_step(recommendation, trials), sweep)).rstrip("\n") + "\n"


VERSION = 3
"""The version of the object's format: adding keys keeps it, renaming a key or changing its meaning increases it."""


def recommendation_json(recommendation: Recommendation, sweep: str) -> str:
    """Return the text of the file; null means unknown or absent."""
    text = in_sentences(recommendation)
    chosen, baseline = recommendation.chosen, recommendation.baseline
    bound = recommendation.behind if recommendation.behind <= UNBOUNDED else None
    others = [cell for cell in recommendation.shortlist if cell not in (chosen, baseline)]
    content = {
        "version": VERSION,
        "sweep": sweep,
        "sentence": text.sentence,
        "objective": {"name": recommendation.terms.report.objective, "measure": recommendation.measure or None},
        "verdict": recommendation.verdict or None,
        "recommended": chosen and _cell_json(chosen),
        "safe_cell_id": recommendation.safe_cell_id,
        "cell_id_to_use": next(iter(calls(recommendation)), None),
        "provisional": recommendation.provisional,
        "probability": {"best": recommendation.p_best, "within_margin": recommendation.p_within_margin},
        "margin": {recommendation.terms.metric.name: recommendation.terms.report.margin, "tie": TIE},
        "behind_best": {"at_most": bound, "probability": LOSS_QUANTILE},
        "warnings": [*text.caveats, *([chosen.note] if chosen and chosen.note else [])],
        "reasons": text.reasons,
        "not_considered": [sentence(remark) for remark in recommendation.left_out],
        "rivals": [{key: _cell_json(rival)[key] for key in _OF_RIVALS} for rival in recommendation.rivals],
        "baseline": baseline and _cell_json(baseline),
        "alternatives": [_cell_json(cell) for cell in others],
        "gpu_counts": [_gpu_count(count, recommendation) for count in recommendation.gpu_counts],
        "gpu_steps": [asdict(step) for step in recommendation.gpu_steps],
        "larger_batches": [asdict(batch) for batch in recommendation.larger_batches],
        "undecided": {
            "would_change": text.sensitivity,
            "more_seeds": [asdict(more) for more in recommendation.more_seeds],
            "commands": recommendation.commands,
        },
    }
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


_OF_RIVALS = ("cell_id", "name", "eligible", "tied", "n_timed", "n_ok", "probability")
"""What is told of a rival; the rest is among the alternatives."""


def _cell_json(cell: Cell) -> dict[str, Any]:
    """Return a cell; its `speedup` is that of the sentence, over the baseline that accuracies are compared with."""
    figures = {name: None if math.isnan(figure.value) else asdict(figure) for name, figure in cell.figures.items()}
    figures.setdefault("speedup", None)
    figures |= _money_or_hours(figures["cost"], cell.figures["cost"].unit)
    figures |= _money_or_hours(figures["total_cost"], cell.figures["cost"].unit, prefix="total_")
    others = {key: value for key, value in asdict(cell).items() if key not in ("p_best", "p_within_margin")}
    chances = {"best": cell.p_best, "within_margin": cell.p_within_margin}
    return others | {"probability": chances, "figures": figures, "why_not": sentence(cell.why_not) or None}


def _gpu_count(count: GpuCount, recommendation: Recommendation) -> dict[str, Any]:
    cell = recommendation.cell(count.cell_id)
    best = cell and {
        "cell_id": cell.cell_id,
        "name": cell.name,
        "time_s": cell.value(recommendation.deciding_time),
        "metric": cell.value(recommendation.terms.metric.name),
        **_money_or_hours(cell.value("cost"), cell.figures["cost"].unit),
    }
    return {"gpus": count.gpus, "name": count.name, "best": best, "why_none": sentence(count.why_none)}


def _money_or_hours(cost: Any, unit: str, prefix: str = "") -> dict[str, Any]:
    """Return a cost as money; without a price, as hours of GPUs or worker processes."""
    # Two keys, because a number that may be either cannot be compared between sweeps.
    in_hours = unit.endswith("-hours")
    return {f"{prefix}cost": None if in_hours else cost, f"{prefix}hours": cost if in_hours else None}
