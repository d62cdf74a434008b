"""The recommendation in words: as Markdown, as JSON for programs, and as plain sentences for the page and the terminal.

Every sentence is in `recommendation.md.j2`, which has a macro for each code of a remark. docs/how-to/library.md lists
the keys of the JSON object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.recommendation import (
    COSTLY,
    NO_OBJECTIVE,
    SURE,
    TIED,
    WORTH,
    Figure,
    GpuCount,
    GpuStep,
    Recommendation,
    Remark,
    Rival,
    Setting,
    StepSpeed,
    TradeOff,
)
from orchestrator.store.files import finite
from orchestrator.text import numbers
from orchestrator.text.numbers import suited
from orchestrator.text.rows import TextTable, gpu_word, gpus_in_words, without_empty

UNBOUNDED = 10.0
"""A bound larger than this multiple of the best cell's objective says nothing, and is not reported."""

MATERIAL = 0.1
"""Total times are shown if they exceed training times by this part."""

COLUMNS = {"time": "time", "total_time": "total", "energy": "energy", "cost": "training cost"}
"""Figures of key cells, and the heads of their columns. The summary's `cost` is that of a trial."""

_UNSETTLED = ("indistinguishable", "near_margin")
"""Codes of remarks on what no reasonable number of seeds shows."""

_SHOWN_BESIDE = ("may_not_be_best", "may_miss_margin")
"""Codes of caveats whose probabilities are beside the choice anyway."""

_PROVISIONAL = "Provisional"
"""The label of the reasons why a recommendation is provisional."""

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
    cells: TextTable | None
    """The cells in question."""
    steps: Labelled
    """Whether each number of GPUs is worth it."""
    larger_batch: Labelled
    """What the largest batch yields; empty if the chosen cell has it."""
    how_sure: Labelled
    """P(best) in words; empty if it is unknown."""
    facts: Labelled
    """Further facts about the choice."""
    unsettled: Sequence[str]
    """Why no reasonable number of seeds would make the choice more certain."""
    caveats: Sequence[str]
    """Reasons why it is provisional, as phrases."""
    behind: str
    """How much may be lost by the choice; empty if there is only one seed."""
    reasons: Sequence[str]
    sensitivity: Sequence[str]
    """Measurements or settings that would change it."""

    @property
    def behind_lead(self) -> list[str]:
        """The sentences after the lead: the details and the caveats, without probabilities that are shown anyway."""
        return [*self.details, *(f"{label}: {text}." for label, text in self.facts if label == _PROVISIONAL)]

    @property
    def sentence(self) -> str:
        """The lead and the sentences after it."""
        return " ".join([self.lead, *self.behind_lead])


def in_sentences(recommendation: Recommendation) -> RecommendationText:
    """Return the recommendation in plain sentences."""
    no_choice = math.isnan(recommendation.behind) or recommendation.cell_id is None
    return RecommendationText(
        title="In short" if recommendation.objective == NO_OBJECTIVE else "Recommendation",
        verdict=recommendation.verdict.upper(),
        lead=sentence(recommendation.headline),
        details=[*_beside(recommendation), *map(sentence, recommendation.details)],
        cells=key_cells(recommendation, 5),
        steps=[(step.name, step_text(step, recommendation, by_batch=True)) for step in recommendation.gpu_steps],
        larger_batch=list(_larger_batch(recommendation)),
        how_sure=[] if math.isnan(recommendation.p_best) else [("How sure", _line("how_sure", recommendation))],
        facts=list(_facts(recommendation)),
        unsettled=[sentence(remark) for remark in recommendation.sensitivity if remark.code in _UNSETTLED],
        caveats=[sentence(remark) for remark in recommendation.caveats],
        behind="" if no_choice else _line("behind", recommendation),
        reasons=[sentence(remark) for remark in recommendation.reasons],
        sensitivity=[sentence(remark) for remark in recommendation.sensitivity],
    )


def _equal_rivals(recommendation: Recommendation) -> list[Rival]:
    """Return the eligible rivals that are likelier the best than the chosen cell or, in a tie, as likely."""
    tie = recommendation.verdict == TIED
    eligible = [rival for rival in recommendation.rivals if rival.eligible]
    return [rival for rival in eligible if rival.p_best > recommendation.p_best or (tie and rival.tied)]


def _beside(recommendation: Recommendation) -> list[str]:
    """Return a sentence on the eligible rivals that are as likely to be the best as the chosen cell, or more likely."""
    rivals, tie = _equal_rivals(recommendation), recommendation.verdict == TIED
    # A rival without a reason is not in the shortlist, so a sentence would have nothing to say about it.
    reasons = {cell.cell_id: cell.why_not for cell in recommendation.shortlist if cell.why_not}
    named = [rival for rival in rivals if rival.cell_id in reasons][: 2 if tie else 1]
    if not named:
        return []
    shown = [{"name": rival.name, "p_best": rival.p_best, "why": reasons[rival.cell_id]} for rival in named]
    more = len(rivals) - len(named)
    return [_line("beside", {"tied": tie, "rivals": shown, "more": more, "p_chosen": recommendation.p_best})]


def _facts(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    chosen = recommendation.chosen
    if chosen and not recommendation.is_baseline and not math.isnan(recommendation.p_within_margin):
        metric = recommendation.metric
        label = "Accuracy" if metric == VAL_ACCURACY else metric.short_label.capitalize()
        values = {"margin": recommendation.margin, "p_within": recommendation.p_within_margin}
        yield label, _line("accuracy_kept", values | _difference(recommendation, chosen))
    if safe := safe_choice(recommendation):
        yield "Safe choice", safe
    if recommendation.tokens:
        yield "Valid for", f"trainings of about {recommendation.tokens:,.0f} tokens; longer ones allow larger batches"
    if caveats := [sentence(remark) for remark in recommendation.caveats if remark.code not in _SHOWN_BESIDE]:
        yield _PROVISIONAL, "; ".join(caveats)


def _difference(recommendation: Recommendation, cell: Setting) -> dict[str, Any]:
    """Return by how much a cell's metric differs from the baseline's, above 0 if it is better, and the metric."""
    metric = recommendation.metric
    return {"metric": metric, "difference": metric.sign * cell.value(f"{metric.name}_difference")}


def _larger_batch(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield what the largest batch yields beside the baseline, if it is larger than the chosen cell's."""
    largest, baseline = recommendation.setting(recommendation.largest_batch_cell_id), recommendation.baseline
    eligible = {rival.cell_id for rival in recommendation.rivals if rival.eligible}
    if largest and baseline and largest.cell_id not in eligible:
        time = recommendation.deciding_time
        values = {"name": largest.name, "speed": baseline.value(time) / largest.value(time)}
        yield "Larger batch", _line("larger_batch", values | _difference(recommendation, largest))


def _paid(recommendation: Recommendation, time: str) -> list[str]:
    """Return the figures that a choice is paid in: this time, energy if it is the objective, and costs on GPUs."""
    energy = ["energy"] if recommendation.objective == "energy" else []
    return [time, *energy, *([] if recommendation.on_cpu else ["cost"])]


def safe_choice(recommendation: Recommendation) -> str:
    """Return the safe cell with its probability, and what it costs beside the chosen cell; empty if they are one."""
    safe, chosen = recommendation.setting(recommendation.safe_cell_id), recommendation.chosen
    if safe is None or chosen is None:
        return ""
    costs = []
    for name in _paid(recommendation, recommendation.deciding_time):
        of_safe, of_chosen = safe.value(name), chosen.value(name)
        unit = suited(safe.figures[name].unit, of_safe, of_chosen)
        if not math.isnan(of_safe + of_chosen):
            costs.append(f"{COLUMNS[name]} {unit.text(of_safe)} instead of {unit.text(of_chosen)}")
    values = {"name": safe.name, "p_within": safe.p_within_margin, "margin": recommendation.margin, "costs": costs}
    return _line("safe_cell", values)


def sentence(remark: Remark | None) -> str:
    """Return a remark in words, on one line; empty for None."""
    return _line(remark.code, remark.values) if remark else ""


def probability(value: float, *, short: bool = False) -> str:
    """Return `97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    # Of a few seeds no probability is 0 or 1.
    over, below = ("≥99%", "≤1%") if short else ("over 99%", "below 1%")
    return over if value > 0.99 else below if value < 0.01 else f"{value:.0%}"


def recommendation_markdown(recommendation: Recommendation, sweep: str) -> str:
    """Return the recommendation as Markdown, the first of the tables."""
    text = in_sentences(recommendation)
    return str(_template().document(text, recommendation.commands, sweep)).rstrip("\n") + "\n"


def _line(macro: str, values: Any) -> str:
    return " ".join(str(getattr(_template(), macro)(values)).split())


@cache
def _template() -> Any:
    """Return the template's macros; Jinja is set up only once a recommendation is written."""
    # Not autoescaped: the sentences are plain text, which each form escapes for itself.
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters |= {
        "fact": numbers.fact,
        "g": lambda value: f"{value:g}",
        "percent": numbers.percent,
        "plain": numbers.plain,
        "probability": probability,
        "sentence": sentence,
        "times": numbers.times,
    }
    environment.globals |= {
        "amount": lambda unit, value, *beside: suited(unit, value, *filter(None, beside)).text(value),
        "counted": numbers.counted,
        "infinity": math.inf,
        "gpus": lambda count, on_cpu: gpus_in_words(count, on_cpu=on_cpu),
        "quantile": LOSS_QUANTILE,
        "sure": SURE,
        "tie": TIE,
        "unbounded": UNBOUNDED,
        "with_interval": lambda point, lo, hi: numbers.with_interval(point, lo, hi, numbers.times, "×"),
    }
    return environment.get_template("recommendation.md.j2").module


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
            *[rival.cell_id for rival in _equal_rivals(recommendation)][:2],
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
    metric, time = recommendation.metric, recommendation.deciding_time
    rates = [cell.values["lr"] for cell in shown]
    columns = {"LR": [f"{rate:.3g}" if isinstance(rate, float | int) else "" for rate in rates]}
    paid = _paid(recommendation, "time")
    # The total is a column only if it tells more than the training time.
    if any(map(takes_longer, shown)):
        paid.append("total_time")
    for name, title in COLUMNS.items():
        if name in paid:
            values = [cell.value(name) for cell in shown]
            unit = suited(shown[0].figures[name].unit, *values)
            columns[f"{title} [{unit.name}]"] = [unit.number(value) for value in values]
    # By the time that decides, so that the column agrees with the sentence.
    baseline = recommendation.baseline
    columns["speed"] = [_times(_speed(cell, baseline, time)) for cell in shown]
    columns[metric.short_label] = [_three(cell.value(metric.name)) for cell in shown]
    if baseline:
        columns["P(within)"] = [_chance(cell.p_within_margin) for cell in shown]
    columns["P(best)"] = [_chance(cell.p_best) for cell in shown]
    # An exclamation mark, because colour alone must carry no meaning.
    columns["timed"] = [f"{cell.n_timed}/{cell.n_ok}{'' if cell.n_timed == cell.n_ok else ' !'}" for cell in shown]
    return columns


def _speed(cell: Setting, baseline: Setting | None, time: str) -> float:
    """Return the speed of a cell relative to the baseline; NaN unless both have a valid timing."""
    if baseline is None or cell.timing_valid is False or baseline.timing_valid is False:
        return math.nan
    return baseline.value(time) / cell.value(time)


def _chance(value: float) -> str:
    return "-" if math.isnan(value) else probability(value, short=True)


def _times(value: float) -> str:
    return "" if math.isnan(value) else f"{numbers.times(value)}×"


def _three(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def takes_longer(cell: Setting) -> bool:
    """Return whether start-up, compilation and evaluation make a cell's total time materially longer."""
    return cell.value("total_time") > (1 + MATERIAL) * cell.value("time")


def step_text(step: GpuStep, recommendation: Recommendation, *, by_batch: bool) -> str:
    """Return `not worth it: 0.71× the speed at batch 32 each`; without `by_batch` one range for all."""
    # A step that is not worth it has no gain to report.
    gains = []
    if step.worth in (WORTH, COSTLY):
        gains.append(f"{numbers.times(step.gain)}× as fast" if recommendation.objective == "time" else "")
        gains.append("" if math.isnan(step.cost) else f"{numbers.times(step.cost)}× the cost")
    gain = " at ".join(filter(None, gains))
    is_accuracy = recommendation.metric == VAL_ACCURACY
    if by_batch:
        speeds = ", ".join(_speeds(step, "loses accuracy" if is_accuracy else "misses the margin"))
    else:
        # One range each for the batches that keep the accuracy and those that lose it.
        lost = [speed for speed in step.by_batch if speed.keeps_margin is False]
        kept = [speed for speed in step.by_batch if speed.keeps_margin is not False]
        speeds = f"{_over(kept or lost)} the speed" if step.by_batch else ""
        if kept and lost:
            speeds += f", {_over(lost)} {'losing accuracy' if is_accuracy else 'missing the margin'}"
    return ": ".join(filter(None, [step.worth, f"{gain} ({speeds})" if gain and speeds else gain or speeds]))


def _over(speeds: Sequence[StepSpeed]) -> str:
    return _range(min(speed.lo for speed in speeds), max(speed.hi for speed in speeds))


def _speeds(step: GpuStep, loses: str) -> Iterator[str]:
    """Yield the speed at each batch, in full for the first."""
    for place, speed in enumerate(step.by_batch):
        where = f"at {speed.batch}"
        if place == 0:
            where = f"the speed at batch {speed.batch}{' in all' if speed.is_global else ' each'}"
        yield f"{_range(speed.lo, speed.hi)} {where}{f' ({loses})' if speed.keeps_margin is False else ''}"


def _range(lo: float, hi: float) -> str:
    ends = dict.fromkeys((numbers.times(lo), numbers.times(hi)))
    return f"{'–'.join(ends)}×"


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
    word = recommendation.metric.word
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
        recommendation.metric.label: [_three(cell.metric) if cell else "" for cell in cells],
        f"{COLUMNS['cost']} [{cost.name}]": [cost.number(cell.cost) if cell else "" for cell in cells],
    }


def _label(cell: TradeOff, recommendation: Recommendation) -> str:
    return f"{cell.name} (chosen)" if cell.cell_id == recommendation.cell_id else cell.name


VERSION = 2
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
        "objective": {"name": recommendation.objective, "measure": recommendation.measure or None},
        "verdict": recommendation.verdict or None,
        "recommended": chosen and _setting(chosen, recommendation),
        "safe_cell_id": recommendation.safe_cell_id,
        "provisional": recommendation.provisional,
        "probability": {"best": recommendation.p_best, "within_margin": recommendation.p_within_margin},
        "margin": {recommendation.metric.name: recommendation.margin, "tie": TIE},
        "behind_best": {"at_most": bound, "probability": LOSS_QUANTILE},
        "warnings": [*text.caveats, *([chosen.note] if chosen and chosen.note else [])],
        "reasons": text.reasons,
        "not_considered": [sentence(remark) for remark in recommendation.left_out],
        "rivals": [_with_chances(asdict(rival)) for rival in recommendation.rivals],
        "baseline": baseline and _setting(baseline, recommendation),
        "alternatives": [_setting(cell, recommendation) for cell in others],
        "gpu_counts": [_gpu_count(count, recommendation) for count in recommendation.gpu_counts],
        "gpu_steps": [asdict(step) for step in recommendation.gpu_steps],
        "undecided": {
            "would_change": text.sensitivity,
            "more_seeds": [asdict(more) for more in recommendation.more_seeds],
            "commands": recommendation.commands,
        },
    }
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


def _with_chances(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its probabilities in one object."""
    others = {key: value for key, value in content.items() if key not in ("p_best", "p_within_margin")}
    return others | {"probability": {"best": content["p_best"], "within_margin": content["p_within_margin"]}}


def _setting(cell: Setting, recommendation: Recommendation) -> dict[str, Any]:
    """Return a cell; its `speedup` is that of the sentence, over the baseline that accuracies are compared with."""
    figures = {name: None if math.isnan(figure.value) else asdict(figure) for name, figure in cell.figures.items()}
    figures["gpu_speedup"] = figures.pop("speedup")
    time, baseline = recommendation.deciding_time, recommendation.baseline
    speedup = baseline.value(time) / cell.value(time) if baseline else math.nan
    figures["speedup"] = None if math.isnan(speedup) else asdict(Figure(value=speedup, unit="1"))
    figures |= _money_or_hours(figures["cost"], cell.figures["cost"].unit)
    return _with_chances(asdict(cell)) | {"figures": figures, "why_not": sentence(cell.why_not) or None}


def _gpu_count(count: GpuCount, recommendation: Recommendation) -> dict[str, Any]:
    best = count.best and asdict(count.best) | _money_or_hours(count.best.cost, recommendation.cost_unit)
    return asdict(count) | {"best": best, "why_none": sentence(count.why_none)}


def _money_or_hours(cost: Any, unit: str) -> dict[str, Any]:
    """Return a cost as money; without a price, as hours of GPUs or worker processes."""
    in_hours = unit.endswith("-hours")
    return {"cost": None if in_hours else cost, "hours": cost if in_hours else None}
