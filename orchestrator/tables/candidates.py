"""The table of candidates: the cells in question, ranked by the objective, and what each step of the GPU axis is worth.

The terminal, recommendation.md and the report show this one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

import pandas as pd

from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.decision.choice import SAFE, SHOWN
from orchestrator.decision.recommendation import (
    COSTLY,
    TIED,
    UNDECIDED,
    WORTH,
    Cell,
    Figure,
    GpuStep,
    LargerBatch,
    Recommendation,
    StepCell,
    StepSpeed,
)
from orchestrator.statistics import margins
from orchestrator.tables.sentences import filled, listed, probability
from orchestrator.text import numbers
from orchestrator.text.numbers import Unit, suited
from orchestrator.text.rows import WORDS, cell_label, gpu_word, gpus_in_words, markdown, short_names
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

MOST_CANDIDATES = 12
"""The most rows in files and in the report."""

MATERIAL = 0.1
"""Total times are shown if they exceed training times by this part."""

P_BEST = "P(near best)"
"""The title of the probability to be the best, or within TIE of the best, of the cells that keep the margin.

Several cells may be near the best, so that a column may add up to more than 100%."""

_MOST_RIVALS = 4
"""The most rows of cells that tie with the chosen one, or are likelier."""

_MOST_OF_AXES = 24
"""The most characters of the columns of further axes; the other axes stay in the names."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table of candidates, with a text for each row; empty means not known."""

    name: str
    title: str
    texts: Sequence[str]
    rank: int = 0
    """A narrow table leaves out the columns of the highest rank first, and never those of rank 0."""
    bars: Sequence[Figure] = ()
    """For each row a figure on a scale from 0 to 1; empty if the column has none."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The cells in question: the chosen one, then the others, the best by the objective first."""

    cells: Sequence[Cell]
    roles: Sequence[str]
    """`baseline` and the like, or empty."""
    chosen: int | None
    """The row of the chosen cell; None without one."""
    heading: str
    """The title of the names."""
    names: Sequence[str]
    """The cells' names without axes that have a column, or in which these cells do not differ."""
    columns: Sequence[Column]

    @staticmethod
    def of(recommendation: Recommendation, most: int = MOST_CANDIDATES) -> Candidates | None:
        """Return at most `most` candidates; None if there are none.

        If there are more, these are kept first: the chosen cell, the baseline, the safe choice, cells that further GPUs
        are worth it with, the cheapest cell, a reference-batch cell that was rejected as baseline, rivals, the
        runner-up, the best cell of each number of GPUs.
        """
        roles = _roles(recommendation)
        wanted = [cell for cell_id in roles if (cell := recommendation.cell(cell_id))][:most]
        if not wanted:
            return None
        objective = recommendation.terms.report.objective
        figure = recommendation.deciding_time if objective == "time" else objective

        def place(cell: Cell) -> tuple[bool, bool, float]:
            # Cells without a figure come last.
            return cell.cell_id != recommendation.cell_id, math.isnan(cell.value(figure)), cell.value(figure)

        cells = sorted(wanted, key=place)
        axes, others = _of_axes(cells)
        columns = [column for column in _columns(recommendation, cells) if {*column.texts} - {"", "-"}]
        ids = [cell.cell_id for cell in cells]
        return Candidates(
            cells=cells,
            roles=[roles[cell.cell_id] for cell in cells],
            chosen=ids.index(recommendation.cell_id) if recommendation.cell_id in ids else None,
            heading=f"{gpu_word(on_cpu=recommendation.on_cpu, one=True)}×batch rule",
            names=[cell_label({**cell.values, **cell.further}, others) for cell in cells],
            columns=[*axes, *columns],
        )

    @property
    def labels(self) -> list[str]:
        """The names of the cells with their roles: `1×32 none (baseline)`."""
        return [f"{name} ({role})" if role else name for name, role in zip(self.names, self.roles, strict=True)]

    def markdown(self) -> list[str]:
        """Return the table as lines of Markdown, the chosen cell in bold."""
        names = self.labels
        if self.chosen is not None:
            names[self.chosen] = f"**{names[self.chosen]}**"
        frame = pd.DataFrame({self.heading: names, **{column.title: column.texts for column in self.columns}})
        return ["", markdown(frame), ""]


def _roles(recommendation: Recommendation) -> dict[str | None, str]:
    """Return the candidates, the most valuable to the reader first, each with its role in words or with none."""
    if recommendation.cell_id is None:
        baseline = recommendation.baseline_cell_id
        return {baseline: "baseline"} | {
            cell.cell_id: "" for cell in recommendation.shortlist if cell.cell_id != baseline
        }
    likelier = [rival for rival in recommendation.rivals if rival.p_best > recommendation.p_best]
    rivals = [*[rival for rival in likelier if not rival.eligible][:1], *equal_rivals(recommendation)[:_MOST_RIVALS]]
    wanted = [
        (recommendation.cell_id, ""),
        (recommendation.baseline_cell_id, "baseline"),
        (recommendation.safe_cell_id, "safe"),
        *[(judgement["cell"].cell_id, "") for judgement in _all_judgements(recommendation) if judgement["cell"]],
        (recommendation.cheapest_cell_id, "cheapest"),
        (recommendation.poor_reference_cell_id, "reference batch"),
        *[(rival.cell_id, _role_of_rival(rival)) for rival in rivals],
        *([(runner_up.values["cell_id"], "")] if (runner_up := recommendation.runner_up) else []),
        *[(count.cell_id, "") for count in reversed(recommendation.gpu_counts)],
    ]
    roles: dict[str | None, str] = {}
    for cell_id, role in wanted:
        if cell_id is not None:
            roles[cell_id] = ", ".join(filter(None, [roles.get(cell_id, ""), role]))
    return roles


def _role_of_rival(rival: Cell) -> str:
    """Return `tied, less accurate`: what a rival is, and why it is not the choice."""
    kind = "tied" if rival.tied else "rival"
    return f"{kind}, {filled('short_of_choice', rival.why_not)}" if rival.why_not else kind


def _of_axes(cells: Sequence[Cell]) -> tuple[list[Column], list[str]]:
    """Return a column for each further axis in which these cells differ, and the axes that are too wide for one."""
    columns: list[Column] = []
    others: list[str] = []
    room = _MOST_OF_AXES
    differing = [axis for axis in cells[0].further if len({cell.further[axis] for cell in cells}) > 1]
    for axis, title in short_names(differing).items():
        texts = [cell.further[axis] for cell in cells]
        title = WORDS.get(axis, title)
        width = max(map(len, [*title.split(), *texts]))
        if width > room:
            others.append(axis)
            continue
        room -= width
        # The learning rate, which has a column, tells the multiplier.
        has_rates = all(isinstance(cell.values["lr"], float | int) for cell in cells)
        rank = 5 if axis == "lr_multiplier" and has_rates else 0
        columns.append(Column(name=f"axis:{axis}", title=title, texts=texts, rank=rank))
    return columns, others


def equal_rivals(recommendation: Recommendation) -> list[Cell]:
    """Return the eligible rivals that are likelier the best than the chosen cell or, in a tie, as likely."""
    # In a tie, rivals with a somewhat lower probability are as good a choice.
    tie = recommendation.verdict == TIED
    eligible = [rival for rival in recommendation.rivals if rival.eligible]
    return [rival for rival in eligible if rival.p_best > recommendation.p_best or (tie and rival.tied)]


def _columns(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Column]:
    """Yield the columns of these cells; some of them may have no text."""
    rates = [cell.values["lr"] for cell in cells]
    yield Column(
        name="lr", title="LR", texts=[f"{rate:.3g}" if isinstance(rate, float | int) else "" for rate in rates]
    )
    yield from _times(recommendation, cells)
    yield from _speeds(recommendation, cells)
    yield from _metric(recommendation, cells)
    if not recommendation.on_cpu:
        yield _amount("cost", "cost", recommendation, cells, rank=3)
    is_energy = recommendation.terms.report.objective == "energy"
    yield _amount("energy", "energy", recommendation, cells, rank=1 if is_energy else 9)
    if recommendation.baseline:
        title = f"P(within {recommendation.terms.report.margin:g})"
        yield Column(name="p_within", title=title, texts=[_chance(cell.p_within_margin) for cell in cells])
    yield Column(name="p_best", title=P_BEST, texts=[_chance(cell.p_best) for cell in cells], rank=1)
    texts = [f"{cell.n_timed} of {cell.n_ok}" for cell in cells]
    yield Column(
        name="timed",
        title="valid timings",
        texts=texts,
        rank=8 if all(cell.n_timed == cell.n_ok for cell in cells) else 2,
    )


def _times(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Column]:
    """Yield the time that decides with its interval, and the other time if start-up and evaluation matter."""
    titles = {"time": "time", "total_time": "with start-up"}
    time = recommendation.deciding_time
    other = "total_time" if time == "time" else "time"
    has_other = any(cell.value("total_time") > (1 + MATERIAL) * cell.value("time") for cell in cells)
    # One unit, so that the columns can be compared.
    unit = suited("s", *(cell.value(name) for cell in cells for name in ([time, other] if has_other else [time])))
    figures = [cell.figures[time] for cell in cells]
    texts = [unit.number(figure.value) for figure in figures]
    yield Column(name="time", title=f"{titles[time]} [{unit.name}]", texts=texts, rank=1)
    ends = [f"{unit.number(figure.lo)}–{unit.number(figure.hi)}" for figure in figures]
    texts = ["" if math.isnan(figure.lo) else end for figure, end in zip(figures, ends, strict=True)]
    yield Column(name="interval", title="95% interval", texts=texts, rank=7)
    if has_other:
        texts = [unit.number(cell.value(other)) for cell in cells]
        yield Column(name=other, title=f"{titles[other]} [{unit.name}]", texts=texts, rank=8)


def _amount(figure: str, title: str, recommendation: Recommendation, cells: Sequence[Cell], rank: int) -> Column:
    unit = _unit(figure, recommendation)
    texts = [unit.number(cell.value(figure)) for cell in cells]
    return Column(name=figure, title=f"{title} [{unit.name}]", texts=texts, rank=rank)


def _unit(figure: str, recommendation: Recommendation) -> Unit:
    """Return the unit of a figure, which does not depend on the rows that are shown."""
    values = [cell.value(figure) for cell in recommendation.shortlist]
    return suited(recommendation.shortlist[0].figures[figure].unit, *values)


def _speeds(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Column]:
    """Yield the speed-up over the baseline, and its factors if both the GPUs and the batch have one."""
    time, baseline = recommendation.deciding_time, recommendation.baseline
    # By the time that decides, so that all forms agree with the sentence; NaN unless both have a valid timing.
    of_baseline = math.nan if baseline is None or baseline.timing_valid is False else baseline.value(time)
    speeds = [math.nan if cell.timing_valid is False else of_baseline / cell.value(time) for cell in cells]
    most = max((speed for speed in speeds if not math.isnan(speed)), default=math.nan)
    by_time = recommendation.terms.report.objective == "time"
    # By another objective, this figure is that of the energy or the cost.
    unknown = Figure(value=math.nan, unit="1")
    ends = [cell.figures.get("speedup", unknown) if by_time else unknown for cell in cells]
    bars = [
        Figure(value=speed / most, lo=end.lo / most, hi=end.hi / most, unit="1")
        for speed, end in zip(speeds, ends, strict=True)
    ]
    yield Column(name="speedup", title="speed-up", texts=[_ratio(speed) for speed in speeds], rank=2, bars=bars)
    of_gpus = [_ratio(cell.value("speedup_of_gpus")) for cell in cells]
    of_batch = [_ratio(cell.value("speedup_of_batch")) for cell in cells]
    if all({*texts} - {"", _ratio(1.0)} for texts in (of_gpus, of_batch)):
        # If no other axis varies, what more GPUs do not explain of a speed-up is the batch's.
        rest = "the rest" if set(cells[0].axes) - set(STANDARD_AXES) else "batch"
        yield Column(name="of_gpus", title=f"gain of {gpu_word(on_cpu=recommendation.on_cpu)}", texts=of_gpus, rank=6)
        yield Column(name="of_batch", title=f"gain of {rest}", texts=of_batch, rank=6)


def _metric(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Column]:
    """Yield the metric of choice, and its difference from the baseline's with the allowed loss in its title."""
    metric, margin = recommendation.terms.metric, recommendation.terms.report.margin
    values = [cell.value(metric.name) for cell in cells]
    # With decimals alone, a small loss would be 0.
    forms = (".3g" if 0 < abs(value) < 0.01 else f".{_decimals(margin)}f" for value in values)
    texts = ["" if math.isnan(value) else f"{value:{form}}" for value, form in zip(values, forms, strict=True)]
    yield Column(name="metric", title=metric.short_label, texts=texts, rank=4)
    figures = [cell.figures.get(f"{metric.name}_difference") for cell in cells]
    if recommendation.baseline is None or not all(figures):
        return
    differences = [figure for figure in figures if figure is not None]
    # The better end of a bar is on the right, whichever direction of the metric is better.
    ends = [sorted((metric.sign * figure.lo, metric.sign * figure.hi)) for figure in differences]
    bars = [
        Figure(value=_place(metric.sign * figure.value, margin), lo=_place(lo, margin), hi=_place(hi, margin), unit="1")
        for figure, (lo, hi) in zip(differences, ends, strict=True)
    ]
    is_baseline = [cell.cell_id == recommendation.baseline_cell_id for cell in cells]
    texts = [
        "-" if skip else _difference(cell, figure.value, margin, metric)
        for cell, figure, skip in zip(cells, differences, is_baseline, strict=True)
    ]
    allowed = f"{'-' if metric.higher_is_better else '+'}{margin:g}"
    title = f"{metric.word} change ({allowed} allowed)"
    yield Column(name="difference", title=title, texts=texts, rank=6, bars=bars)


def _difference(cell: Cell, value: float, margin: float, metric: Metric) -> str:
    """Return `-0.006`, with the likely value that P(within) is of, where the margin is between the two."""
    if math.isnan(value):
        return ""
    pooled, p_within = cell.value(f"{metric.name}_difference_pooled"), cell.p_within_margin
    is_odd = not math.isnan(p_within) and (margins.excess(-metric.sign * value, margin) <= 0) != (p_within >= 0.5)
    form = f"+.{_decimals(margin)}f"
    return f"{value:{form}} (likely {pooled:{form}})" if is_odd else f"{value:{form}}"


def _decimals(margin: float) -> int:
    """Return how many decimals accuracies and their differences need beside this margin."""
    return 3 if margin >= 0.01 else 4


def _place(difference: float, margin: float) -> float:
    """Return the place of a difference on a bar that ends margins.BAR below and above the baseline."""
    return 0.5 + difference / (2 * margins.BAR * margin) if margin else math.nan


def _chance(value: float) -> str:
    return "-" if math.isnan(value) else probability(value, short=True)


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{numbers.times(value)}×"


def answers(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return answers to the questions that a table of candidates leaves open, as (label, text)."""
    return [*_more_gpus(recommendation), *_larger_batch(recommendation), *_cost(recommendation)]


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
        yield steps[0].name, "; ".join(text for *_, text in texts)
    elif steps:
        # Numbers of GPUs with the same answer stand together: `4 and 8 not worth it`.
        groups = groupby(texts, key=itemgetter(0, 2))
        answers = [f"{fewer}{listed([gpus for _, gpus, _ in group])} {text}" for (fewer, text), group in groups]
        # `More processes` is wider than the terminal's labels.
        yield "Processes" if recommendation.on_cpu else "More GPUs", "; ".join(answers)


def _all_judgements(recommendation: Recommendation) -> Iterator[dict[str, Any]]:
    """Yield the values of a sentence for each cell that further GPUs may be used with; for none if there is no gain."""
    for step in recommendation.gpu_steps:
        why_none = next((count.why_none for count in recommendation.gpu_counts if count.gpus == step.gpus), None)
        # Without a cell to use there is no gain.
        is_gain = step.worth in (WORTH, COSTLY) and not why_none
        cells = [cell for cell in step.cells if is_gain or cell is step.if_held]
        if len(recommendation.gpu_steps) > 1:
            # One cell for each number of GPUs: the choice, else the one that surely keeps its accuracy.
            cells = [cell for cell in cells if cell.cell_id == recommendation.cell_id] or cells[-1:]
        values = {"step": step, "metric": recommendation.terms.metric, "why_none": why_none}
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
    """Return the role or the name of a cell of a step; empty for the choice, and for the only row with these GPUs."""
    if cell.cell_id == recommendation.cell_id:
        return ""
    if cell.cell_id == recommendation.safe_cell_id:
        return "the safe one"
    if cell.cell_id == recommendation.baseline_cell_id:
        return "the baseline"
    safe = recommendation.cell(recommendation.safe_cell_id)
    rows = (recommendation.chosen, recommendation.baseline, safe, *equal_rivals(recommendation))
    is_only &= all(row is None or row.values["gpus"] != step.gpus for row in rows)
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
    return [("By batch", ", ".join(speeds))]


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
    yield label, f"{verdict}: P(within {recommendation.terms.report.margin:g}) {', '.join(texts)}"


def _chance_of_batch(batch: LargerBatch) -> str:
    if batch.status != Status.OK.value:
        return _ENDS.get(batch.status, batch.status)
    return "unknown" if math.isnan(batch.p_within_margin) else probability(batch.p_within_margin, short=True)


_ENDS = {Status.OOM.value: "out of memory"}
"""Words for statuses, where others are their own."""


def _cost(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield the cost of the chosen and of the cheapest cell, each also with start-up, which is billed."""
    chosen, cheapest = recommendation.chosen, recommendation.cell(recommendation.cheapest_cell_id)
    if chosen is None or math.isnan(chosen.value("cost")):
        return
    unit = _unit("cost", recommendation)
    own, whole = chosen.value("cost"), chosen.value("total_cost")
    is_material = whole > (1 + MATERIAL) * own
    text = unit.text(own) + (", the cheapest" if cheapest is None else "")
    text += f" ({unit.number(whole)} with start-up)" if is_material else ""
    if cheapest:
        text += f"; cheapest: {unit.number(cheapest.value('cost'))}"
        text += f" ({unit.number(cheapest.value('total_cost'))})" if is_material else ""
    yield "One training", text
