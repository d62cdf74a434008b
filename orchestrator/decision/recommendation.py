"""The outcome of a sweep as plain values: one cell, why, how certain that is, and what would make it more certain.

Sentences are remarks: a code with its values. `tables/recommendation.md.j2` has the words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.request import Terms
from orchestrator.decision.thresholds import NOTICED

NO_OBJECTIVE = "none"
"""The objective of a sweep whose cells do different work: nothing is recommended."""

CLEAR, SPEED_ONLY, TIED, UNDECIDED = "clear", "speed only", "tied", "undecided"
"""The verdicts. Clear: P(is best) is SURE and nothing makes it provisional. Speed only: the same, but no
cell has the metric, so nothing is known of what the choice costs in accuracy. Tied: an eligible cell is as likely to be
the best, or not separable. Undecided: all else, such as one seed per cell, or no cell to recommend."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A statement about a decision: a code and its values. Cells are named by their labels."""

    code: str
    """The name of a macro in `tables/recommendation.md.j2`."""
    values: Mapping[str, Any] = field(default_factory=dict)


def remark(code: str, /, **values: Any) -> Remark:
    """Return a remark with these values."""
    return Remark(code=code, values=values)


@dataclass(frozen=True, kw_only=True)
class MoreSeeds:
    """A cell that should get further seeds."""

    cell_id: str
    name: str
    seeds: int
    """How many more."""


@dataclass(frozen=True, kw_only=True)
class LargerBatch:
    """A global batch larger than that of the cell to use now, by its cell that is likeliest within the margin.

    Where no cell with this batch can be compared, by the first one tried.
    """

    global_batch_size: int
    cell_id: str
    name: str
    status: str
    p_within_margin: float
    gain: Figure
    """The objective of the cell to use now over that of this one: 2 is half the time."""


@dataclass(frozen=True, kw_only=True)
class GpuCount:
    """The best cell for a number of GPUs."""

    gpus: float
    name: str
    """`2 GPUs`, or `2 processes`."""
    cell_id: str | None
    """The best by the objective among the cells within the margin; None if there is none."""
    why_none: Remark | None = None


WORTH, COSTLY, NOT_WORTH = "worth it", "costly", "not worth it"
"""Whether further GPUs are worth it; the values of `GpuStep.worth`, beside UNDECIDED. Costly: the cost grows by more
than the gain."""


@dataclass(frozen=True, kw_only=True)
class StepSpeed:
    """The speed-up of a step of the GPU axis at one batch, as a range over cells that differ in the rule and the like.

    Speeds are samples per second.
    """

    batch: int
    is_global: bool
    """Whether `batch` is the global one, which the step keeps (strong scaling); else it is the batch per GPU."""
    lo: float
    hi: float
    keeps_margin: bool | None
    """Whether one of the cells with more GPUs is more likely than not within the margin; None if not compared."""
    p_within: float
    """The largest probability of these cells to be within the margin; NaN if unknown."""


@dataclass(frozen=True, kw_only=True)
class StepCell:
    """A cell with the further GPUs of a step, beside the best cell with fewer."""

    cell_id: str
    name: str
    gain: Figure
    """The objective of the best cell with fewer GPUs over that of this one: 2 is half the time."""
    cost: float
    """The cost of this cell over that of the former; NaN on CPUs."""
    worth: str
    """Whether the GPUs are worth it with this cell, if it keeps its accuracy; values as of `GpuStep.worth`."""
    p_within_margin: float
    """NaN if accuracies are not compared, or if one seed per cell says nothing about chance."""


@dataclass(frozen=True, kw_only=True)
class GpuStep:
    """A step of the GPU axis, such as the second GPU, and whether it is worth it. NaN means not known."""

    gpus: float
    fewer: float
    """The number before the step."""
    name: str
    """`2nd GPU`, `2nd process`, `4 GPUs`."""
    worth: str
    p_worth: float
    """Probability that a cell with this number beats the best one with fewer, and keeps its accuracy."""
    best_fewer: float
    """The number of GPUs of the best cell with fewer, if possible one that surely keeps its accuracy; it may be below
    `fewer`. NaN without such a cell."""
    name_of_fewer: str
    """The name of that cell; empty without it."""
    cell: StepCell | None
    """The best cell with this number, if possible one that surely keeps its accuracy; None without one."""
    if_held: StepCell | None
    """A faster cell, whose accuracy is likely within the margin, but not surely; None without one."""
    by_batch: tuple[StepSpeed, ...]

    @property
    def cells(self) -> tuple[StepCell, ...]:
        """The cells that these GPUs may be used with, the faster one first."""
        return tuple(cell for cell in (self.if_held, self.cell) if cell)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over a cell's ok seeds; NaN means not measured; interval ends are NaN with one seed."""

    value: float
    lo: float = math.nan
    hi: float = math.nan
    """Ends of the 95% interval."""
    unit: str
    """`1` for shares and ratios."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One of the cells that a recommendation discusses, for use by programs."""

    cell_id: str
    name: str
    further: Mapping[str, str]
    """The axes that the name lists after GPUs, batch and rule: {axis: value as text}."""
    baseline_cell_id: str | None
    """The cell with fewer GPUs at the same batch, which the summary's `speedup` and `efficiency` are over."""
    axes: Mapping[str, Any]
    """The sweep's axes except the seed: {axis: value}."""
    values: Mapping[str, Any]
    """Resulting values for a training script: `gpus`, both sides of the batch, `lr` after the rule …"""
    overrides: tuple[str, ...]
    """The axes narrowed to this cell and its seeds."""
    command: str
    """The sweep's own command with these overrides; finished trials do not run again."""
    figures: Mapping[str, Figure]
    timing_valid: bool | None
    """None means not known."""
    n_timed: int
    """Seeds with a valid timing."""
    n_ok: int
    note: str
    on_front: bool
    """Whether no other cell beats it in time, accuracy and cost at once."""
    p_best: float
    """NaN, like the next field, if one seed per cell says nothing about chance."""
    p_within_margin: float
    eligible: bool
    """Whether its accuracy is more likely than not within the margin, or not compared."""
    tied: bool
    """Whether it is eligible, and as likely as the chosen cell to be the best or not separable from it by objective."""
    why_not: Remark | None
    """Why it is not the one to use; None for the one that is."""

    @property
    def on_cpu(self) -> bool:
        """True if it runs on CPUs in a sweep whose other cells have GPUs."""
        return "cpu" in (self.further.get("device"), self.further.get("resources.device"))

    @property
    def is_timed(self) -> bool:
        """True unless its timing is not valid."""
        return self.timing_valid is not False

    def value(self, name: str) -> float:
        """Return the mean of a figure; NaN if it was not measured."""
        return self.figures[name].value if name in self.figures else math.nan


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The decision at the end of a sweep. Probabilities are NaN if one seed per cell says nothing about chance, and
    `p_best` and `behind` if there is only one cell.
    """

    terms: Terms
    """The criteria that it is made by."""
    measure: str = ""
    """The measured objective: `time to the target (validation accuracy 0.97)`; empty without an objective."""
    is_to_target: bool = False
    """Whether its time is that to `report.target`."""
    tokens: float | None = None
    """The budget of a trial in tokens, if several batches were compared: longer trainings allow larger ones."""
    cell_id: str | None = None
    """The chosen cell; None if there is nothing to choose from."""
    name: str = ""
    common_baseline_id: str | None = None
    """The cell that all others are compared with, in time, cost and accuracy."""
    poor_reference_cell_id: str | None = None
    """The cell at the reference batch, if it is so much worse than another one that it is not the baseline."""
    safe_cell_id: str | None = None
    """The best cell that is within the margin with probability SAFE, if that is another one than the chosen cell, which
    need only be more likely than not; None if chance is unknown."""
    larger_batches: tuple[LargerBatch, ...] = ()
    """From the next larger global batch to the largest one; empty if accuracies are not compared.

    Until a choice that may lose accuracy is clear, the safe cell runs today."""
    cheapest_cell_id: str | None = None
    """The cell that costs the least of those whose accuracy surely holds, if it costs less than the chosen one by more
    than `thresholds.TIE`."""
    runner_up: Remark | None = None
    """How the eligible cell that comes after the chosen one compares with it; None if there is none."""
    headline: Remark
    """The recommendation in one sentence, or why there is none."""
    details: tuple[Remark, ...] = ()
    """Further remarks that belong to the headline."""
    verdict: str = ""
    """CLEAR, SPEED_ONLY, TIED or UNDECIDED; empty without an objective."""
    rivals: tuple[Cell, ...] = ()
    """The cells that may be the best instead of the chosen one, or tie with it; the likeliest first."""
    provisional: bool
    p_best: float = math.nan
    """Probability that no cell within the margin is more than 2% better by the objective."""
    p_within_margin: float = math.nan
    behind: float = math.nan
    """How far, as a fraction, the objective is at most above the best one's within the margin, with 95% probability."""
    settling_gains: float = math.nan
    """The same of the cell to run today: what more seeds may gain at most."""
    caveats: tuple[Remark, ...] = ()
    """Reasons why it is provisional."""
    reasons: tuple[Remark, ...] = ()
    sensitivity: tuple[Remark, ...] = ()
    """Measurements or settings that would change it."""
    more_seeds: tuple[MoreSeeds, ...] = ()
    commands: tuple[str, ...] = ()
    """The command that runs the further seeds, if there are any."""
    gpu_counts: tuple[GpuCount, ...] = ()
    """From the fewest GPUs to the most; empty if only one number was tried."""
    gpu_steps: tuple[GpuStep, ...] = ()
    """Whether each number of GPUs after the smallest is worth it."""
    on_cpu: bool = False
    """Whether `gpus` counts processes, because the machines have no GPUs."""
    deciding_time: str = "time"
    """The name of the figure with the time that decides: `time`, or `total_time`, which includes start-up."""
    left_out: tuple[Remark, ...] = ()
    """Why other cells could not be chosen: a remark for each reason, with the number of cells."""
    shortlist: tuple[Cell, ...] = ()
    """The cells it discusses, the chosen one first."""
    probabilities: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The probabilities that accuracy holds and that it is best, of each cell that can be chosen, by `cell_id`."""

    def matters(self, cell_id: str) -> bool:
        """Return whether the answer shows this cell, or the cell may be the best for all that is known."""
        _, p_best = self.probabilities.get(cell_id, (math.nan, math.nan))
        return self.cell(cell_id) is not None or not p_best < NOTICED

    def cell(self, cell_id: str | None) -> Cell | None:
        """Return the discussed cell with this id; None if there is none."""
        return next((cell for cell in self.shortlist if cell.cell_id == cell_id), None)

    @property
    def chosen(self) -> Cell | None:
        """The chosen cell."""
        return self.cell(self.cell_id)

    @property
    def baseline(self) -> Cell | None:
        """The cell that accuracies are compared with."""
        return self.cell(self.common_baseline_id)


def not_made(terms: Terms) -> Recommendation:
    """Return a placeholder if making the recommendation failed, so that no outdated one remains."""
    return Recommendation(terms=terms, headline=remark("not_made"), provisional=True)
