"""The table of candidates: the cells in question, ranked by the objective, and what each step of the GPU axis is worth.

The terminal, recommendation.md and the report show this one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.choice import SHOWN
from orchestrator.decision.recommendation import (
    COSTLY,
    NOT_WORTH,
    TIED,
    UNDECIDED,
    WORTH,
    GpuStep,
    Recommendation,
    Setting,
    StepSpeed,
)
from orchestrator.tables.sentences import probability, sentence
from orchestrator.text import numbers
from orchestrator.text.numbers import suited
from orchestrator.text.rows import gpu_word, markdown
from sweeps.sweep import STANDARD_AXES

MOST_CANDIDATES = 12
"""The most rows in files and in the report."""

MATERIAL = 0.1
"""Total times are shown if they exceed training times by this part."""

SHOWN_MARGINS = 3.0
"""A bar of the metric ends this many margins from the baseline."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A mean and its interval on a scale from 0 to 1; NaN means not known."""

    value: float
    lo: float
    hi: float


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table of candidates, with a text for each row; empty means not known."""

    name: str
    title: str
    texts: Sequence[str]
    rank: int = 0
    """A narrow table leaves out the columns of the highest rank first, and never those of rank 0."""
    bars: Sequence[Bar] = ()
    """One for each row; empty if the column has none."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The cells in question, the best by the objective first."""

    cells: Sequence[Setting]
    roles: Sequence[str]
    """`baseline` and the like, or empty."""
    chosen: int | None
    """The row of the chosen cell; None without one."""
    heading: str
    """The title of the labels."""
    columns: Sequence[Column]

    @staticmethod
    def of(recommendation: Recommendation, most: int = MOST_CANDIDATES) -> Candidates | None:
        """Return at most `most` candidates; None if there are none.

        The chosen cell and the baseline come before the safe choice, a reference-batch cell that was rejected as
        baseline, rivals, the best cell of each number of GPUs, and the largest batch.
        """
        roles = _roles(recommendation)
        wanted = [cell for cell_id in roles if (cell := recommendation.setting(cell_id))][:most]
        if not wanted:
            return None
        cells = sorted(wanted, key=lambda cell: _objective(cell, recommendation))
        columns = [column for column in _columns(recommendation, cells) if {*column.texts} - {"", "-"}]
        ids = [cell.cell_id for cell in cells]
        return Candidates(
            cells=cells,
            roles=[roles[cell.cell_id] for cell in cells],
            chosen=ids.index(recommendation.cell_id) if recommendation.cell_id in ids else None,
            heading=f"{gpu_word(on_cpu=recommendation.on_cpu, one=True)}×batch rule",
            columns=columns,
        )

    @property
    def labels(self) -> list[str]:
        """The names of the cells with their roles: `1×32 none (baseline)`."""
        names = zip(self.cells, self.roles, strict=True)
        return [f"{cell.name} ({role})" if role else cell.name for cell, role in names]

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
    wanted = [
        (recommendation.cell_id, ""),
        (recommendation.baseline_cell_id, "baseline"),
        (recommendation.safe_cell_id, "safe choice"),
        (recommendation.poor_reference_cell_id, "reference batch"),
        *[(rival.cell_id, "rival") for rival in likelier if not rival.eligible][:1],
        *[(rival.cell_id, "rival") for rival in equal_rivals(recommendation)][:2],
        *[(count.cell_id, "") for count in reversed(recommendation.gpu_counts)],
        (recommendation.largest_batch_cell_id, "largest batch"),
    ]
    roles: dict[str | None, str] = {}
    for cell_id, role in wanted:
        if cell_id is not None:
            roles[cell_id] = ", ".join(filter(None, [roles.get(cell_id, ""), role]))
    return roles


def equal_rivals(recommendation: Recommendation) -> list[Setting]:
    """Return the eligible rivals that are likelier the best than the chosen cell or, in a tie, as likely."""
    # In a tie, rivals with a somewhat lower probability are as good a choice.
    tie = recommendation.verdict == TIED
    eligible = [rival for rival in recommendation.rivals if rival.eligible]
    return [rival for rival in eligible if rival.p_best > recommendation.p_best or (tie and rival.tied)]


def _objective(cell: Setting, recommendation: Recommendation) -> float:
    objective = recommendation.terms.report.objective
    value = cell.value(recommendation.deciding_time if objective == "time" else objective)
    return math.inf if math.isnan(value) else value


def _speed(cell: Setting, recommendation: Recommendation) -> float:
    """Return the speed of a cell relative to the baseline; NaN unless both have a valid timing."""
    baseline = recommendation.baseline
    if baseline is None or cell.timing_valid is False or baseline.timing_valid is False:
        return math.nan
    # By the time that decides, so that all forms agree with the sentence.
    return baseline.value(recommendation.deciding_time) / cell.value(recommendation.deciding_time)


def _columns(recommendation: Recommendation, cells: Sequence[Setting]) -> Iterator[Column]:
    """Yield the columns of these cells; some of them may have no text."""
    rates = [cell.values["lr"] for cell in cells]
    yield Column(
        name="lr", title="LR", texts=[f"{rate:.3g}" if isinstance(rate, float | int) else "" for rate in rates]
    )
    yield from _times(recommendation, cells)
    yield from _speeds(recommendation, cells)
    yield from _metric(recommendation, cells)
    if not recommendation.on_cpu:
        yield _amount("cost", "cost", cells, rank=4)
    yield _amount("energy", "energy", cells, rank=1 if recommendation.terms.report.objective == "energy" else 9)
    if recommendation.baseline:
        yield Column(name="p_within", title="P(within)", texts=[_chance(cell.p_within_margin) for cell in cells])
    yield Column(name="p_best", title="P(best)", texts=[_chance(cell.p_best) for cell in cells], rank=5)
    # An exclamation mark, because colour alone must carry no meaning.
    marks = ["" if cell.n_timed == cell.n_ok else " !" for cell in cells]
    texts = [f"{cell.n_timed}/{cell.n_ok}{mark}" for cell, mark in zip(cells, marks, strict=True)]
    yield Column(name="timed", title="timed", texts=texts, rank=2 if any(marks) else 8)


def _times(recommendation: Recommendation, cells: Sequence[Setting]) -> Iterator[Column]:
    """Yield the time that decides with its interval, and the other time if start-up and evaluation matter."""
    time = recommendation.deciding_time
    titles = {"time": "time", "total_time": "total"}
    figures = [cell.figures[time] for cell in cells]
    unit = suited("s", *(figure.value for figure in figures))
    texts = [unit.number(figure.value) for figure in figures]
    yield Column(name="time", title=f"{titles[time]} [{unit.name}]", texts=texts, rank=1)
    ends = [f"{unit.number(figure.lo)}–{unit.number(figure.hi)}" for figure in figures]
    texts = ["" if math.isnan(figure.lo) else end for figure, end in zip(figures, ends, strict=True)]
    yield Column(name="interval", title="95% interval", texts=texts, rank=7)
    if any(cell.value("total_time") > (1 + MATERIAL) * cell.value("time") for cell in cells):
        other = "total_time" if time == "time" else "time"
        yield _amount(other, titles[other], cells, rank=8)


def _amount(figure: str, title: str, cells: Sequence[Setting], rank: int) -> Column:
    values = [cell.value(figure) for cell in cells]
    unit = suited(cells[0].figures[figure].unit, *values) if figure in cells[0].figures else suited("s")
    return Column(
        name=figure, title=f"{title} [{unit.name}]", texts=[unit.number(value) for value in values], rank=rank
    )


def _speeds(recommendation: Recommendation, cells: Sequence[Setting]) -> Iterator[Column]:
    """Yield the speed-up over the baseline, and its factors if both the GPUs and the batch have one.

    The factor of the GPUs is the throughput relative to fewer GPUs at the same batch; the rest is that of the batch.
    """
    speeds = [_speed(cell, recommendation) for cell in cells]
    most = max((speed for speed in speeds if not math.isnan(speed)), default=math.nan)
    by_time = recommendation.terms.report.objective == "time"
    # By another objective, this figure is that of the energy or the cost.
    ends = [cell.figures.get("speedup") if by_time else None for cell in cells]
    bars = [
        Bar(value=speed / most, lo=end.lo / most if end else math.nan, hi=end.hi / most if end else math.nan)
        for speed, end in zip(speeds, ends, strict=True)
    ]
    yield Column(name="speedup", title="speed-up", texts=[_ratio(speed) for speed in speeds], rank=2, bars=bars)
    factors = [_factor_of_gpus(cell, recommendation) for cell in cells]
    of_gpus = [_ratio(factor) for factor in factors]
    of_batch = [_ratio(speed / factor) for speed, factor in zip(speeds, factors, strict=True)]
    has_both = all({*texts} - {"", _ratio(1.0)} for texts in (of_gpus, of_batch))
    # Throughputs leave out the start-up that a total time includes.
    if has_both and recommendation.deciding_time == "time":
        # If no other axis varies, what more GPUs do not explain of a speed-up is the batch's.
        is_batch = not set(cells[0].axes) - set(STANDARD_AXES)
        yield Column(name="of_gpus", title=f"of {gpu_word(on_cpu=recommendation.on_cpu)}", texts=of_gpus, rank=6)
        yield Column(name="of_batch", title="of batch" if is_batch else "of the rest", texts=of_batch, rank=6)


def _factor_of_gpus(cell: Setting, recommendation: Recommendation) -> float:
    """Return the speed-up over the fewest GPUs at the same batch; NaN if no such cell was timed."""
    counts, gain = recommendation.gpu_counts, cell.value("gpu_speedup")
    # Without that cell, the summary compares with the fewest GPUs that had this batch.
    of_fewest = bool(counts) and math.isclose(gain / cell.value("efficiency"), cell.values["gpus"] / counts[0].gpus)
    return gain if of_fewest else math.nan


def _metric(recommendation: Recommendation, cells: Sequence[Setting]) -> Iterator[Column]:
    """Yield the metric of choice, and its difference from the baseline's with the allowed loss in its title."""
    metric, margin = recommendation.terms.metric, recommendation.terms.report.margin
    yield Column(
        name="metric", title=metric.short_label, texts=[_three(cell.value(metric.name)) for cell in cells], rank=3
    )
    figures = [cell.figures.get(f"{metric.name}_difference") for cell in cells]
    if recommendation.baseline is None or not all(figures):
        return
    differences = [figure for figure in figures if figure is not None]
    # The better end of a bar is on the right, whichever direction of the metric is better.
    ends = [sorted((metric.sign * figure.lo, metric.sign * figure.hi)) for figure in differences]
    bars = [
        Bar(value=_place(metric.sign * figure.value, margin), lo=_place(lo, margin), hi=_place(hi, margin))
        for figure, (lo, hi) in zip(differences, ends, strict=True)
    ]
    is_baseline = [cell.cell_id == recommendation.baseline_cell_id for cell in cells]
    texts = [
        "-" if skip else "" if math.isnan(figure.value) else f"{figure.value:+.3f}"
        for figure, skip in zip(differences, is_baseline, strict=True)
    ]
    allowed = f"{'-' if metric.higher_is_better else '+'}{margin:g}"
    yield Column(name="difference", title=f"against {allowed}", texts=texts, rank=6, bars=bars)


def _place(difference: float, margin: float) -> float:
    """Return the place of a difference on a bar that ends SHOWN_MARGINS below and above the baseline."""
    return 0.5 + difference / (2 * SHOWN_MARGINS * margin) if margin else math.nan


def _chance(value: float) -> str:
    return "-" if math.isnan(value) else probability(value, short=True)


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{numbers.times(value)}×"


def _three(value: float) -> str:
    # Three decimals show nothing of a small loss.
    return "" if math.isnan(value) else f"{value:.3g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"


def steps_in_words(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return what more GPUs are worth as (label, text): a single step by batch, several steps in one text."""
    steps = recommendation.gpu_steps
    if len(steps) == 1:
        return [(steps[0].name, _by_batch(steps[0], recommendation))]
    why_none = {count.gpus: sentence(count.why_none) for count in recommendation.gpu_counts}
    groups: dict[tuple[str, str], list[str]] = {}
    for step in steps:
        gain = _gain_of_step(step, recommendation)
        text = f"{step.gpus:g} ({gain})" if gain else f"{step.gpus:g}"
        groups.setdefault((step.worth, why_none.get(step.gpus, "")), []).append(text)
    order = (WORTH, COSTLY, NOT_WORTH, UNDECIDED)
    texts = [
        f"{worth}: {', '.join(counts)}{f' ({reason})' if reason else ''}"
        for (worth, reason), counts in sorted(groups.items(), key=lambda group: order.index(group[0][0]))
    ]
    return [(f"More {gpu_word(on_cpu=recommendation.on_cpu)}", "; ".join(texts))] if texts else []


def _gain_of_step(step: GpuStep, recommendation: Recommendation) -> str:
    # A step that is not worth it has no gain to report.
    if step.worth not in (WORTH, COSTLY):
        return ""
    is_time = recommendation.terms.report.objective == "time"
    gain = f"{numbers.times(step.gain.value)}× as fast" if is_time else ""
    cost = "" if math.isnan(step.cost) else f"{numbers.times(step.cost)}× the cost"
    return " at ".join(filter(None, [gain, cost]))


def _by_batch(step: GpuStep, recommendation: Recommendation) -> str:
    """Return `not worth it: 0.71× the speed at batch 32 each, 0.92× at 128`."""
    gain = _gain_of_step(step, recommendation)
    is_accuracy = recommendation.terms.metric == VAL_ACCURACY
    speeds = ", ".join(_speeds_by_batch(step, is_accuracy=is_accuracy))
    return ": ".join(filter(None, [step.worth, f"{gain} ({speeds})" if gain and speeds else gain or speeds]))


def _speeds_by_batch(step: GpuStep, *, is_accuracy: bool) -> Iterator[str]:
    """Yield the speed at each batch, in full for the first."""
    for place, speed in enumerate(step.by_batch):
        where = f"at {speed.batch}"
        if place == 0:
            where = f"the speed at batch {speed.batch}{' in all' if speed.is_global else ' each'}"
        # Ends that look alike are one number.
        ends = dict.fromkeys((numbers.times(speed.lo), numbers.times(speed.hi)))
        yield f"{'–'.join(ends)}× {where}{_loss(speed, is_accuracy=is_accuracy)}"


def _loss(speed: StepSpeed, *, is_accuracy: bool) -> str:
    """Return what a batch loses: a loss is stated only if it is shown."""
    if speed.keeps_margin is not False:
        return ""
    if speed.p_within < SHOWN:
        return " (loses accuracy)" if is_accuracy else " (misses the margin)"
    return " (may lose accuracy)" if is_accuracy else " (may miss the margin)"
