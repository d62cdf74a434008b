"""The cells of a recommendation: those in question, the best for each number of GPUs, and what each step is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.choice import SHOWN
from orchestrator.decision.recommendation import (
    COSTLY,
    TIED,
    WORTH,
    GpuStep,
    Recommendation,
    Rival,
    Setting,
    StepSpeed,
    TradeOff,
)
from orchestrator.tables.sentences import probability, sentence
from orchestrator.text import numbers
from orchestrator.text.numbers import suited
from orchestrator.text.rows import TextTable, gpu_word, without_empty

MATERIAL = 0.1
"""Total times are shown if they exceed training times by this part."""

COLUMNS = {"time": "time", "total_time": "total", "energy": "energy", "cost": "training cost"}
"""Figures of key cells, and the heads of their columns. The summary's `cost` is that of a trial."""


def equal_rivals(recommendation: Recommendation) -> list[Rival]:
    """Return the eligible rivals that are likelier the best than the chosen cell or, in a tie, as likely."""
    # In a tie, rivals with a somewhat lower probability are as good a choice.
    tie = recommendation.verdict == TIED
    eligible = [rival for rival in recommendation.rivals if rival.eligible]
    return [rival for rival in eligible if rival.p_best > recommendation.p_best or (tie and rival.tied)]


def paid_figures(recommendation: Recommendation, time: str) -> list[str]:
    """Return the figures that a choice is paid in: this time, energy if it is the objective, and costs on GPUs."""
    energy = ["energy"] if recommendation.terms.report.objective == "energy" else []
    return [time, *energy, *([] if recommendation.on_cpu else ["cost"])]


def takes_longer(cell: Setting) -> bool:
    """Return whether start-up, compilation and evaluation make a cell's total time materially longer."""
    return cell.value("total_time") > (1 + MATERIAL) * cell.value("time")


def speed_of(cell: Setting, recommendation: Recommendation) -> float:
    """Return the speed of a cell relative to the baseline; NaN unless both have a valid timing."""
    baseline = recommendation.baseline
    if baseline is None or cell.timing_valid is False or baseline.timing_valid is False:
        return math.nan
    # By the time that decides, so that all forms agree with the sentence.
    return baseline.value(recommendation.deciding_time) / cell.value(recommendation.deciding_time)


def key_cells(recommendation: Recommendation, most: int) -> TextTable | None:
    """Return a table of at most `most` cells: the chosen one, rivals, the best of other GPU counts, and the baseline.

    Also includes a reference-batch cell that was rejected as baseline, and the likeliest cell that is not eligible, if
    it is likelier to be the best than the chosen cell. None if there are none.
    """
    cells = {cell.cell_id: cell for cell in recommendation.shortlist}
    baseline = recommendation.baseline
    wanted: list[str | None] = list(cells)
    if recommendation.cell_id:
        likelier = [rival for rival in recommendation.rivals if rival.p_best > recommendation.p_best]
        wanted = [
            recommendation.cell_id,
            recommendation.safe_cell_id,
            recommendation.poor_reference_cell_id,
            *[rival.cell_id for rival in likelier if not rival.eligible][:1],
            *[rival.cell_id for rival in equal_rivals(recommendation)][:2],
            *[count.best.cell_id for count in reversed(recommendation.gpu_counts) if count.best],
        ]
    # The baseline is the last row, unless it is the chosen cell: the others are read against it.
    others = [cells[cell_id] for cell_id in dict.fromkeys(wanted) if cell_id in cells]
    others = [cell for cell in others if cell is not baseline or recommendation.is_baseline]
    shown = others[: most - (baseline is not None)]
    if baseline and baseline not in shown:
        shown.append(baseline)
    if not shown:
        return None
    columns = {
        f"{gpu_word(on_cpu=recommendation.on_cpu, one=True)}×batch rule": [
            f"{cell.name} (baseline)" if cell is baseline else cell.name for cell in shown
        ],
        **_key_columns(recommendation, shown),
    }
    return TextTable(name="key-cells", title="The cells in question", about=(), frame=without_empty(columns))


def _key_columns(recommendation: Recommendation, shown: Sequence[Setting]) -> dict[str, list[str]]:
    """Return the columns of key cells, "" where a value is not known."""
    metric = recommendation.terms.metric
    rates = [cell.values["lr"] for cell in shown]
    columns = {"LR": [f"{rate:.3g}" if isinstance(rate, float | int) else "" for rate in rates]}
    paid = paid_figures(recommendation, "time")
    # The total is a column only if it tells more than the training time.
    if any(map(takes_longer, shown)):
        paid.append("total_time")
    for name, title in COLUMNS.items():
        if name in paid:
            values = [cell.value(name) for cell in shown]
            unit = suited(shown[0].figures[name].unit, *values)
            columns[f"{title} [{unit.name}]"] = [unit.number(value) for value in values]
    columns["speed"] = [_times(speed_of(cell, recommendation)) for cell in shown]
    columns[metric.short_label] = [_three(cell.value(metric.name)) for cell in shown]
    if recommendation.baseline:
        columns["P(within)"] = [_chance(cell.p_within_margin) for cell in shown]
    columns["P(best)"] = [_chance(cell.p_best) for cell in shown]
    # An exclamation mark, because colour alone must carry no meaning.
    columns["timed"] = [f"{cell.n_timed}/{cell.n_ok}{'' if cell.n_timed == cell.n_ok else ' !'}" for cell in shown]
    return columns


def _chance(value: float) -> str:
    return "-" if math.isnan(value) else probability(value, short=True)


def _times(value: float) -> str:
    return "" if math.isnan(value) else f"{numbers.times(value)}×"


def _three(value: float) -> str:
    # Three decimals show nothing of a small loss.
    return "" if math.isnan(value) else f"{value:.3g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"


def gpu_count_table(recommendation: Recommendation) -> TextTable | None:
    """Return the best cell of each number of GPUs, from the fewest; None if one was tried, or none has a best cell."""
    bests = [count.best for count in recommendation.gpu_counts]
    # Speeds are relative to the fewest GPUs that have a best cell.
    first_s = next((best.time_s for best in bests if best), None)
    if first_s is None:
        return None
    cells = [
        _label(count.best, recommendation) if count.best else f"{count.name}: {sentence(count.why_none)}"
        for count in recommendation.gpu_counts
    ]
    speeds = [_times(first_s / best.time_s) if best else "" for best in bests]
    word = recommendation.terms.metric.word
    among = f", among those whose {word} is within the margin" if recommendation.baseline_cell_id else ""
    title = f"The best cell for each number of {gpu_word(on_cpu=recommendation.on_cpu)}{among} (means over seeds)"
    frame = without_empty({"cell": cells, **_trade_offs(recommendation, bests)})
    # Beside the time, from which it follows.
    frame.insert(2, "times as fast", speeds)
    return TextTable(name="gpu-counts", title=title, about=(), frame=frame)


def front_table(recommendation: Recommendation) -> TextTable | None:
    """Return the cells that no other one beats in time, accuracy and cost at once.

    None if there is only one, or if all of them are in the table of GPU counts.
    """
    front = recommendation.front
    # A second table with the same cells would only be longer.
    bests = {count.best.cell_id for count in recommendation.gpu_counts if count.best}
    if len(front) < 2 or {cell.cell_id for cell in front} <= bests:
        return None
    cells = [_label(cell, recommendation) for cell in front]
    frame = without_empty({"cell": cells, **_trade_offs(recommendation, front)})
    known = [column.partition(" [")[0] for column in frame.columns[1:]]
    qualities = f"{', '.join(known[:-1])} and {known[-1]} at once" if len(known) > 1 else known[0]
    title = f"Cells that no other one beats in {qualities} (means over seeds)"
    return TextTable(name="front", title=title, about=(), frame=frame)


def _trade_offs(recommendation: Recommendation, cells: Sequence[TradeOff | None]) -> dict[str, list[str]]:
    """Return times and costs in one unit each, and the metric; "" for what is not known."""
    time = suited("s", *(cell.time_s for cell in cells if cell))
    cost = suited(recommendation.cost_unit, *(cell.cost for cell in cells if cell))
    return {
        f"{COLUMNS[recommendation.deciding_time]} [{time.name}]": [
            time.number(cell.time_s) if cell else "" for cell in cells
        ],
        recommendation.terms.metric.heading: [_three(cell.metric) if cell else "" for cell in cells],
        f"{COLUMNS['cost']} [{cost.name}]": [cost.number(cell.cost) if cell else "" for cell in cells],
    }


def _label(cell: TradeOff, recommendation: Recommendation) -> str:
    return f"{cell.name} (chosen)" if cell.cell_id == recommendation.cell_id else cell.name


def step_text(step: GpuStep, recommendation: Recommendation, *, by_batch: bool) -> str:
    """Return `not worth it: 0.71× the speed at batch 32 each`; without `by_batch` one range for all."""
    # A step that is not worth it has no gain to report.
    gains = []
    if step.worth in (WORTH, COSTLY):
        gains.append(
            f"{numbers.times(step.gain.value)}× as fast" if recommendation.terms.report.objective == "time" else ""
        )
        gains.append("" if math.isnan(step.cost) else f"{numbers.times(step.cost)}× the cost")
    gain = " at ".join(filter(None, gains))
    is_accuracy = recommendation.terms.metric == VAL_ACCURACY
    if by_batch:
        speeds = ", ".join(_speeds(step, is_accuracy=is_accuracy))
    else:
        # One range each for the batches that keep the accuracy and those that lose it.
        lost = [speed for speed in step.by_batch if speed.keeps_margin is False]
        kept = [speed for speed in step.by_batch if speed.keeps_margin is not False]
        speeds = f"{_over(kept or lost)} the speed" if step.by_batch else ""
        if kept and lost:
            is_shown = all(speed.p_within < SHOWN for speed in lost)
            loss = "losing accuracy" if is_accuracy else "missing the margin"
            speeds += f", {_over(lost)} {'' if is_shown else 'perhaps '}{loss}"
    return ": ".join(filter(None, [step.worth, f"{gain} ({speeds})" if gain and speeds else gain or speeds]))


def _over(speeds: Sequence[StepSpeed]) -> str:
    return _range(min(speed.lo for speed in speeds), max(speed.hi for speed in speeds))


def _speeds(step: GpuStep, *, is_accuracy: bool) -> Iterator[str]:
    """Yield the speed at each batch, in full for the first."""
    for place, speed in enumerate(step.by_batch):
        where = f"at {speed.batch}"
        if place == 0:
            where = f"the speed at batch {speed.batch}{' in all' if speed.is_global else ' each'}"
        yield f"{_range(speed.lo, speed.hi)} {where}{_loss(speed, is_accuracy=is_accuracy)}"


def _loss(speed: StepSpeed, *, is_accuracy: bool) -> str:
    """Return what a batch loses: a loss is stated only if it is shown."""
    if speed.keeps_margin is not False:
        return ""
    if speed.p_within < SHOWN:
        return " (loses accuracy)" if is_accuracy else " (misses the margin)"
    return " (may lose accuracy)" if is_accuracy else " (may miss the margin)"


def _range(lo: float, hi: float) -> str:
    # Ends that look alike are one number.
    ends = dict.fromkeys((numbers.times(lo), numbers.times(hi)))
    return f"{'–'.join(ends)}×"
