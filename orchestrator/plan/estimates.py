"""Forecasts of trials: how long a step of known duration makes a training and a trial, with intervals.

The seconds of a step come from rehearsals (`rehearsals.py`) or from the journal (`journal_forecasts.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.plan.forecast_accuracy import BESIDE, EXPOSED, HIDDEN, LINK_GB_S, SLOWED, TENSOR, WARMUPS
from sweeps.trial import TrialSpec, samples_in

REHEARSED, DISTURBED, SHIPPED, SHAPES = "rehearsal", "rehearsal, disturbed", "shipped", "shapes"
"""Sources of forecasts: rehearsals on a machine like this one, those beside which other programs ran, shipped ones of
another machine, and shapes alone."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with the ends of its 90% interval."""

    value: float
    lo: float
    hi: float

    @staticmethod
    def within(value: float, share: float) -> Estimate:
        """Return an estimate that may be off by this share."""
        return Estimate(value=value, lo=value / (1 + share), hi=value * (1 + share))

    def times(self, factor: float) -> Estimate:
        """Return so many times the estimate."""
        return self.map(lambda value: value * factor)

    def plus(self, other: Estimate) -> Estimate:
        """Return the sum with an estimate that may be off at the same time."""
        return Estimate(value=self.value + other.value, lo=self.lo + other.lo, hi=self.hi + other.hi)

    def over(self, other: Estimate) -> Estimate:
        """Return the ratio to an estimate that may be off at the same time."""
        return Estimate(value=self.value / other.value, lo=self.lo / other.hi, hi=self.hi / other.lo)

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Return a monotonic function of the estimate."""
        value, *ends = function(self.value), function(self.lo), function(self.hi)
        return Estimate(value=value, lo=min(ends), hi=max(ends))


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of a trial's memory, speed and length."""

    fits: str  # yes, no or unsure
    why: str = ""  # the figures that say so, unless it fits
    peak_memory_gb: Estimate | None = None  # the peak of a rank's GPU; None on CPUs
    parts_gb: Mapping[str, float] = field(default_factory=dict)
    """Parts of the peak: parameters, gradients, optimizer, and activations, which stand for all the rest."""
    step_s: Estimate | None = None
    communication_s: float = 0.0  # the part of a step that waits for other ranks
    samples_per_s: Estimate | None = None
    train_s: Estimate | None = None  # seconds of the training, without evaluation
    duration_s: Estimate | None = None  # seconds of the whole trial
    target_s: Estimate | None = None  # seconds of training until the target
    source: str = REHEARSED

    def figures(self) -> dict[str, Any]:
        """Return what a trial measures, too, as JSON values: estimates by the names of its figures."""
        estimates = {
            "peak_memory_gb": self.peak_memory_gb,
            "samples_per_s": self.samples_per_s,
            "train_s": self.train_s,
            "wall_s": self.duration_s,
        }
        return {"fits": self.fits} | {name: asdict(estimate) for name, estimate in estimates.items() if estimate}


def of_step(trial: TrialSpec, step: Estimate, training: Estimate | None, beside_s: float) -> Forecast:
    """Return the forecast that follows from the seconds of a step, of the training, and of what is beside it."""
    samples = trial.batch.global_batch_size
    beside = Estimate.within(beside_s, BESIDE)
    return Forecast(
        fits="unsure",
        step_s=step,
        samples_per_s=step.map(lambda step_s: samples / step_s),
        train_s=training,
        duration_s=training.plus(beside) if training else None,
    )


@dataclass(frozen=True, kw_only=True)
class Network:
    """The nodes of a trial, and the bandwidth between them."""

    node_count: int = 1
    bandwidth_gb_s: float = math.inf

    def exchange(self, n_params: float) -> Estimate:
        """Return how much longer the exchange of gradients between nodes makes a step, in seconds.

        A ring of M nodes sends 2 (M - 1) / M of the gradients in fp32. The backward pass may hide all of it.
        """
        seconds = 2 * (1 - 1 / self.node_count) * n_params * 4 / 1e9 / self.bandwidth_gb_s
        return Estimate(value=seconds, lo=0.0, hi=2 * seconds)


def communication(trial: TrialSpec, figures: Mapping[str, Any]) -> Estimate:
    """Return the seconds of a step that wait for other ranks, if the rehearsal had none.

    `figures` are those of a rehearsal: `is_alone`, whether one rank was rehearsed without the others; `step_s` in
    seconds; `gathered_gb` and `exchanged_gb`, the GB of parameters and gradients that a step sends; `overlaps`, whether
    sending runs beside the backward pass.

    A ring sends (n - 1) / n of a tensor to gather or to reduce and scatter it, and both to reduce it to all of n ranks.
    With tensor parallelism the interval is wide, because activations are not counted.
    """
    if not figures.get("is_alone"):
        return Estimate(value=0.0, lo=0.0, hi=0.0)
    if trial.layout.tensor > 1:  # activations are exchanged within each layer, which nothing hides
        return Estimate(value=TENSOR * figures["step_s"], lo=0.0, hi=figures["step_s"])
    layout, passes = trial.layout, trial.batch.grad_accum_steps
    # Parameters that are not kept after the forward pass are gathered again for the backward pass.
    times = passes * (1 if layout.keeps_parameters else 2)
    sharded_gb = times * figures["gathered_gb"] + figures["exchanged_gb"]
    replicated_gb = 2 * figures["exchanged_gb"] / layout.shards
    sent_gb = sharded_gb * (1 - 1 / layout.shards) + replicated_gb * (1 - 1 / layout.replicas)
    seconds = sent_gb / LINK_GB_S
    if not figures["overlaps"]:
        return Estimate(value=seconds, lo=seconds / 3, hi=seconds * 3)
    return Estimate(value=seconds * EXPOSED, lo=seconds * HIDDEN, hi=seconds * SLOWED)


def training_s(trial: TrialSpec, figures: Mapping[str, Any], step: Estimate) -> Estimate:
    """Return the seconds of the training; `figures` has `epoch_samples` and `sequence_length`."""
    [(unit, amount)] = trial.length.items()
    # A branch begins with another training's checkpoint, and trains only its window.
    if trial.settings.get("branch_base"):
        unit, amount = "tokens", trial.settings["branch_window_tokens"]
    if unit == "seconds":
        return Estimate(value=amount, lo=amount, hi=amount)
    batch_size = trial.batch.global_batch_size
    samples = samples_in(
        unit,
        epoch_samples=figures["epoch_samples"],
        batch_size=batch_size,
        sequence_length=figures.get("sequence_length"),
    )
    return step.times(math.ceil(amount * samples / batch_size))


def beside_training_s(trial: TrialSpec, figures: Mapping[str, Any], step_s: float, train_s: float) -> float:
    """Return the seconds of a trial's evaluations, and of further steps for its timing."""
    epoch_s = figures["epoch_samples"] / trial.batch.global_batch_size * step_s
    # The last step may begin an epoch that the training does not finish.
    epochs = max(1, math.ceil((train_s - step_s) / epoch_s))
    evaluations = epochs * figures["validation_s"] + figures["test_s"]
    window_s = max(trial.settings["window_s"], trial.settings["window_steps"] * step_s)
    # Two epochs that are long enough are timed within the training; otherwise further steps are timed after it.
    has_window = train_s >= 2 * epoch_s >= 2 * window_s
    warmup_s = max(trial.settings["warmup_s"], trial.settings["warmup_steps"] * step_s)
    timing_s = 0.0 if has_window else WARMUPS * warmup_s + window_s
    return float(evaluations + timing_s)
