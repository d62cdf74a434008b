"""The table of candidates: a column for each cell in question, what to run first, and a line for each figure.

The terminal, recommendation.md and the report show this one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.recommendation import (
    CLEAR,
    COSTLY,
    TIED,
    UNDECIDED,
    WORTH,
    Cell,
    Figure,
    GpuStep,
    Recommendation,
    StepCell,
)
from orchestrator.decision.thresholds import SAFE, TIE
from orchestrator.statistics import margins
from orchestrator.tables.recommendation_sentences import filled, probability
from orchestrator.text import numbers
from orchestrator.text.cell_labels import WORDS, cell_label, gpu_word, gpus_in_words, short_names
from orchestrator.text.numbers import Unit, suited
from orchestrator.text.text_tables import markdown
from sweeps.sweep import STANDARD_AXES

MOST_CANDIDATES = 8
"""The most columns."""

MATERIAL = 0.1
"""Start-up matters if it adds more than this part to the time of a training."""

IS_BEST = "is best"
"""The name of the probability to be the best, or within TIE of the best, of the cells that keep the margin.

Several cells may be near the best, so that a line may add up to more than 100%."""

USE, USE_NOW, MAY_BECOME, BEST_SO_FAR, SAFER = "use", "use now", "may become", "best so far", "safer"
"""What to do with a cell. A choice that may lose accuracy may become the one to use; the safe one is used now."""

OF_RATE = "lr_multiplier"
"""The axis that names leave out beside the learning rate."""

_MOST_OF_AXIS = 24
"""The most characters of a further axis and its values in a line; a longer axis stays in the names."""


def calls(recommendation: Recommendation) -> dict[str | None, str]:
    """Return what to do with which cells, in the order of their columns; empty without a choice."""
    chosen, safe, p_within = recommendation.cell_id, recommendation.safe_cell_id, recommendation.p_within_margin
    if chosen is None:
        return {}
    if recommendation.baseline is None:  # no accuracy is known, and the fastest cell may lose any
        return {chosen: BEST_SO_FAR}
    if safe is not None and not p_within >= SAFE:
        return {chosen: USE, safe: SAFER} if recommendation.verdict == CLEAR else {safe: USE_NOW, chosen: MAY_BECOME}
    if recommendation.verdict != UNDECIDED:
        return {chosen: USE}
    return {chosen: USE_NOW if p_within >= SAFE else BEST_SO_FAR}


def used_now(recommendation: Recommendation) -> Cell | None:
    """Return the cell to use while the choice may lose accuracy; None without one."""
    safe = recommendation.safe_cell_id
    return recommendation.cell(safe) if calls(recommendation).get(safe) == USE_NOW else None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table of candidates, with a text for each column; empty means not known."""

    name: str
    title: str
    note: str = ""
    """What the figure is measured by; left out where there is no room."""
    short_note: str = ""  # for a narrow terminal
    texts: Sequence[str]
    rank: int = 0
    """A short table leaves out the lines of the highest rank first, and never those of rank 0."""
    bars: Sequence[Figure] = ()
    """For each column a figure on a scale from 0 to 1; empty if the line has none."""
    hints: Sequence[str] = ()
    """For each column what the report shows if the mouse points at it; empty if the line has none."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The cells in question: those to run first, then the others, the best by the objective first."""

    cells: Sequence[Cell]
    roles: Sequence[str]
    """`use now`, `baseline` and the like, or empty."""
    n_called: int
    """1 if the first cell is to be run now, else 0."""
    heading: str
    """The title of the names."""
    names: Sequence[str]
    """The cells' names without axes that have a line, or in which these cells do not differ."""
    setups: Sequence[str]
    """The names in words: `2 GPUs, batch 128 each`."""
    lines: Sequence[Line]

    @staticmethod
    def of(recommendation: Recommendation, most: int = MOST_CANDIDATES) -> Candidates | None:
        """Return at most `most` candidates without those that tie with the chosen cell; None if there are none.

        If there are more, these are kept first: the cells to run, the baseline, a likely rival that may miss the
        margin, cells that further GPUs are worth it with, the cheapest one, a reference-batch
        cell that was rejected as baseline, the runner-up, the best cell of each number of GPUs.
        """
        return _table(recommendation, dict([*_roles(recommendation).items()][:most]))

    @staticmethod
    def tied(recommendation: Recommendation) -> Candidates | None:
        """Return the chosen cell and those that tie with it, each with the reason against it; None without a tie.

        The likeliest to be the best come first.
        """
        tied: dict[str | None, str] = {
            rival.cell_id: f"tied, {filled('short_of_choice', rival.why_not)}"
            for rival in equal_rivals(recommendation)
            if rival.why_not
        }
        role = calls(recommendation).get(recommendation.cell_id, "")
        return _table(recommendation, {recommendation.cell_id: role, **tied}, by_chance=True) if tied else None

    def markdown(self) -> list[str]:
        """Return the table as lines of Markdown, the cells to run in bold."""
        bold = [f"**{name}**" if place < self.n_called else name for place, name in enumerate(self.names)]
        labels = [f"{name} ({role})" if role else name for name, role in zip(bold, self.roles, strict=True)]
        rows = [[f"{line.title}{f' ({line.note})' if line.note else ''}", *line.texts] for line in self.lines]
        return ["", markdown(pd.DataFrame(rows, columns=[self.heading, *labels])), ""]


def _table(
    recommendation: Recommendation, roles: Mapping[str | None, str], *, by_chance: bool = False
) -> Candidates | None:
    """Return the table of these cells, in the order of the objective or of their chance; None if no cell is known."""
    objective = recommendation.terms.report.objective
    figure = recommendation.deciding_time if objective == "time" else objective
    called = [cell_id for cell_id in calls(recommendation) if cell_id in roles]

    def place(cell: Cell) -> tuple[int, bool, float]:
        first = called.index(cell.cell_id) if cell.cell_id in called else len(called)
        value = -cell.p_best if by_chance else cell.value(figure)
        # Cells without a figure come last.
        return first, math.isnan(value), value

    cells = sorted((cell for cell_id in roles if (cell := recommendation.cell(cell_id))), key=place)
    if not cells:
        return None
    axes, others = _of_axes(cells)
    lines = [line for line in _lines(recommendation, cells) if {*line.texts} - {"", "-"}]
    return Candidates(
        cells=cells,
        roles=[roles[cell.cell_id] for cell in cells],
        n_called=int(bool(called) and called[0] == next(iter(calls(recommendation)))),
        heading=f"{gpu_word(on_cpu=recommendation.on_cpu, one=True)}×batch rule",
        names=_names(cells, others),
        setups=[_setup(cell, on_cpu=recommendation.on_cpu) for cell in cells],
        lines=[*axes, *lines],
    )


def _names(cells: Sequence[Cell], axes: Sequence[str]) -> list[str]:
    """Return the cells' names with these axes, to which alike ones add the axes or the rate in which they differ."""
    short = [cell_label({**cell.values, **cell.further}, axes) for cell in cells]
    names: list[str] = []
    for cell, name in zip(cells, short, strict=True):
        alike = [other for other, its_name in zip(cells, short, strict=True) if its_name == name]
        differing = [axis for axis in cell.further if len({other.further[axis] for other in alike}) > 1]
        has_rates = all(map(_has_rate, alike)) and len({other.values["lr"] for other in alike}) > 1
        # The rate tells the multiplier.
        is_rate = has_rates and differing in ([], [OF_RATE])
        label = cell_label({**cell.values, **cell.further}, [*axes, *(() if is_rate else differing)])
        names.append(f"{label}, LR {cell.values['lr']:.3g}" if is_rate else label)
    return names


def _setup(cell: Cell, *, on_cpu: bool) -> str:
    gpus, batch = cell.values["gpus"], numbers.fact(cell.values["device_batch_size"])
    return f"{gpus_in_words(gpus, on_cpu=on_cpu or cell.on_cpu)}, batch {batch}{' each' if gpus > 1 else ''}"


def _roles(recommendation: Recommendation) -> dict[str | None, str]:
    """Return the candidates, the most valuable to the reader first, each with its roles in words or with none."""
    baseline = recommendation.common_baseline_id
    if recommendation.cell_id is None:
        cells: list[str | None] = [cell.cell_id for cell in recommendation.shortlist]
        return {baseline: "baseline", **dict.fromkeys((cell_id for cell_id in cells if cell_id != baseline), "")}
    tied = {rival.cell_id for rival in equal_rivals(recommendation)}
    # Where one cell is to be run, but is not surely the best, its likeliest rival is the open question.
    is_open = recommendation.verdict == UNDECIDED and len(calls(recommendation)) == 1
    likely = [rival for rival in recommendation.rivals if is_open or rival.p_best > recommendation.p_best]
    in_question = [rival for rival in likely if not rival.eligible][:1]
    in_question += [rival for rival in rivals_to_settle(recommendation) if rival.cell_id not in tied]
    misses = "may lose accuracy" if recommendation.terms.metric == VAL_ACCURACY else "may miss the margin"
    rivals = {rival.cell_id: "" if rival.eligible else misses for rival in in_question}
    best_of = {count.cell_id: f"best on {count.name}" for count in reversed(recommendation.gpu_counts)}
    worth: dict[str | None, str] = {
        cell.cell_id: f"on {gpus_in_words(step.gpus, on_cpu=recommendation.on_cpu)}"
        for step in recommendation.gpu_steps
        for cell in cells_worth_it(step, recommendation)
    }
    second = recommendation.runner_up.values["cell_id"] if recommendation.runner_up else None
    known = [
        *calls(recommendation).items(),
        (baseline, "baseline"),
        *rivals.items(),
        *[(cell_id, "") for cell_id in worth if cell_id not in tied],
        # A rival that may lose accuracy may be cheaper.
        (recommendation.cheapest_cell_id, "cheapest safe" if in_question else "cheapest"),
        (recommendation.poor_reference_cell_id, "reference batch"),
        *[(cell_id, "") for cell_id in (second, *best_of) if cell_id not in tied],
    ]
    roles: dict[str | None, str] = {}
    for cell_id, role in known:
        if cell_id is not None:
            roles[cell_id] = ", ".join(filter(None, [roles.get(cell_id, ""), role]))
    further: dict[str | None, str] = {**dict.fromkeys(rivals, "rival"), **worth, **best_of, second: "runner-up"}
    return {cell_id: role or further.get(cell_id, "") for cell_id, role in roles.items()}


def cells_worth_it(step: GpuStep, recommendation: Recommendation) -> list[StepCell]:
    """Return the cells that further GPUs may be used with; empty if there is no gain."""
    cells = [cell for cell in step.cells if cell.worth in (WORTH, COSTLY)]
    if len(recommendation.gpu_steps) > 1:
        # One cell for each number of GPUs: the choice, else the one that surely keeps its accuracy.
        return [cell for cell in cells if cell.cell_id == recommendation.cell_id] or cells[-1:]
    return cells


def _of_axes(cells: Sequence[Cell]) -> tuple[list[Line], list[str]]:
    """Return a line for each further axis in which these cells differ, and the axes that are too long for one."""
    lines: list[Line] = []
    others: list[str] = []
    # The learning rate, which has a line, tells the multiplier.
    has_rates = all(map(_has_rate, cells))
    differing = [axis for axis in cells[0].further if len({cell.further[axis] for cell in cells}) > 1]
    for axis, title in short_names(differing).items():
        texts = [cell.further[axis] for cell in cells]
        title = WORDS.get(axis, title)
        if max(map(len, [title, *texts])) > _MOST_OF_AXIS:
            others.append(axis)
            continue
        rank = 6 if axis == OF_RATE and has_rates else 0
        lines.append(Line(name=f"axis:{axis}", title=title, texts=texts, rank=rank))
    return lines, others


def equal_rivals(recommendation: Recommendation) -> list[Cell]:
    """Return the eligible rivals that are likelier the best than the chosen cell or, in a tie, as likely."""
    # In a tie, rivals with a somewhat lower probability are as good a choice.
    tie = recommendation.verdict == TIED
    eligible = [rival for rival in recommendation.rivals if rival.eligible]
    return [rival for rival in eligible if rival.p_best > recommendation.p_best or (tie and rival.tied)]


def rivals_to_settle(recommendation: Recommendation) -> list[Cell]:
    """Return the rivals that get further seeds, without the cells to run."""
    grows = {more.cell_id for more in recommendation.more_seeds}
    called = calls(recommendation)
    return [rival for rival in recommendation.rivals if rival.cell_id in grows and rival.cell_id not in called]


def by_rate(cells: Sequence[Cell], chosen: Cell | None) -> str:
    """Return the cells' names, with rates instead of multipliers: `8×64 sqrt, LR 0.1, 0.4; 8×64 none, LR 0.2`."""
    rates: dict[str, list[str]] = {}
    for cell in cells:
        known = rates.setdefault(name_beside(chosen, cell), [])
        known += [f"{cell.values['lr']:.3g}"] if OF_RATE in cell.further and _has_rate(cell) else []
    return "; ".join(f"{name}, LR {', '.join(known)}" if known else name for name, known in rates.items())


def name_beside(chosen: Cell | None, cell: Cell) -> str:
    """Return a cell's name without the learning rate, and without further axes in which it is as the chosen cell.

    Without a rate, as with rules that have their own, its multiplier is an axis like others.
    """
    left_out = [axis for axis, value in cell.further.items() if chosen and chosen.further.get(axis) == value]
    left_out += [OF_RATE] if _has_rate(cell) else []
    return cell_label({**cell.values, **cell.further}, [axis for axis in cell.further if axis not in left_out])


def _has_rate(cell: Cell) -> bool:
    return isinstance(cell.values["lr"], float | int)


def _lines(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Line]:
    """Yield the lines on these cells; some of them may have no text."""
    yield Line(name="lr", title="LR", texts=[f"{cell.values['lr']:.3g}" if _has_rate(cell) else "" for cell in cells])
    yield _time(recommendation, cells)
    yield from _speeds(recommendation, cells)
    yield from _metric(recommendation, cells)
    # Without an answer, the cells that it lacks may be better.
    if recommendation.cell_id is not None:
        yield Line(
            name="p_best",
            title=IS_BEST,
            note=f"or within {numbers.percent(TIE)}%",
            short_note=f"±{numbers.percent(TIE)}%",
            texts=[_chance(cell.p_best) for cell in cells],
            rank=2,
        )
    if not recommendation.on_cpu:
        yield _amount("cost", recommendation, cells)
    if recommendation.terms.report.objective == "energy":
        yield _amount("energy", recommendation, cells)
    yield from _with_start_up(recommendation, cells)


def _time(recommendation: Recommendation, cells: Sequence[Cell]) -> Line:
    """Return the time that decides."""
    time = recommendation.deciding_time
    unknown = Figure(value=math.nan, unit="s")
    figures = [cell.figures[time] if cell.is_timed else unknown for cell in cells]
    unit = suited("s", *(figure.value for figure in figures))
    training = "to target" if recommendation.is_to_target else "time"
    return Line(
        name="time",
        title=f"{training if time == 'time' else 'with start-up'} [{unit.name}]",
        texts=[unit.number(figure.value) for figure in figures],
        # Without a baseline there is no speed-up, which tells the same.
        rank=1 if recommendation.baseline else 0,
        hints=[
            f"{'' if math.isnan(figure.lo) else f'95% interval: {unit.number(figure.lo)}–{unit.number(figure.hi)}; '}"
            f"valid timings: {cell.n_timed} of {cell.n_ok}"
            for cell, figure in zip(cells, figures, strict=True)
        ],
    )


def _amount(figure: str, recommendation: Recommendation, cells: Sequence[Cell]) -> Line:
    unit = _unit(figure, recommendation)
    texts = [unit.number(cell.value(figure)) if cell.is_timed else "" for cell in cells]
    return Line(name=figure, title=f"{figure} [{unit.name}]", texts=texts, rank=1)


def _with_start_up(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Line]:
    """Yield the speed-ups and costs that include start-up, if that matters."""
    if not start_up_matters(recommendation, cells):
        return
    speeds = [_ratio(_speed(recommendation, cell, "total_time")) for cell in cells]
    unit, has_costs = _unit("cost", recommendation), not recommendation.on_cpu
    costs = [unit.number(cell.value("total_cost")) if has_costs and cell.is_timed else "" for cell in cells]
    # The baseline's speed-up is no figure of interest, and the room is another column's.
    speeds = [
        "" if cost and cell == recommendation.baseline else speed
        for speed, cost, cell in zip(speeds, costs, cells, strict=True)
    ]
    texts = [" for ".join(filter(None, pair)) for pair in zip(speeds, costs, strict=True)]
    note = " for ".join(name for name, known in (("speed-up", speeds), ("cost", costs)) if any(known))
    yield Line(name="with_start_up", title="with start-up", note=note, texts=texts, rank=2)


def start_up_matters(recommendation: Recommendation, cells: Iterable[Cell]) -> bool:
    """Return whether start-up adds more than MATERIAL to the time of one of these cells, and is left out of it."""
    # If total times decide, speed-ups and costs have the start-up already.
    return recommendation.deciding_time == "time" and any(
        cell.value("total_time") > (1 + MATERIAL) * cell.value("time") for cell in cells if cell.is_timed
    )


def _speed(recommendation: Recommendation, cell: Cell, time: str) -> float:
    """Return a cell's speed-up over the baseline by this time; NaN unless both have a valid timing."""
    is_timed = recommendation.baseline is not None and recommendation.baseline.is_timed
    return quotient(recommendation.baseline, cell, time) if is_timed and cell.is_timed else math.nan


def quotient(above: Cell | None, below: Cell | None, figure: str) -> float:
    """Return the ratio of a figure of two cells; NaN if it is not known."""
    if above is None or below is None or not below.value(figure):
        return math.nan
    return above.value(figure) / below.value(figure)


def _unit(figure: str, recommendation: Recommendation) -> Unit:
    """Return the unit of a figure, which does not depend on the rows that are shown."""
    values = [cell.value(figure) for cell in recommendation.shortlist]
    return suited(recommendation.shortlist[0].figures[figure].unit, *values)


def _speeds(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Line]:
    """Yield the speed-up over the baseline, and its factors if both the GPUs and the batch have one."""
    # By the time that decides, so that all forms agree with the sentence.
    speeds = [_speed(recommendation, cell, recommendation.deciding_time) for cell in cells]
    most = max((speed for speed in speeds if not math.isnan(speed)), default=math.nan)
    by_time = recommendation.terms.report.objective == "time"
    # By another objective, this figure is that of the energy or the cost.
    unknown = Figure(value=math.nan, unit="1")
    # The baseline is not compared with itself.
    is_compared = [by_time and cell.cell_id != recommendation.common_baseline_id for cell in cells]
    ends = [
        cell.figures.get("speedup", unknown) if compared else unknown
        for cell, compared in zip(cells, is_compared, strict=True)
    ]
    bars = [
        Figure(value=speed / most, lo=end.lo / most, hi=end.hi / most, unit="1")
        for speed, end in zip(speeds, ends, strict=True)
    ]
    # Where two cells are to be run, the headline has no figures.
    texts = [
        numbers.with_interval(speed, end.lo, end.hi, numbers.times, "×")
        if calls(recommendation).get(cell.cell_id) == MAY_BECOME
        else _ratio(speed)
        for speed, end, cell in zip(speeds, ends, cells, strict=True)
    ]
    yield Line(name="speedup", title="speed-up", texts=texts, bars=bars)
    factors = [(cell.value("speedup_of_gpus"), cell.value("speedup_of_batch")) for cell in cells]
    if all({*map(_ratio, factor)} - {"", _ratio(1.0)} for factor in zip(*factors, strict=True)):
        # If no other axis varies, what more GPUs do not explain of a speed-up is the batch's.
        rest = "the rest" if set(cells[0].axes) - set(STANDARD_AXES) or recommendation.is_to_target else "batch"
        of_others = [
            ("", "") if cell == recommendation.baseline else map(_ratio, factor)
            for cell, factor in zip(cells, factors, strict=True)
        ]
        texts = [", ".join(filter(None, factor)) for factor in of_others]
        title = f"by {gpu_word(on_cpu=recommendation.on_cpu)}, {rest}"
        # If the choice has one factor alone, the headline says so.
        of_choice = [factor for cell, factor in zip(cells, factors, strict=True) if cell == recommendation.chosen]
        has_both = bool(of_choice) and _ratio(1.0) not in map(_ratio, of_choice[0])
        yield Line(name="factors", title=title, texts=texts, rank=3 if has_both and by_time else 5)


def _metric(recommendation: Recommendation, cells: Sequence[Cell]) -> Iterator[Line]:
    """Yield the metric of choice; the probability that it keeps the margin, and its difference from the baseline's."""
    metric, margin = recommendation.terms.metric, recommendation.terms.report.margin
    values = [cell.value(metric.name) for cell in cells]
    # With decimals alone, a small loss would be 0.
    forms = (".3g" if 0 < abs(value) < 0.01 else f".{_decimals(margin)}f" for value in values)
    texts = ["" if math.isnan(value) else f"{value:{form}}" for value, form in zip(values, forms, strict=True)]
    yield Line(name="metric", title=metric.short_label, texts=texts, rank=5)
    if recommendation.baseline is None:
        return
    unknown = Figure(value=math.nan, unit="1")
    changes = [cell.figures.get(f"{metric.name}_difference", unknown) for cell in cells]
    # The better end of a bar is on the right, whichever direction of the metric is better.
    ends = [sorted((metric.sign * figure.lo, metric.sign * figure.hi)) for figure in changes]
    width = 2 * margins.BAR * margin or math.nan
    places = [
        [0.5 + end / width for end in (metric.sign * figure.value, lo, hi)]
        for figure, (lo, hi) in zip(changes, ends, strict=True)
    ]
    texts = [accuracy_holds(cell, recommendation) for cell in cells]
    yield Line(
        name="p_within",
        title=f"{metric.word} holds",
        note=f"{'-' if metric.higher_is_better else '+'}{margin:g} allowed",
        texts=texts,
        bars=[Figure(value=value, lo=lo, hi=hi, unit="1") for value, lo, hi in places],
    )


def accuracy_holds(cell: Cell, recommendation: Recommendation) -> str:
    """Return the probability that a cell keeps the margin, and its difference from the baseline's: `78% (-0.007)`.

    Where the margin is between that difference and the one of the probability, it has the latter: `(about -0.004)`.
    """
    metric, margin = recommendation.terms.metric, recommendation.terms.report.margin
    difference, p_within = cell.value(f"{metric.name}_difference"), cell.p_within_margin
    text = probability(p_within, short=True)
    if cell.cell_id == recommendation.common_baseline_id or math.isnan(difference):
        return text
    is_within = margins.excess(-metric.sign * difference, margin) <= 0
    if math.isnan(p_within) or is_within == (p_within >= 0.5):
        return f"{text} ({signed(difference, margin)})"
    return f"{text} (about {signed(cell.value(f'{metric.name}_difference_pooled'), margin)})"


def signed(difference: float, margin: float) -> str:
    """Return `-0.006`, with as many decimals as the margin needs; empty for NaN."""
    return "" if math.isnan(difference) else f"{difference:+.{_decimals(margin)}f}"


def _decimals(margin: float) -> int:
    """Return how many decimals accuracies and their differences need beside this margin."""
    return 3 if margin >= 0.01 else 4


def _chance(value: float) -> str:
    return "-" if math.isnan(value) else probability(value, short=True)


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{numbers.times(value)}×"
