"""Answers to the questions that a table of candidates leaves open: more GPUs, the same batch on them, larger batches.

Each answer says what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.choice import SAFE, SHOWN
from orchestrator.decision.recommendation import (
    COSTLY,
    UNDECIDED,
    WORTH,
    Cell,
    GpuStep,
    LargerBatch,
    Recommendation,
    StepCell,
    StepSpeed,
)
from orchestrator.tables.candidates import MATERIAL, cells_worth_it, equal_rivals
from orchestrator.tables.sentences import filled, listed, probability
from orchestrator.text import numbers
from orchestrator.text.rows import gpus_in_words
from sweeps.status import Status

_SHORT_NAME = 20
"""The most characters of a name that an answer is compared with."""


def answers(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return what more GPUs are worth, and whether larger batches are safe, as (label, text)."""
    return [*_more_gpus(recommendation), *_larger_batch(recommendation)]


def _more_gpus(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield what more GPUs are worth: the only further number under its own name, several of them in one line."""
    steps, texts = recommendation.gpu_steps, []
    is_first = True
    for judgement in _all_judgements(recommendation):
        # Only the first cell is compared in full.
        values = {**judgement, "is_first": is_first, "is_of_several": len(steps) > 1}
        if judgement["cell"]:
            # Start-up counts for the choice; of a single step, for the first cell.
            is_told = judgement["is_chosen"] if len(steps) > 1 else is_first
            values["has_start_up"] = (
                is_told and judgement["by_time"] and not math.isnan(judgement["gain_with_start_up"])
            )
        step, text = judgement["step"], filled("worth_of_gpus", values)
        # A gain, or the lack of one, names the number of GPUs that it is compared with: `2→8`.
        is_compared = judgement["cell"] is not None or (judgement["worth"] == UNDECIDED and not judgement["why_none"])
        steps_from = f"{step.best_fewer:g}→" if is_compared else ""
        texts.append((steps_from, f"{step.gpus:g}", text))
        is_first &= judgement["cell"] is None
    if len(steps) == 1:
        # What no cell is compared with needs no basis.
        basis = f"against {_fewer(steps[0], recommendation)}: " if not is_first else ""
        yield steps[0].name, basis + "; ".join(text for *_, text in texts)
    elif steps:
        # Numbers of GPUs with the same answer stand together: `4 and 8 not worth it`.
        groups = groupby(texts, key=itemgetter(0, 2))
        answers = [f"{fewer}{listed([gpus for _, gpus, _ in group])} {text}" for (fewer, text), group in groups]
        # `More processes` is wider than the terminal's labels.
        yield "Processes" if recommendation.on_cpu else "More GPUs", "; ".join(answers)


def _fewer(step: GpuStep, recommendation: Recommendation) -> str:
    """Return the best cell with fewer GPUs than a step's, in words if its name is long."""
    if step.name_of_fewer and len(step.name_of_fewer) <= _SHORT_NAME:
        return step.name_of_fewer
    return f"the best on {gpus_in_words(step.best_fewer, on_cpu=recommendation.on_cpu)}"


def _all_judgements(recommendation: Recommendation) -> Iterator[dict[str, Any]]:
    """Yield the values of a sentence for each cell that further GPUs may be used with; for none if there is no gain."""
    for step in recommendation.gpu_steps:
        why_none = next((count.why_none for count in recommendation.gpu_counts if count.gpus == step.gpus), None)
        values = {"step": step, "metric": recommendation.terms.metric, "why_none": why_none}
        cells = cells_worth_it(step, recommendation)
        if not cells:
            yield {**values, "worth": step.worth, "cell": None}
        for cell in cells:
            yield {
                **values,
                "worth": COSTLY if cell.is_costly else WORTH,
                "cell": cell,
                "name": _name_beside(step, cell, recommendation, is_only=len(cells) == 1),
                "is_chosen": cell.cell_id == recommendation.cell_id,
                "is_open": cell.p_within_margin < SAFE,
                "by_time": recommendation.terms.report.objective == "time",
                **_beside_the_step(step, cell, recommendation),
            }


def _name_beside(step: GpuStep, cell: StepCell, recommendation: Recommendation, *, is_only: bool) -> str:
    """Return the name of a cell of a step; empty for the choice, and for the only candidate with these GPUs."""
    if cell.cell_id == recommendation.cell_id:
        return ""
    safe = recommendation.cell(recommendation.safe_cell_id)
    others = (recommendation.chosen, recommendation.baseline, safe, *equal_rivals(recommendation))
    is_only &= all(other is None or other.values["gpus"] != step.gpus for other in others)
    return "" if is_only else cell.name


def _beside_the_step(step: GpuStep, step_cell: StepCell, recommendation: Recommendation) -> dict[str, Any]:
    """Return a step's gain and cost with start-up, and those of its cell over a baseline with other GPUs."""
    cell, baseline = recommendation.cell(step_cell.cell_id), recommendation.baseline
    fewer = next((cell for cell in recommendation.shortlist if cell.name == step.name_of_fewer), None)
    of_baseline = math.nan if baseline is None else baseline.values["gpus"]
    # The headline compares the choice with the baseline, which the step need not begin at.
    is_other_step = step_cell.cell_id == recommendation.cell_id and of_baseline not in (step.best_fewer, step.gpus)
    gain, cost = ratio_with_start_up(recommendation, "time", fewer, cell), _quotient(cell, fewer, "total_cost")
    return {
        "gain_with_start_up": gain,
        "cost_with_start_up": cost,
        "is_costly_with_start_up": cost > gain and not recommendation.on_cpu,
        "gpus_of_baseline": of_baseline if is_other_step and of_baseline < step.gpus else math.nan,
        "gain_over_baseline": _quotient(baseline, cell, recommendation.deciding_time),
        "cost_over_baseline": _quotient(cell, baseline, "cost"),
    }


def ratio_with_start_up(recommendation: Recommendation, figure: str, above: Cell | None, below: Cell | None) -> float:
    """Return the ratio of two cells' times or costs with start-up; NaN if start-up changes it by less than MATERIAL.

    NaN also if total times decide, because then all figures have the start-up.
    """
    without, whole = (_quotient(above, below, name) for name in (figure, f"total_{figure}"))
    is_material = abs(math.log(whole / without)) >= math.log1p(MATERIAL) if whole > 0 and without > 0 else False
    return whole if is_material and recommendation.deciding_time == "time" else math.nan


def _quotient(above: Cell | None, below: Cell | None, figure: str) -> float:
    """Return the ratio of a figure of two cells; NaN if it is not known."""
    if above is None or below is None or not below.value(figure):
        return math.nan
    return above.value(figure) / below.value(figure)


def by_batch(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return the speed-up of the only step of the GPU axis at each batch: `0.71× the speed of 1 process at 32 each`."""
    if len(recommendation.gpu_steps) != 1 or not recommendation.gpu_steps[0].by_batch:
        return []
    (step,) = recommendation.gpu_steps
    fewer = gpus_in_words(step.fewer, on_cpu=recommendation.on_cpu)
    is_accuracy = recommendation.terms.metric == VAL_ACCURACY
    speeds = []
    for place, speed in enumerate(step.by_batch):
        where = f"at {speed.batch:,}"
        # In full for the first batch only.
        if place == 0:
            where = f"the speed of {fewer} at batch {speed.batch:,} {'in all' if speed.is_global else 'each'}"
        # Ends that look alike are one number.
        ends = dict.fromkeys((numbers.times(speed.lo), numbers.times(speed.hi)))
        speeds.append(f"{'–'.join(ends)}× {where}{_loss(speed, is_accuracy=is_accuracy)}")
    return [("Same batch", ", ".join(speeds))]


def _loss(speed: StepSpeed, *, is_accuracy: bool) -> str:
    """Return what a batch loses: a loss is stated only if it is shown."""
    if speed.keeps_margin is not False:
        return ""
    if speed.p_within < SHOWN:
        return " (loses accuracy)" if is_accuracy else " (misses the margin)"
    return " (may lose accuracy)" if is_accuracy else " (may miss the margin)"


def _larger_batch(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield whether larger global batches than the chosen cell's keep the margin."""
    batches, label = recommendation.larger_batches, "Larger batch"
    if recommendation.chosen is None or recommendation.baseline is None:
        return
    if not batches:
        yield label, f"unknown, {recommendation.chosen.values['global_batch_size']:,} in all is the largest tried"
        return
    safe = list(takewhile(lambda batch: batch.p_within_margin >= SAFE, batches))
    if safe:
        best = safe[-1]
        verdict = "safe" if len(safe) == len(batches) else f"safe up to {best.global_batch_size:,}"
        if recommendation.terms.report.objective == "time" and not math.isnan(best.gain.value):
            verdict += f" with {best.name} ({numbers.times(best.gain.value)}× as fast as the choice)"
    else:
        # The next larger one is the likeliest.
        verdict = "not safe" if batches[0].p_within_margin < SHOWN else "doubtful"
    texts = []
    for chance, group in groupby(batches, key=_chance_of_batch):
        # Most larger batches have no chance, which is said once.
        first, *others = [f"{batch.global_batch_size:,}" for batch in group]
        texts.append(f"{chance} {'from' if others else 'at'} {first}")
    texts[0] += " in all"
    if math.isnan(batches[0].p_within_margin):
        yield label, ", ".join(texts)
        return
    yield label, f"{verdict}: {recommendation.terms.metric.word} holds {', '.join(texts)}"


def _chance_of_batch(batch: LargerBatch) -> str:
    if batch.status != Status.OK.value:
        return _ENDS.get(batch.status, batch.status)
    return "unknown" if math.isnan(batch.p_within_margin) else probability(batch.p_within_margin, short=True)


_ENDS = {Status.OOM.value: "out of memory"}
"""Words for statuses, where others are their own."""
