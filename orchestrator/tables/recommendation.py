"""The recommendation as a table for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.recommendation import SURE, FrontPoint, GpuCount, Recommendation, is_sure
from orchestrator.decision.words import probability
from orchestrator.text import figures
from orchestrator.text.units import Unit, suited

UNTOLD = 10.0
"""More than as many times above the best cell is no bound, but what two seeds that differ leave open."""


def recommendation_markdown(found: Recommendation, sweep: str) -> str:
    """The recommendation, first of the tables."""
    lines = [f"# {found.title}: {figures.plain(sweep)}", "", f"**{figures.plain(found.sentence)}**", ""]
    if chances := certainty(found):
        lines += [" ".join(f"Probability {what}: {chance}." for what, chance in chances), ""]
    if behind := at_most_behind(found):
        lines += [behind, ""]
    lines += _gpu_counts(found)
    lines += _list("Why", found.reasons) + _list("What would change it", found.would_change)
    if found.more_seeds:
        lines += [f"More seeds would make it surer (the aim is {SURE:.0%}; what has run does not run again):", ""]
        lines += [*(f"- {figures.plain(more.name)}: {more.seeds} more" for more in found.more_seeds), ""]
        lines += [line for command in found.commands for line in (f"      {command}", "")]
    return "\n".join([*lines, *_front(found)])


def certainty(found: Recommendation) -> list[tuple[str, str]]:
    """What of the choice is sure, as (what, probability); what is not is told as a doubt."""
    best = f"that it is the best cell or within {TIE:.0%} of the best"
    least = f"that it has the least {found.measure} or is within {TIE:.0%} of it"
    told = [(best if found.baseline_cell_id else least, found.p_best)]
    if not found.is_baseline:
        told.append(("that its validation accuracy is within the margin", found.p_within_margin))
    return [(what, probability(chance)) for what, chance in told if is_sure(chance)]


def at_most_behind(found: Recommendation) -> str:
    """How much may be lost by taking the chosen cell; nothing where one seed tells nothing about it."""
    if math.isnan(found.behind) or found.cell_id is None:
        return ""
    chance = f"With {LOSS_QUANTILE:.0%} probability its {found.measure} is"
    best = "the best cell" if found.baseline_cell_id is None else "the best cell within the margin"
    if found.behind > UNTOLD:
        return f"How far its {found.measure} may be above that of {best} is not known: the seeds are too few to tell."
    if found.behind < 0.0005:
        return f"{chance} no more than that of {best}."
    return f"{chance} at most {math.ceil(100 * found.behind)}% above that of {best}."


def beaten_by_none(found: Recommendation) -> str:
    """What the cells of the front are: by the figures that any of them has."""
    known = {
        "time": [point.time_s for point in found.front],
        "validation accuracy": [point.val_accuracy for point in found.front],
        "cost": [point.cost for point in found.front],
    }
    told = [name for name, values in known.items() if not all(map(math.isnan, values))]
    many = f"{', '.join(told[:-1])} and {told[-1]} at once" if len(told) > 1 else told[0]
    return f"No other cell beats one of these in {many} (means over seeds)"


def units(found: Recommendation, points: Sequence[FrontPoint]) -> tuple[Unit, Unit]:
    """In which a table of these cells has times and costs."""
    times = suited("s", *(point.time_s for point in points))
    return times, suited(found.cost_unit, *(point.cost for point in points))


def by_gpus(found: Recommendation) -> str:
    """What the table of GPU counts is."""
    among = ", of those whose accuracy is within the margin" if found.baseline_cell_id else ""
    return f"The best cell of each number of GPUs{among} (means over seeds)"


def bests(found: Recommendation) -> list[FrontPoint]:
    """Those of the GPU counts that have one; what each is as fast as is told beside the first of them."""
    return [count.best for count in found.gpu_counts if count.best]


def told_of(found: Recommendation, count: GpuCount) -> str:
    """The name of a GPU count's best cell, or that there is none."""
    return called(found, count.best) if count.best else f"gpus={count.gpus:g}: {count.why_none}"


def called(found: Recommendation, point: FrontPoint) -> str:
    """A cell's name, and whether it is the chosen one."""
    return f"{point.name} (chosen)" if point.cell_id == found.cell_id else point.name


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- {figures.plain(line)}" for line in lines), ""] if lines else []


def _gpu_counts(found: Recommendation) -> list[str]:
    points = bests(found)
    if not points:
        return []
    times, costs = units(found, points)
    slowest = points[0].time_s
    best = [count.best for count in found.gpu_counts]
    columns = {
        f"time [{times.name}]": [times.number(point.time_s) if point else "" for point in best],
        "times as fast": [as_fast(slowest, point.time_s) if point else "" for point in best],
        "validation accuracy": [_accuracy(point.val_accuracy) if point else "" for point in best],
        f"cost [{costs.name}]": [costs.number(point.cost) if point else "" for point in best],
    }
    return _table(by_gpus(found), [told_of(found, count) for count in found.gpu_counts], columns)


def as_fast(slowest_s: float, time_s: float) -> str:
    """How many times as fast as the first of a table: `1.94×`; nothing where either time is not known."""
    return "" if math.isnan(slowest_s) or math.isnan(time_s) else f"{figures.times(slowest_s / time_s)}×"


def _front(found: Recommendation) -> list[str]:
    if len(found.front) < 2:
        return []
    times, costs = units(found, found.front)
    columns = {
        f"time [{times.name}]": [times.number(point.time_s) for point in found.front],
        "validation accuracy": [_accuracy(point.val_accuracy) for point in found.front],
        f"cost [{costs.name}]": [costs.number(point.cost) for point in found.front],
    }
    return _table(beaten_by_none(found), [called(found, point) for point in found.front], columns)


def _table(title: str, cells: Sequence[str], columns: Mapping[str, Sequence[str]]) -> list[str]:
    """A row for each cell, without the columns that are empty."""
    known = {head: told for head, told in columns.items() if any(told)}
    rows = zip(map(figures.plain, cells), *known.values(), strict=True)
    return [
        f"{title}:",
        "",
        f"| {' | '.join(['cell', *known])} |",
        f"|{':--|' * (1 + len(known))}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def _accuracy(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
