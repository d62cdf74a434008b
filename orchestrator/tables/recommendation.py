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

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.recommendation import (
    COSTLY,
    NO_OBJECTIVE,
    SURE,
    TIED,
    WORTH,
    GpuStep,
    MoreSeeds,
    Recommendation,
    Remark,
    Rival,
    Setting,
    StepSpeed,
    TradeOff,
    is_sure,
)
from orchestrator.store.files import finite
from orchestrator.text import numbers
from orchestrator.text.numbers import suited
from orchestrator.text.rows import TextTable, gpu_word, gpus_in_words

UNBOUNDED = 10.0
"""A bound larger than this multiple of the best cell's objective says nothing, and is not reported."""


_PROVISIONAL = "Provisional"
"""The label of the reasons why a recommendation is provisional."""


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
    steps: Sequence[tuple[str, str]]
    """Whether each number of GPUs is worth it, as (number, text)."""
    larger_batch: Sequence[tuple[str, str]]
    """What the largest batch yields, in the same form; empty if the chosen cell has it."""
    how_sure: Sequence[tuple[str, str]]
    """P(best) in words, in the same form; empty if it is unknown."""
    facts: Sequence[tuple[str, str]]
    """Further facts about the choice, as (label, text)."""
    unsettled: Sequence[str]
    """Why no reasonable number of seeds would make the choice more certain."""
    cell_id: str | None
    provisional: bool
    caveats: Sequence[str]
    """Reasons why it is provisional, as phrases."""
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
        """The sentences after the lead: the details and the caveats, without probabilities that are shown anyway."""
        provisional = [text for label, text in self.facts if label == _PROVISIONAL]
        return [*self.details, *(f"{_PROVISIONAL}: {text}." for text in provisional)]

    @property
    def sentence(self) -> str:
        """The lead and the sentences after it."""
        return " ".join([self.lead, *self.behind_lead])


def in_sentences(found: Recommendation) -> RecommendationText:
    """Return the recommendation in plain sentences."""
    return RecommendationText(
        title="In short" if found.objective == NO_OBJECTIVE else "Recommendation",
        verdict=found.verdict.upper(),
        lead=sentence(found.headline),
        details=[*_beside(found), *map(sentence, found.details)],
        cells=key_cells(found, 5),
        steps=[(each.name, step_text(each, found, by_batch=True)) for each in found.gpu_steps],
        larger_batch=list(_larger_batch(found)),
        how_sure=[] if math.isnan(found.p_best) else [("How sure", _line("how_sure", found))],
        facts=list(_facts(found)),
        unsettled=[sentence(each) for each in found.sensitivity if each.code in _UNSETTLED],
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


_UNSETTLED = ("indistinguishable", "near_margin")
"""Codes of remarks on what no reasonable number of seeds shows."""

_SHOWN_AS_FIGURES = ("may_not_be_best", "may_miss_margin")
"""Codes of caveats whose probabilities are beside the choice anyway."""


def _equal_rivals(found: Recommendation) -> list[Rival]:
    """Return the eligible rivals that are likelier the best than the chosen cell or, in a tie, as likely."""
    tied = found.verdict == TIED
    return [each for each in found.rivals if each.eligible and (each.p_best > found.p_best or (tied and each.tied))]


def _beside(found: Recommendation) -> list[str]:
    """Return a sentence on the eligible rivals that are as likely to be the best as the chosen cell, or more likely."""
    rivals, tied = _equal_rivals(found), found.verdict == TIED
    reasons = {each.cell_id: each.why_not for each in found.shortlist}
    named = [each for each in rivals if reasons.get(each.cell_id)][: 2 if tied else 1]
    if not named:
        return []
    told = [{"name": each.name, "p_best": each.p_best, "why": reasons[each.cell_id]} for each in named]
    values = {"tied": tied, "rivals": told, "more": len(rivals) - len(named), "p_chosen": found.p_best}
    return [_line("beside", values)]


def _facts(found: Recommendation) -> Iterator[tuple[str, str]]:
    chosen = next((each for each in found.shortlist if each.cell_id == found.cell_id), None)
    if chosen and not found.is_baseline and not math.isnan(found.p_within_margin):
        label = "Accuracy" if found.metric == VAL_ACCURACY else found.metric.short_label.capitalize()
        values = {"margin": found.margin, "p_within": found.p_within_margin, **_difference(found, chosen)}
        yield label, _line("accuracy_kept", values)
    if safe := safe_choice(found):
        yield "Safe choice", safe
    if found.tokens:
        yield "Valid for", f"trainings of about {found.tokens:,.0f} tokens; longer ones allow larger batches"
    if caveats := [sentence(each) for each in found.caveats if each.code not in _SHOWN_AS_FIGURES]:
        yield _PROVISIONAL, "; ".join(caveats)


def _difference(found: Recommendation, cell: Setting) -> dict[str, Any]:
    """Return by how much a cell's metric differs from the baseline's, above 0 if it is better, and the metric."""
    difference = cell.figures[f"{found.metric.name}_difference"].value
    return {"metric": found.metric, "difference": found.metric.sign * difference}


def _larger_batch(found: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield what the largest batch yields beside the baseline, if it is larger than the chosen cell's."""
    by_id = {each.cell_id: each for each in found.shortlist}
    largest, baseline = by_id.get(found.largest_batch_cell_id or ""), by_id.get(found.baseline_cell_id or "")
    tied = {each.cell_id for each in found.rivals if each.eligible}
    if largest and baseline and largest.cell_id not in tied:
        own_s, of_baseline_s = (each.figures[found.deciding_time].value for each in (largest, baseline))
        values = {"name": largest.name, "speed": of_baseline_s / own_s, **_difference(found, largest)}
        yield "Larger batch", _line("larger_batch", values)


def safe_choice(found: Recommendation) -> str:
    """Return the safe cell with its probability, and what it costs beside the chosen cell; empty if they are one."""
    by_id = {each.cell_id: each for each in found.shortlist}
    safe, chosen = (by_id.get(cell_id or "") for cell_id in (found.safe_cell_id, found.cell_id))
    if safe is None or chosen is None:
        return ""
    names = [found.deciding_time, *(["energy"] if found.objective == "energy" else [])]
    known = [*names, *([] if found.on_cpu else ["cost"])]
    pairs = {name: [each.figures[name].value for each in (safe, chosen)] for name in known}
    units = {name: suited(safe.figures[name].unit, *values) for name, values in pairs.items()}
    costs = [
        f"{_HEADS[name]} {units[name].text(own)} instead of {units[name].text(other)}"
        for name, (own, other) in pairs.items()
        if not math.isnan(own + other)
    ]
    values = {"name": safe.name, "p_within": safe.p_within_margin, "margin": found.margin, "costs": costs}
    return _line("safe_cell", values)


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


def probability(value: float, *, short: bool = False) -> str:
    """Return `97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    over, below = ("≥99%", "≤1%") if short else ("over 99%", "below 1%")
    return over if value > 0.99 else below if value < 0.01 else f"{value:.0%}"


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
        "fact": numbers.fact,
        "g": lambda value: f"{value:g}",
        "percent": numbers.percent,
        "plain": numbers.plain,
        "probability": probability,
        "said": sentence,
        "times": numbers.times,
    }
    environment.globals |= {
        "amount": lambda unit, value, *beside: suited(unit, value, *(each for each in beside if each)).text(value),
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


def key_cells(found: Recommendation, most: int) -> TextTable | None:
    """Return a table of at most `most` cells: the chosen one, rivals, the best of other GPU counts, and the baseline.

    A cell at the reference batch that is too poor to be the baseline is in it, too.

    Among the rivals is the likeliest best one that is not eligible, if it is likelier than the chosen cell.

    None if there are none.
    """
    by_id = {each.cell_id: each for each in found.shortlist}
    rivals = [each.cell_id for each in _equal_rivals(found)]
    counts = [count.best.cell_id for count in reversed(found.gpu_counts) if count.best]
    likelier = [each.cell_id for each in found.rivals if not each.eligible and each.p_best > found.p_best]
    others = [found.safe_cell_id, found.poor_reference_cell_id, *likelier[:1], *rivals[:2], *counts]
    others = others if found.cell_id else list(by_id)
    wanted = dict.fromkeys(filter(None, (found.cell_id, *others)))
    last = found.baseline_cell_id if found.baseline_cell_id != found.cell_id else None
    shown = [by_id[each] for each in wanted if each in by_id and each != last]
    baseline = by_id.get(found.baseline_cell_id or "")
    shown = shown[: most - (baseline is not None)]
    shown += [baseline] if baseline and baseline not in shown else []
    if not shown:
        return None
    names = [f"{each.name} (baseline)" if each is baseline else each.name for each in shown]
    what = f"{gpu_word(on_cpu=found.on_cpu, one=True)}×batch rule"
    columns = _figures(found, shown, baseline)
    frame = pd.DataFrame({what: names, **{head: texts for head, texts in columns.items() if any(texts)}})
    return TextTable(name="key-cells", title="The cells in question", about=(), frame=frame)


def _figures(found: Recommendation, shown: Sequence[Setting], baseline: Setting | None) -> dict[str, list[str]]:
    """Return the columns of key cells, "" where a value is not known."""

    def values(name: str) -> list[float]:
        return [each.figures[name].value if name in each.figures else math.nan for each in shown]

    def total(name: str) -> tuple[str, list[str]]:
        unit = suited(shown[0].figures[name].unit, *values(name))
        return f"{_HEADS[name]} [{unit.name}]", [unit.number(value) for value in values(name)]

    time_s, rates = values(found.deciding_time), [each.values["lr"] for each in shown]
    of_baseline = baseline.figures[found.deciding_time].value if baseline else math.nan
    speeds = ["" if math.isnan(of_baseline / each) else f"{numbers.times(of_baseline / each)}×" for each in time_s]
    known = {"time", *({"energy"} if found.objective == "energy" else ()), *(() if found.on_cpu else {"cost"})}
    if any(map(takes_longer, shown)):
        known.add("total_time")
    return {
        "LR": [f"{rate:.3g}" if isinstance(rate, float | int) else "" for rate in rates],
        **dict(total(name) for name in _HEADS if name in known),
        "speed": speeds,
        found.metric.short_label: ["" if math.isnan(value) else f"{value:.3f}" for value in values(found.metric.name)],
        "P(within)": [_chance(each.p_within_margin) for each in shown] if of_baseline == of_baseline else [],
        "P(best)": [_chance(each.p_best) for each in shown],
        "timed": [f"{each.n_timed}/{each.n_ok}{'' if each.n_timed == each.n_ok else ' !'}" for each in shown],
    }


def _chance(value: float) -> str:
    return "-" if math.isnan(value) else probability(value, short=True)


_HEADS = {"time": "time", "total_time": "total", "energy": "energy", "cost": "training cost"}
"""Figures of key cells, and the heads of their columns. The summary's `cost` is that of a trial."""


def takes_longer(cell: Setting) -> bool:
    """Return whether start-up, compilation and evaluation make a cell's total time materially longer."""
    total, time = (cell.figures[name].value if name in cell.figures else math.nan for name in ("total_time", "time"))
    return total > (1 + MATERIAL) * time


MATERIAL = 0.1
"""Total times are shown if they exceed training times by this part."""


def step_text(step: GpuStep, found: Recommendation, *, by_batch: bool) -> str:
    """Return `not worth it: 0.71× the speed at batch 32 each`; without `by_batch` one range for all."""
    gain = ""
    if step.worth in (WORTH, COSTLY):
        gain = f"{numbers.times(step.gain)}× as fast" if found.objective == "time" else ""
        if not math.isnan(step.cost):
            gain = " at ".join(filter(None, [gain, f"{numbers.times(step.cost)}× the cost"]))
    is_accuracy = found.metric == VAL_ACCURACY
    if by_batch:
        speeds = ", ".join(_speeds(step, "loses accuracy" if is_accuracy else "misses the margin"))
    else:
        lost = [each for each in step.by_batch if each.keeps_margin is False]
        kept = [each for each in step.by_batch if each not in lost]
        speeds = f"{_over(kept or lost)} the speed" if step.by_batch else ""
        if kept and lost:
            speeds += f", {_over(lost)} {'losing accuracy' if is_accuracy else 'missing the margin'}"
    return ": ".join(filter(None, [step.worth, f"{gain} ({speeds})" if gain and speeds else gain or speeds]))


def _over(speeds: Sequence[StepSpeed]) -> str:
    return _range(min(each.lo for each in speeds), max(each.hi for each in speeds))


def _speeds(step: GpuStep, loses: str) -> Iterator[str]:
    """Yield the speed at each batch, in full for the first."""
    for each in step.by_batch:
        in_full = f"the speed at batch {each.batch}{' in all' if each.is_global else ' each'}"
        where = in_full if each is step.by_batch[0] else f"at {each.batch}"
        yield f"{_range(each.lo, each.hi)} {where}{f' ({loses})' if each.keeps_margin is False else ''}"


def _range(lo: float, hi: float) -> str:
    ends = list(dict.fromkeys((numbers.times(lo), numbers.times(hi))))
    return f"{'–'.join(ends)}×"


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
    faster = ("times as fast", ["" if math.isnan(ratio) else f"{numbers.times(ratio)}×" for ratio in ratios])
    among = f", among those whose {found.metric.word} is within the margin" if found.baseline_cell_id else ""
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
        f"{_HEADS[found.deciding_time]} [{times.name}]": [
            times.number(point.time_s) if point else "" for point in points
        ],
        found.metric.label: [
            f"{point.metric:.3f}" if point and not math.isnan(point.metric) else "" for point in points
        ],
        f"{_HEADS['cost']} [{costs.name}]": [costs.number(point.cost) if point else "" for point in points],
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
        "safe_cell_id": found.safe_cell_id,
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
