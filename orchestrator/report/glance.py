"""The recommendation in a few large figures, for a reader who has twenty seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.decision.recommendation import Recommendation, Setting
from orchestrator.text import figures
from orchestrator.text.units import suited
from sweeps.sweep import STANDARD_AXES


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure, what it is of, and what it compares with."""

    title: str
    value: str
    beside: str = ""


def tiles(found: Recommendation, *, on_cpu: bool = False) -> list[Tile]:
    """What to use, and what comes of it; nothing where nothing is recommended."""
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    if chosen is None:
        return []
    return [*_settings(chosen, on_cpu), *_outcomes(found, chosen, None if found.is_baseline else baseline, on_cpu)]


def _settings(chosen: Setting, on_cpu: bool) -> Iterator[Tile]:
    gpus, each, whole = (chosen.values.get(key) for key in ("gpus", "device_batch_size", "global_batch_size"))
    yield Tile(title="worker processes" if on_cpu else "GPUs", value=f"{gpus:g}")
    yield Tile(title="batch", value=f"{whole:,}", beside=f"{each:,} each" if each != whole else "")
    yield Tile(title="learning-rate rule", value=str(chosen.values.get("lr_rule")), beside=_rate(chosen))
    for axis, value in chosen.axes.items():
        if axis not in STANDARD_AXES:
            yield Tile(title=axis, value=str(figures.asked(value)))


def _rate(chosen: Setting) -> str:
    rate = chosen.values.get("lr")
    return f"rate {rate:.4g}" if isinstance(rate, float) else ""


def _outcomes(found: Recommendation, chosen: Setting, baseline: Setting | None, on_cpu: bool) -> Iterator[Tile]:
    purpose = found.measure.partition(" ")[2]
    for name in ("time", "energy", "cost"):
        mine = chosen.figures[name]
        if math.isnan(mine.value) or (name == "cost" and on_cpu):  # there, workers times time
            continue
        other = baseline.figures[name].value if baseline else math.nan
        unit = suited(mine.unit, mine.value, other)
        beside = "" if math.isnan(other) else f"baseline {unit.text(other)}: {_as_many(mine.value, other, name)}"
        yield Tile(title=f"{name} {purpose}", value=unit.text(mine.value), beside=beside)
    accuracy = chosen.figures["val_accuracy"].value
    if not math.isnan(accuracy):
        yield Tile(title="validation accuracy", value=f"{accuracy:.3f}", beside=_change(found, chosen, baseline))


def _as_many(mine: float, other: float, name: str) -> str:
    return f"{figures.times(other / mine)}× as fast" if name == "time" else f"{figures.percent(mine / other)}% of it"


def _change(found: Recommendation, chosen: Setting, baseline: Setting | None) -> str:
    change = chosen.figures["val_accuracy_difference"].value
    if baseline is None or math.isnan(change):
        return ""
    return f"baseline {baseline.figures['val_accuracy'].value:.3f}; {found.margin:g} lower is allowed"
