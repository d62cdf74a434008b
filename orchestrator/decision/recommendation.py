"""What the sweep comes to: one cell, why, how sure, and what would make it surer. Pure values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.decision.setting import Setting

NO_OBJECTIVE = "none"
"""Of a sweep whose cells do different work: nothing is recommended."""

OBJECTIVES = ("time", "energy", "cost", NO_OBJECTIVE)
"""What `report.objective` may minimise."""

SURE = 0.9
"""Below this probability a recommendation is provisional, and asks for more seeds."""

FEWEST_SEEDS = 3
"""Fewer seeds a cell make any recommendation provisional."""

NOTICED = 0.05
"""Cells that are the best with a smaller probability are not worth a word, nor seeds."""


@dataclass(frozen=True, kw_only=True)
class MoreSeeds:
    """A cell that further seeds would tell more about."""

    cell_id: str
    name: str
    seeds: int
    """How many more."""


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """What a cell takes and what it reaches, means over its seeds; NaN is not measured."""

    cell_id: str
    name: str
    time_s: float
    val_accuracy: float
    cost: float
    """In the currency of the price; in GPU-hours (of worker processes on CPUs) without one."""


@dataclass(frozen=True, kw_only=True)
class GpuCount:
    """What a number of GPUs is worth: the best cell that has so many."""

    gpus: float
    name: str
    """`2 GPUs`, or `2 processes`."""
    best: TradeOff | None
    """By the objective, among those within the margin."""
    why_none: str = ""
    """Why there is none, if so."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The decision at the end of a sweep. Probabilities are NaN where one seed a cell tells nothing about chance, and
    `p_best` and `behind` where there is one cell alone.
    """

    objective: str
    """As asked: one of OBJECTIVES."""
    measure: str
    """What was minimised, in words: `time to the target (validation accuracy 0.97)`."""
    margin: float
    """By how much validation accuracy may fall short of the baseline's."""
    cell_id: str | None = None
    """The chosen cell; None where there is nothing to choose from."""
    name: str = ""
    baseline_cell_id: str | None = None
    """The cell that accuracies are compared with."""
    lead: str
    """What it comes to, in one sentence."""
    further: tuple[str, ...] = ()
    """Sentences that belong to it."""
    provisional: bool
    p_best: float = math.nan
    """That no cell within the margin is more than 2% better by the objective."""
    p_within_margin: float = math.nan
    behind: float = math.nan
    """By what part the objective is at most above that of the best cell within the margin, with 95% probability."""
    doubts: tuple[str, ...] = ()
    """What makes it provisional."""
    reasons: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()
    more_seeds: tuple[MoreSeeds, ...] = ()
    commands: tuple[str, ...] = ()
    """What runs the further seeds: one command for all of them, but for cells of other seeds or axes."""
    front: tuple[TradeOff, ...] = ()
    """Of the cells that no other one beats in time, accuracy and cost at once."""
    gpu_counts: tuple[GpuCount, ...] = ()
    """From the fewest GPUs to the most; empty where one number of GPUs was tried."""
    cost_unit: str = ""
    """Of the costs of the front and of the GPU counts."""
    left_out: tuple[str, ...] = ()
    """Why other cells could not be chosen."""
    shortlist: tuple[Setting, ...] = ()
    """The cells that it is about, the chosen one first."""

    @property
    def title(self) -> str:
        """Above it."""
        return "In short" if self.objective == NO_OBJECTIVE else "Recommendation"

    @property
    def sentence(self) -> str:
        """All of it in plain English: the lead, what belongs to it, and what makes it provisional."""
        return " ".join([self.lead, *self.behind_lead])

    @property
    def behind_lead(self) -> list[str]:
        """The sentences after the first."""
        return [*self.further, *([f"Provisional: {'; '.join(self.doubts)}."] if self.doubts else [])]

    @property
    def is_baseline(self) -> bool:
        """Whether the chosen cell is the one that accuracies are compared with."""
        return self.cell_id is not None and self.cell_id == self.baseline_cell_id


def not_made(objective: str, margin: float) -> Recommendation:
    """What stands in the place of one whose making failed, so that no older one does."""
    lead = "No recommendation: it could not be made (report_trace.txt tells why)."
    return Recommendation(objective=objective, measure="", margin=margin, lead=lead, provisional=True)


def is_sure(probability: float) -> bool:
    """Whether it reaches SURE; NaN does not."""
    return probability >= SURE
