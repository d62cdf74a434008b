"""The recommendation as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.decision.recommendation import SURE, Recommendation
from orchestrator.decision.words import probability
from orchestrator.text import figures


def recommendation_markdown(found: Recommendation, sweep: str) -> str:
    """The recommendation, first of the tables."""
    lines = [f"# Recommendation: {figures.plain(sweep)}", "", f"**{figures.plain(found.sentence)}**", ""]
    if found.cell_id is not None:
        lines += [
            f"Probability of being the best (no cell within the margin is more than 2% better): "
            f"{probability(found.p_best)}. Of being within the margin of {found.margin:g} of the baseline's validation"
            f" accuracy: {probability(found.p_within_margin)}.",
            "",
        ]
    lines += _list("Why", found.reasons) + _list("What would change it", found.would_change)
    if found.more_seeds:
        lines += [f"More seeds would make it surer (the aim is {SURE:.0%}; what has run does not run again):", ""]
        for more in found.more_seeds:
            lines += [f"- {figures.plain(more.name)}: {more.seeds} more", "", f"      {more.command}", ""]
    return "\n".join([*lines, *_front(found)])


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- {figures.plain(line)}" for line in lines), ""] if lines else []


def _front(found: Recommendation) -> list[str]:
    if len(found.front) < 2:
        return []
    known = [not math.isnan(point.cost) for point in found.front]
    head = f"| cell | time [s] | validation accuracy | {'cost' if any(known) else 'cost (not known)'}"
    rows = [
        f"| {figures.plain(point.name)}{' (chosen)' if point.cell_id == found.cell_id else ''}"
        f" | {_number(point.time_s)} | {_accuracy(point.val_accuracy)} | {_number(point.cost)} |"
        for point in found.front
    ]
    return [
        "Nothing beats these in time, validation accuracy and cost at once (by their means):",
        "",
        f"{head} [{found.cost_unit}] |",
        "|:--|:--|:--|:--|",
        *rows,
        "",
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else figures.number(value)


def _accuracy(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
