"""The tables of a recommendation: what each number of GPUs is worth, and the cells that nothing beats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from orchestrator.decision.recommendation import Recommendation, TradeOff
from orchestrator.text import figures
from orchestrator.text.table import TextTable
from orchestrator.text.units import suited


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
    return _table("gpu-counts", title, names, dict([time, faster, *others]))


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
    return _table("front", title, [_called(found, point) for point in found.front], columns)


def _columns(found: Recommendation, points: Sequence[TradeOff | None]) -> dict[str, list[str]]:
    """Times and costs in one unit each; `""` for what is not known."""
    times = suited("s", *(point.time_s for point in points if point))
    costs = suited(found.cost_unit, *(point.cost for point in points if point))
    return {
        f"time [{times.name}]": [times.number(point.time_s) if point else "" for point in points],
        "validation accuracy": [_accuracy(point.val_accuracy) if point else "" for point in points],
        f"cost [{costs.name}]": [costs.number(point.cost) if point else "" for point in points],
    }


def _table(name: str, title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> TextTable:
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
