"""Answers to the questions that a table of candidates leaves open: more GPUs, the same batch on them, larger batches.

Each answer says what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby, takewhile
from typing import Any

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.recommendation import (
    NOT_WORTH,
    WORTH,
    Cell,
    GpuStep,
    LargerBatch,
    Recommendation,
    StepSpeed,
)
from orchestrator.decision.thresholds import SAFE, SHOWN, TIE
from orchestrator.tables.candidates import name_beside, quotient, start_up_matters, used_now
from orchestrator.tables.recommendation_sentences import filled, probability
from orchestrator.text import numbers
from orchestrator.text.cell_labels import gpu_word, gpus_in_words
from orchestrator.text.numbers import suited
from sweeps.status import Status

_TOLD_FROM = 1.2
"""A step that pays in trainings at least so many times as long is called costly; start-ups differ by less."""


def answers(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return what more GPUs are worth, and whether larger batches are safe, as (label, text)."""
    return [*_more_gpus(recommendation), *_larger_batch(recommendation)]


def _more_gpus(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield what each number of GPUs is worth beside the best cell with fewer that surely keeps its accuracy."""
    steps, told = recommendation.gpu_steps, set[str]()
    # Numbers of GPUs without a gain share the figures of the best of them.
    for _, group in groupby(steps, key=lambda step: (step.best_fewer, None if _has_no_gain(step) else step.gpus)):
        alike = list(group)
        best = max(alike, key=lambda step: step.cells[0].gain.value if step.cells else 0.0)
        # Without a cell with fewer, the number before stands for it.
        fewer = best.fewer if math.isnan(best.best_fewer) else best.best_fewer
        last = "" if len(alike) == 1 else f"–{alike[-1].gpus:g}"
        label = f"{fewer:g}→{alike[0].gpus:g}{last} {gpu_word(on_cpu=recommendation.on_cpu)}"
        values = {"is_of_several": len(alike) > 1, "by_cost": recommendation.terms.report.objective == "cost"}
        texts = (filled("worth_of_gpus", {**values, **own}) for own in _judgements(best, recommendation, told))
        yield best.name if len(steps) == 1 else label, ", else ".join(texts)


def _has_no_gain(step: GpuStep) -> bool:
    return bool(step.cells) and all(cell.worth == NOT_WORTH for cell in step.cells)


def _judgements(step: GpuStep, recommendation: Recommendation, told: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the values of a sentence for each cell that is compared, or one without a cell; add to the names told."""
    fewer = next((cell for cell in recommendation.shortlist if cell.name == step.name_of_fewer), None)
    why_none = next((count.why_none for count in recommendation.gpu_counts if count.gpus == step.gpus), None)
    values = {"metric": recommendation.terms.metric, "why_none": why_none}
    if not step.cells or fewer is None:
        yield {**values, "cell": None, "worth": step.worth}
        return
    # Without a gain, the best cell shows what there is instead.
    for step_cell in step.cells[:1] if _has_no_gain(step) else step.cells:
        cell = recommendation.cell(step_cell.cell_id)
        name = name_beside(recommendation.chosen, cell) if cell else step_cell.name
        # The headline has the chosen cell, and further steps begin at a cell that was named.
        of = "" if cell == recommendation.chosen and len(step.cells) == 1 else name
        of = of if step.name_of_fewer in told else _from_to(name_beside(recommendation.chosen, fewer), name)
        gain, cost = quotient(fewer, cell, "total_time"), quotient(cell, fewer, "total_cost")
        is_worth, is_dearer = step_cell.worth == WORTH, cost > (1 + TIE) * gain
        has_start_up = not recommendation.on_cpu and start_up_matters(recommendation, filter(None, (fewer, cell)))
        yield {
            **values,
            "cell": step_cell,
            "worth": step_cell.worth,
            "is_first": not told,
            "is_second": step_cell is not step.cells[0],
            "is_open": step_cell.p_within_margin < SAFE,
            "speed": quotient(fewer, cell, recommendation.deciding_time),
            "of": of,
            "has_start_up": has_start_up,
            # Start-up takes as long with more GPUs, so that the bill may grow by more than the speed.
            "pays_from": _needed(fewer, cell, gain * cost) if is_worth and has_start_up and is_dearer else "",
            "here": suited("s", fewer.value("time")).text(fewer.value("time")),
            **_beside(step, cell, recommendation),
        }
        told |= {step.name_of_fewer, step_cell.name}


def _needed(fewer: Cell, cell: Cell | None, gpus: float) -> str:
    """Return the least training time with fewer GPUs from which speed grows by as much as cost; empty if unknown.

    `gpus`: the GPUs of the cell, as a multiple. Start-up stays as it is.
    """
    if cell is None:
        return ""
    # With n times the GPUs the cost grows by n / speed-up, which is the speed-up itself at √n.
    needed = math.sqrt(gpus)
    train_s, more_train_s = fewer.value("time"), cell.value("time")
    start_s, more_start_s = fewer.value("total_time") - train_s, cell.value("total_time") - more_train_s
    least_s = train_s * (needed * more_start_s - start_s) / (train_s - needed * more_train_s)
    # An infinite time is that of a damaged journal.
    if not _TOLD_FROM * train_s < least_s < math.inf:
        return ""
    unit = suited("s", least_s)
    # Two digits, rounded up: a shorter training does not pay.
    digit = 10.0 ** (math.floor(math.log10(least_s / unit.size)) - 1)
    return f"{math.ceil(least_s / unit.size / digit) * digit:,.3g} {unit.name}"


def _from_to(fewer: str, name: str) -> str:
    """Return `1×128 none → 2×32 sqrt`; `1×128→2×32 sqrt` for cells that differ in GPUs and batch alone."""
    (size, _, of_fewer), (_, _, of_name) = fewer.partition(" "), name.partition(" ")
    return f"{size}→{name}" if of_fewer == of_name else f"{fewer} → {name}"


def _beside(step: GpuStep, cell: Cell | None, recommendation: Recommendation) -> dict[str, Any]:
    """Return the best cell of the previous number of GPUs if the step begins at fewer, and the speed relative to it."""
    # That cell may lose accuracy, and is no measure; but those who use so many GPUs ask.
    ids = {count.gpus: count.cell_id for count in recommendation.gpu_counts}
    before = recommendation.cell(ids.get(step.fewer))
    speed = quotient(before, cell, recommendation.deciding_time)
    if before is None or not (step.best_fewer < step.fewer and speed < 1):
        return {"beside": ""}
    return {"beside": name_beside(recommendation.chosen, before), "beside_speed": speed}


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
            where = f"the speed of {fewer} at batch {speed.batch:,} {'in total' if speed.is_global else 'each'}"
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
    """Yield whether larger global batches than that of the cell to use now keep the margin."""
    batches, label = recommendation.larger_batches, "Larger batch"
    if recommendation.chosen is None or recommendation.baseline is None:
        return
    cell = used_now(recommendation) or recommendation.chosen
    of_used = f"{cell.values['global_batch_size']:,} in total"
    if not batches:
        yield label, f"unknown, {of_used} is the largest tried"
        return
    safe = list(takewhile(lambda batch: batch.p_within_margin >= SAFE, batches))
    chances = []
    for chance, group in groupby(batches[len(safe) :], key=_chance_of_batch):
        # Most larger batches have no chance, which is said once.
        first, *further = group
        place = f"{'from' if further else 'at'} {first.global_batch_size:,}"
        if first.status == Status.OOM.value:
            # Memory limits the batch of a GPU: `8×512`.
            place = f"at {first.name.split()[0]}"
        elif recommendation.gpu_counts and not further:
            # Other cells with the same global batch are less likely to keep the margin.
            place += f" ({first.name.split()[0]})"
        chances.append(f"{chance} {place}")
    if safe:
        best = safe[-1]
        is_faster = recommendation.terms.report.objective == "time" and not math.isnan(best.gain.value)
        gain = f", {numbers.times(best.gain.value)}× the speed" if is_faster else ""
        chances.insert(0, f"safe up to {best.global_batch_size:,} in total ({best.name}{gain})")
        yield label, ", ".join(chances)
        return
    if not math.isnan(batches[0].p_within_margin):
        chances[0] = f"holds {chances[0]}"
    elif batches[0].status == Status.OK.value:
        chances[0] = f"{recommendation.terms.metric.word} {chances[0]}"
    if cell is recommendation.baseline or cell.p_within_margin >= SAFE:
        of_gpu = (
            f"{numbers.fact(cell.values['device_batch_size'])} per {gpu_word(on_cpu=recommendation.on_cpu, one=True)}"
        )
        is_memory = batches[0].status == Status.OOM.value
        chances.insert(0, f"at most {of_gpu} ({of_used})" if is_memory else f"safe only up to {of_used}")
    else:
        chances[0] += " in total"
    yield label, ", ".join(chances)


def _chance_of_batch(batch: LargerBatch) -> str:
    if batch.status != Status.OK.value:
        return _ENDS.get(batch.status, batch.status)
    if math.isnan(batch.p_within_margin):
        return "unknown"
    # Differences between batches that lose accuracy do not matter.
    return f"≤{SHOWN:.0%}" if batch.p_within_margin < SHOWN else probability(batch.p_within_margin, short=True)


_ENDS = {Status.OOM.value: "out of memory"}
"""Words for statuses, where others are their own."""
