"""The recommendation as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.recommendation import SURE, Recommendation, is_sure
from orchestrator.decision.words import probability
from orchestrator.tables.trade_offs import front_table, gpu_count_table
from orchestrator.text import figures
from orchestrator.text.table import TextTable

UNTOLD = 10.0
"""A bound larger than this multiple of the best cell only shows that two seeds differ, and is not reported."""


def recommendation_markdown(found: Recommendation, sweep: str) -> str:
    """The recommendation as Markdown, the first of the tables."""
    opening = " ".join([f"**{figures.plain(found.lead)}**", *map(figures.plain, found.behind_lead)])
    lines = [f"# {found.title}: {figures.plain(sweep)}", "", opening, ""]
    if chances := certainty(found):
        lines += [" ".join(f"The probability {what} is {chance}." for what, chance in chances), ""]
    if behind := at_most_behind(found):
        lines += [behind, ""]
    lines += _table(gpu_count_table(found))
    lines += _list("Why", found.reasons) + _list("What would change it", found.would_change)
    if found.more_seeds:
        how = f"(the aim is {SURE:.0%}; finished trials do not run again)"
        lines += [f"Further seeds would make the choice more certain {how}:", ""]
        for more in found.more_seeds:
            lines.append(f"- {figures.plain(more.name)}: {figures.counted(more.seeds, 'more seed', 'more seeds')}")
        lines.append("")
        lines += [line for command in found.commands for line in (f"      {command}", "")]
    return "\n".join([*lines, *_table(front_table(found))])


def certainty(found: Recommendation) -> list[tuple[str, str]]:
    """The probabilities of the choice that are high enough, as (what, probability); others are listed as doubts."""
    best = f"that the chosen cell is the best or within {TIE:.0%} of the best"
    least = f"that it has the least {found.measure} or is within {TIE:.0%} of it"
    chances = [(best if found.baseline_cell_id else least, found.p_best)]
    if not found.is_baseline:
        chances.append(("that its validation accuracy is within the margin", found.p_within_margin))
    return [(what, probability(chance)) for what, chance in chances if is_sure(chance)]


def at_most_behind(found: Recommendation) -> str:
    """How much may be lost by taking the chosen cell; empty if there is only one seed."""
    if math.isnan(found.behind) or found.cell_id is None:
        return ""
    chance = f"With {LOSS_QUANTILE:.0%} probability its {found.measure} is"
    best = "the best cell" if found.baseline_cell_id is None else "the best cell within the margin"
    if found.behind > UNTOLD:
        return f"There are too few seeds to tell how far its {found.measure} may be above that of {best}."
    if found.behind < 0.0005:
        return f"{chance} no more than that of {best}."
    return f"{chance} at most {math.ceil(100 * found.behind)}% above that of {best}."


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- {figures.plain(line)}" for line in lines), ""] if lines else []


def _table(found: TextTable | None) -> list[str]:
    return [f"{found.title}:", *found.markdown()] if found else []
