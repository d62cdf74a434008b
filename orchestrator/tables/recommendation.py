"""The recommendation in words: as Markdown, as JSON for programs, and as plain sentences for the page and the terminal.

Every sentence is in `recommendation.md.j2`, which has a macro for each code of a remark. docs/recommendation.yaml lists
the keys of the JSON object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from orchestrator.decision.choice import LOSS_QUANTILE, SAFE, TIE
from orchestrator.decision.recommendation import (
    CLEAR,
    NO_OBJECTIVE,
    SPEED_ONLY,
    TIED,
    UNDECIDED,
    Cell,
    GpuCount,
    Recommendation,
)
from orchestrator.store.files import finite
from orchestrator.tables.candidates import (
    MATERIAL,
    Candidates,
    answers,
    by_batch,
    equal_rivals,
    ratio_with_start_up,
)
from orchestrator.tables.sentences import UNBOUNDED, filled, sentence, template
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.numbers import counted, suited
from sweeps.gpus import cost_of
from sweeps.status import Status

_UNSETTLED = ("indistinguishable", "near_margin")
"""Codes of remarks on what no reasonable number of seeds shows."""

_NOT_CLEAR = "Not CLEAR"
"""The label of the reasons why a recommendation is provisional."""

_SHORT_NAME = 20
"""The most characters of a name beside the command, which should take one line more."""

RUNNER_UP = "Runner-up"
"""The label of how the next eligible cell compares."""

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
    """Sentences that belong to the lead; the first may be on a rival that is as likely to be the best."""
    answers: Labelled
    """Whether more GPUs are worth it, whether larger batches are safe, what it costs, and the runner-up."""
    facts: Labelled
    """What the choice holds for, and why it is provisional."""
    settles: str
    """Which cells the command that settles the verdict compares: `choice, baseline, 3 rivals`; empty without one."""
    next: str
    """What to do next, if no command makes the choice more certain; empty without a choice."""
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
        return " ".join([self.lead, *self.details, *caveats])


def cost_of_settling(recommendation: Recommendation, trials: pd.DataFrame) -> str:
    """Return what the command that settles the verdict takes: `+30 trials, 60 s, 0.15 EUR`, or GPU-hours."""
    sizes = ["wall_s", "gpus_held"]
    # Disturbed timings and stragglers are repeated by mode=settle, too.
    again = trials.loc[trials["timing_fault"].isin([Fault.DISTURBED.value, Fault.STRAGGLER.value]), sizes]
    wanted = [more.cell_id for more in recommendation.more_seeds for _ in range(more.seeds)]
    of_cell = trials[trials["status"] == Status.OK.value].groupby("cell_id")[sizes].mean()
    added = pd.concat([of_cell.reindex(wanted), again]).fillna(0.0)
    gpu_s = (added["wall_s"] * added["gpus_held"]).sum()
    took_s, hours = added["wall_s"].sum(), gpu_s / 3600
    if (trials["timing"] != "exclusive").all():
        # Trials that do not need all GPUs run side by side.
        took_s = max(added["wall_s"].max(), gpu_s / trials["gpus_held"].max())
    took = f"{max(1, round(took_s))} s" if took_s < 90 else f"{round(took_s / 60)} min"
    count = f"+{len(added)} trial{'s' if len(added) != 1 else ''}"
    parts = [count, took if took_s < 90 * 60 else f"{took_s / 3600:.1f} h"]
    report = recommendation.terms.report
    if not recommendation.on_cpu and report.price_per_gpu_hour is None:
        parts.append(suited("GPU-hours", hours).text(hours))
    elif not recommendation.on_cpu:
        cost = cost_of(hours, report.price_per_gpu_hour)
        parts.append(suited(report.unit_of_cost, cost).text(cost))
    return ", ".join(parts)


def in_sentences(recommendation: Recommendation) -> RecommendationText:
    """Return the recommendation in plain sentences."""
    no_choice = math.isnan(recommendation.behind) or recommendation.cell_id is None
    beside = _beside(recommendation)
    caveats = [sentence(remark) for remark in recommendation.caveats]
    safe_choice = _safe_choice(recommendation)
    is_open = recommendation.verdict == UNDECIDED or bool(safe_choice)
    lead_values = {"is_open": is_open, "with_start_up": _with_start_up(recommendation)}
    lead, *details = [
        filled(remark.code, {**remark.values, **lead_values})
        for remark in (recommendation.headline, *recommendation.details)
    ]
    # A sentence on a rival that may be the best has told of the runner-up.
    runner_up = sentence(recommendation.runner_up) if not beside else ""
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
        details=[*beside, *safe_choice, *details],
        answers=[*answers(recommendation), *([(RUNNER_UP, runner_up)] if runner_up else ())],
        facts=facts,
        settles=_settles(recommendation) if recommendation.commands else "",
        next="" if recommendation.commands else _next(recommendation),
        caveats=caveats,
        behind="" if no_choice else filled("behind", recommendation),
        reasons=[sentence(remark) for remark in recommendation.reasons],
        sensitivity=[sentence(remark) for remark in recommendation.sensitivity],
    )


def _settles(recommendation: Recommendation) -> str:
    """Return which cells get further seeds; without any, timings are repeated."""
    ids = [more.cell_id for more in recommendation.more_seeds]
    chosen, baseline = recommendation.cell_id, recommendation.baseline_cell_id
    rivals = [more.name for more in recommendation.more_seeds if more.cell_id not in (chosen, baseline)]
    others = ["baseline"] if baseline in ids and baseline != chosen else []
    if rivals:
        is_named = len(rivals) == 1 and len(rivals[0]) <= _SHORT_NAME
        others.append(rivals[0] if is_named else counted(len(rivals), "rival", "rivals"))
    if others:
        return ", ".join(["choice", *others])
    return "more seeds of the choice" if ids else "timings again"


def _with_start_up(recommendation: Recommendation) -> float:
    """Return the headline's figure with start-up; NaN if start-up changes it little."""
    chosen, baseline = recommendation.chosen, recommendation.baseline
    figure = recommendation.terms.report.objective
    if chosen is None or figure not in ("time", "cost"):
        return math.nan
    if baseline is not None and baseline != chosen:
        # A speed-up, or the part of the baseline's cost.
        above, below = (baseline, chosen) if figure == "time" else (chosen, baseline)
        return ratio_with_start_up(recommendation, figure, above, below)
    whole = chosen.value(f"total_{figure}")
    is_material = whole > (1 + MATERIAL) * chosen.value(figure) and recommendation.deciding_time == "time"
    return whole if is_material else math.nan


def _safe_choice(recommendation: Recommendation) -> list[str]:
    """Return a sentence on the cell that surely keeps its accuracy, if the choice may not keep it."""
    safe = recommendation.cell(recommendation.safe_cell_id)
    if safe is None or recommendation.p_within_margin >= SAFE:
        return []
    return [filled("safe_choice", {"is_baseline": safe == recommendation.baseline, "name": safe.name})]


def _beside(recommendation: Recommendation) -> list[str]:
    """Return a sentence on the eligible rivals that are as likely to be the best as the chosen cell, or more likely."""
    rivals, tie = equal_rivals(recommendation), recommendation.verdict == TIED
    # A rival without a reason is not in the shortlist, so a sentence would have nothing to say about it.
    reasons = {cell.cell_id: cell.why_not for cell in recommendation.shortlist if cell.why_not}
    # Two names at most: labels have commas, and the table has a row for each of the likeliest rivals.
    named = [rival for rival in rivals if rival.cell_id in reasons][: 2 if tie and len(rivals) == 2 else 1]
    if not named:
        return []
    shown = [{"name": rival.name, "p_best": rival.p_best, "why": reasons[rival.cell_id]} for rival in named]
    values = {"tied": tie, "rivals": shown, "more": len(rivals) - len(named), "p_chosen": recommendation.p_best}
    # What decided between cells that tie by the objective.
    tie_break = next((remark.values for remark in recommendation.reasons if remark.code in ("ties", "all_tie")), {})
    return [filled("beside", {"by": tie_break.get("by"), "metric": recommendation.terms.metric, **values})]


def _next(recommendation: Recommendation) -> str:
    """Return what to do next where further seeds would not help."""
    if recommendation.chosen is None:
        return ""
    remarks = {remark.code: remark for remark in reversed(recommendation.sensitivity)}
    for code in (*_UNSETTLED, "at_the_edge"):
        if code in remarks:
            return sentence(remarks[code])
    if recommendation.verdict in (CLEAR, SPEED_ONLY):
        return f"nothing is left to settle: train with {recommendation.name}."
    return "no further seed would help: see why it is not CLEAR."


def recommendation_markdown(recommendation: Recommendation, sweep: str) -> str:
    """Return the recommendation as Markdown, the first of the tables."""
    text = in_sentences(recommendation)
    candidates = Candidates.of(recommendation)
    return str(template().document(text, candidates, recommendation.commands, sweep)).rstrip("\n") + "\n"


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
