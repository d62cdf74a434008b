"""The recommendation in words: as Markdown, as JSON for programs, and as plain sentences for the page and the terminal.

Every sentence is in `recommendation.md.j2`, which has a macro for each code of a remark. docs/how-to/library.md lists
the keys of the JSON object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.recommendation import (
    NO_OBJECTIVE,
    SURE,
    MoreSeeds,
    Recommendation,
    Remark,
    Setting,
    TradeOff,
    is_sure,
)
from orchestrator.store.files import finite
from orchestrator.text import figures
from orchestrator.text.figures import suited
from orchestrator.text.rows import gpu_word, gpus_in_words
from orchestrator.text.table import TextTable

UNBOUNDED = 10.0
"""A bound larger than this multiple of the best cell's objective says nothing, and is not reported."""


@dataclass(frozen=True, kw_only=True)
class RecommendationText:
    """A recommendation in plain sentences, without markup."""

    title: str
    lead: str
    """The recommendation in one sentence."""
    details: Sequence[str]
    """Sentences that belong to the lead."""
    cell_id: str | None
    provisional: bool
    caveats: Sequence[str]
    """What makes it provisional, as phrases."""
    certainty: Sequence[tuple[str, str]]
    """Probabilities of at least SURE, as (what, probability); smaller ones are caveats."""
    behind: str
    """How much may be lost by the choice."""
    reasons: Sequence[str]
    sensitivity: Sequence[str]
    more_seeds: Sequence[MoreSeeds]
    commands: Sequence[str]
    gpu_counts: TextTable | None
    front: TextTable | None

    @property
    def behind_lead(self) -> list[str]:
        """The sentences after the lead: the details and the caveats."""
        return [*self.details, *([f"Provisional: {'; '.join(self.caveats)}."] if self.caveats else [])]

    @property
    def sentence(self) -> str:
        """The lead and the sentences after it."""
        return " ".join([self.lead, *self.behind_lead])


def in_sentences(found: Recommendation) -> RecommendationText:
    """Return the recommendation in plain sentences."""
    return RecommendationText(
        title="In short" if found.objective == NO_OBJECTIVE else "Recommendation",
        lead=sentence(found.headline),
        details=[sentence(each) for each in found.details],
        cell_id=found.cell_id,
        provisional=found.provisional,
        caveats=[sentence(each) for each in found.caveats],
        certainty=certainty(found),
        behind=at_most_behind(found),
        reasons=[sentence(each) for each in found.reasons],
        sensitivity=[sentence(each) for each in found.sensitivity],
        more_seeds=found.more_seeds,
        commands=found.commands,
        gpu_counts=gpu_count_table(found),
        front=front_table(found),
    )


def sentence(remark: Remark | None) -> str:
    """Return a remark in words, on one line; empty for None."""
    return _line(remark.code, remark.values) if remark else ""


def certainty(found: Recommendation) -> list[tuple[str, str]]:
    """Return the probabilities of the choice that are high enough, as (what, probability)."""
    chances = [("certain_best", found.p_best)]
    if not found.is_baseline:
        chances.append(("certain_within", found.p_within_margin))
    return [(_line(code, found), probability(chance)) for code, chance in chances if is_sure(chance)]


def at_most_behind(found: Recommendation) -> str:
    """Return how much may be lost by taking the chosen cell; empty if there is only one seed."""
    return "" if math.isnan(found.behind) or found.cell_id is None else _line("behind", found)


def probability(value: float) -> str:
    """Return `97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    return "over 99%" if value > 0.99 else "below 1%" if value < 0.01 else f"{value:.0%}"


def recommendation_markdown(found: Recommendation, sweep: str) -> str:
    """Return the recommendation as Markdown, the first of the tables."""
    return str(_template().document(in_sentences(found), sweep)).rstrip("\n") + "\n"


def _line(macro: str, values: Any) -> str:
    return " ".join(str(getattr(_template(), macro)(values)).split())


@cache
def _template() -> Any:
    """Return the template's macros; Jinja is set up only once a recommendation is written."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters |= {
        "fact": figures.fact,
        "g": lambda value: f"{value:g}",
        "percent": figures.percent,
        "plain": figures.plain,
        "probability": probability,
        "said": sentence,
        "times": figures.times,
    }
    environment.globals |= {
        "amount": lambda unit, value, *beside: suited(unit, value, *(each for each in beside if each)).text(value),
        "counted": figures.counted,
        "gpus": lambda count, on_cpu: gpus_in_words(count, on_cpu=on_cpu),
        "quantile": LOSS_QUANTILE,
        "sure": SURE,
        "tie": TIE,
        "unbounded": UNBOUNDED,
        "with_interval": lambda point, lo, hi: figures.with_interval(point, lo, hi, figures.times, "×"),
    }
    return environment.get_template("recommendation.md.j2").module


def gpu_count_table(found: Recommendation) -> TextTable | None:
    """The best cell of each number of GPUs, from the fewest; None where one was tried, or none has a best cell."""
    bests = [count.best for count in found.gpu_counts]
    first_s = next((point.time_s for point in bests if point), None)
    if first_s is None:
        return None
    names = [
        _called(found, count.best) if count.best else f"{count.name}: {sentence(count.why_none)}"
        for count in found.gpu_counts
    ]
    time, *others = _columns(found, bests).items()
    ratios = [first_s / point.time_s if point else math.nan for point in bests]
    faster = ("times as fast", ["" if math.isnan(ratio) else f"{figures.times(ratio)}×" for ratio in ratios])
    among = ", among those whose accuracy is within the margin" if found.baseline_cell_id else ""
    title = f"The best cell for each number of {gpu_word(on_cpu=found.on_cpu)}{among} (means over seeds)"
    return _table_trade_offs("gpu-counts", title, names, dict([time, faster, *others]))


def front_table(found: Recommendation) -> TextTable | None:
    """The cells that nothing beats in time, accuracy and cost at once.

    None where that is one alone, or where all of them stand in the table of GPU counts.
    """
    bests = {count.best.cell_id for count in found.gpu_counts if count.best}
    if len(found.front) < 2 or {point.cell_id for point in found.front} <= bests:
        return None
    columns = _columns(found, found.front)
    known = [title.partition(" [")[0] for title, texts in columns.items() if any(texts)]
    many = f"{', '.join(known[:-1])} and {known[-1]} at once" if len(known) > 1 else known[0]
    title = f"Cells that no other one beats in {many} (means over seeds)"
    return _table_trade_offs("front", title, [_called(found, point) for point in found.front], columns)


def _columns(found: Recommendation, points: Sequence[TradeOff | None]) -> dict[str, list[str]]:
    """Times and costs in one unit each; `""` for what is not known."""
    times = suited("s", *(point.time_s for point in points if point))
    costs = suited(found.cost_unit, *(point.cost for point in points if point))
    return {
        f"time [{times.name}]": [times.number(point.time_s) if point else "" for point in points],
        found.metric.label: [
            f"{point.metric:.3f}" if point and not math.isnan(point.metric) else "" for point in points
        ],
        f"cost [{costs.name}]": [costs.number(point.cost) if point else "" for point in points],
    }


def _table_trade_offs(name: str, title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> TextTable:
    """A row a cell, without the columns that are empty."""
    known = {head: texts for head, texts in columns.items() if any(texts)}
    return TextTable(name=name, title=title, about=(), frame=pd.DataFrame({"cell": names, **known}))


def _called(found: Recommendation, point: TradeOff) -> str:
    """A cell's name, and whether it is the chosen one."""
    return f"{point.name} (chosen)" if point.cell_id == found.cell_id else point.name


VERSION = 1
"""The version of the object's format: adding keys keeps it, renaming a key or changing its meaning increases it."""


def recommendation_json(found: Recommendation, sweep: str) -> str:
    """Return the text of the file; null means unknown or absent."""
    text = in_sentences(found)
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    content = {
        "version": VERSION,
        "sweep": sweep,
        "sentence": text.sentence,
        "objective": {"name": found.objective, "measure": found.measure or None},
        "verdict": found.verdict or None,
        "recommended": chosen and _setting(chosen),
        "provisional": found.provisional,
        "probability": {"best": found.p_best, "within_margin": found.p_within_margin},
        "margin": {found.metric.name: found.margin, "tie": TIE},
        "behind_best": {"at_most": found.behind if found.behind <= UNBOUNDED else None, "probability": LOSS_QUANTILE},
        "warnings": [*text.caveats, *([chosen.note] if chosen and chosen.note else [])],
        "reasons": text.reasons,
        "not_considered": [sentence(each) for each in found.left_out],
        "rivals": [_with_chances(asdict(each)) for each in found.rivals],
        "baseline": baseline and _setting(baseline),
        "alternatives": [_setting(each) for each in found.shortlist if each not in (chosen, baseline)],
        "gpu_counts": [asdict(each) | {"why_none": sentence(each.why_none)} for each in found.gpu_counts],
        "gpu_steps": [asdict(each) for each in found.gpu_steps],
        "undecided": {
            "would_change": text.sensitivity,
            "more_seeds": [asdict(each) for each in found.more_seeds],
            "commands": found.commands,
        },
    }
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


def _with_chances(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with its probabilities in one object."""
    chances = {"best": content.pop("p_best"), "within_margin": content.pop("p_within_margin")}
    return content | {"probability": chances}


def _setting(found: Setting) -> dict[str, Any]:
    content = _with_chances(asdict(found))
    measured = {name: None if math.isnan(each.value) else asdict(each) for name, each in found.figures.items()}
    return content | {"figures": measured, "why_not": sentence(found.why_not) or None}
