"""The recommendation as a table for people.

The tables of a recommendation: what each number of GPUs is worth, and the cells that nothing beats.

The recommendation for programs: the contents of `recommendation.md` as one JSON object.

docs/how-to/library.md lists its keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.explain import probability
from orchestrator.decision.recommendation import SURE, Recommendation, Setting, TradeOff, is_sure
from orchestrator.store.files import finite
from orchestrator.text import figures
from orchestrator.text.figures import suited
from orchestrator.text.table import TextTable


def gpu_count_table(found: Recommendation) -> TextTable | None:
    """The best cell of each number of GPUs, from the fewest; None where one was tried, or none has a best cell."""
    bests = [count.best for count in found.gpu_counts]
    first_s = next((point.time_s for point in bests if point), None)
    if first_s is None:
        return None
    names = [
        _called(found, count.best) if count.best else f"{count.name}: {count.why_none}" for count in found.gpu_counts
    ]
    time, *others = _columns(found, bests).items()
    faster = ("times as fast", [_as_fast(first_s, point.time_s) if point else "" for point in bests])
    among = ", among those whose accuracy is within the margin" if found.baseline_cell_id else ""
    title = f"The best cell for each number of {found.counted}{among} (means over seeds)"
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
        "validation accuracy": [_accuracy(point.val_accuracy) if point else "" for point in points],
        f"cost [{costs.name}]": [costs.number(point.cost) if point else "" for point in points],
    }


def _table_trade_offs(name: str, title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> TextTable:
    """A row a cell, without the columns that are empty."""
    known = {head: texts for head, texts in columns.items() if any(texts)}
    return TextTable(name=name, title=title, about=(), frame=pd.DataFrame({"cell": names, **known}))


def _called(found: Recommendation, point: TradeOff) -> str:
    """A cell's name, and whether it is the chosen one."""
    return f"{point.name} (chosen)" if point.cell_id == found.cell_id else point.name


def _as_fast(first_s: float, time_s: float) -> str:
    """How many times as fast as the first of a table: `1.94×`; nothing where either time is not known."""
    return "" if math.isnan(first_s) or math.isnan(time_s) else f"{figures.times(first_s / time_s)}×"


def _accuracy(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


UNBOUNDED = 10.0
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
    lines += _list("Why", found.reasons) + _list("What would change it", found.sensitivity)
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
    if found.behind > UNBOUNDED:
        return f"There are too few seeds to tell how far its {found.measure} may be above that of {best}."
    if found.behind < 0.0005:
        return f"{chance} no more than that of {best}."
    return f"{chance} at most {math.ceil(100 * found.behind)}% above that of {best}."


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- {figures.plain(line)}" for line in lines), ""] if lines else []


def _table(found: TextTable | None) -> list[str]:
    return [f"{found.title}:", *found.markdown()] if found else []


VERSION = 1
"""The version of the object's format: adding keys keeps it, renaming a key or changing its meaning increases it."""


def recommendation_json(found: Recommendation, sweep: str) -> str:
    """The text of the file; null means unknown or absent."""
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    content = {
        "version": VERSION,
        "sweep": sweep,
        "sentence": found.sentence,
        "objective": {"name": found.objective, "measure": found.measure or None},
        "recommended": chosen and _setting(chosen),
        "provisional": found.provisional,
        "probability": {"best": found.p_best, "within_margin": found.p_within_margin},
        "margin": {"val_accuracy": found.margin, "tie": TIE},
        "behind_best": {"at_most": found.behind if found.behind <= UNBOUNDED else None, "probability": LOSS_QUANTILE},
        "warnings": _warnings(found, chosen),
        "reasons": found.reasons,
        "not_considered": found.left_out,
        "baseline": baseline and _setting(baseline),
        "alternatives": [_setting(each) for each in found.shortlist if each not in (chosen, baseline)],
        "gpu_counts": [asdict(each) for each in found.gpu_counts],
        "undecided": {
            "would_change": found.sensitivity,
            "more_seeds": [asdict(each) for each in found.more_seeds],
            "commands": found.commands,
        },
    }
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


def _setting(found: Setting) -> dict[str, Any]:
    content = asdict(found)
    chances = {"best": content.pop("p_best"), "within_margin": content.pop("p_within_margin")}
    measured = {name: None if math.isnan(each.value) else asdict(each) for name, each in found.figures.items()}
    return content | {"figures": measured, "probability": chances, "why_not": found.why_not or None}


def _warnings(found: Recommendation, chosen: Setting | None) -> list[str]:
    """What makes it provisional, and remarks on the chosen cell's own seeds and timing."""
    return [*found.doubts, *([chosen.note] if chosen and chosen.note else [])]
