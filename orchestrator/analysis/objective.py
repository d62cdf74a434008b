"""Measures what the recommendation minimises: each trial's time, energy or cost, to the target or for the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from orchestrator.analysis.work import TOLERANCE, is_short
from orchestrator.config.request import Metric, Terms
from sweeps.gpus import cost_of
from sweeps.layout import OWN_RANKS
from sweeps.metric import Target


@dataclass(frozen=True, kw_only=True)
class Measure:
    """An objective, measured. Series are by the trials' index, NaN where a trial has none."""

    name: str
    """In words, such as `time to the target (validation accuracy 0.97)`."""
    unit: str
    values: pd.Series[Any]
    why: str = ""
    """Why it is not the time to a target: `no_target`, or `target_missed` if no trial reached it; empty if it is."""


def time_s(trials: pd.DataFrame, target: Target | None, budget: Mapping[str, Any] | None = None) -> Measure:
    """Return the training time to the target; if no trial reached a target, for the budget.

    The time for the budget is its samples (`budget_samples`) at the steady rate. A trial without a rate or samples has
    its `train_s`; a trial with a rate alone has the samples of the `budget` (`samples` or `steps`) at that rate.

    The time to the target is `to_target_s`.
    """
    if trials["time_to_target_s"].notna().any():
        measure = "time to the target"
        if target is not None:
            measure += f" ({Metric.named(target.metric).label} {target.value:g})"
        return Measure(name=measure, unit="s", values=to_target_s(trials))
    # Not `train_s`: the first epoch, with compilation and start-up, would dominate short budgets. And not the samples
    # taken: a trial that did less work, or a fixed number of steps, is compared over the same work.
    steady = _budget_s(trials)
    samples = (budget or {}).get("samples")
    if samples is None:  # NaN if the budget is in epochs or seconds
        samples = trials["global_batch_size"] * float((budget or {}).get("steps") or math.nan)
    values = steady.fillna(trials["train_s"]).fillna(samples / trials["samples_per_s"])
    why = "no_target" if target is None else "target_missed"
    name = "time for the fixed budget" + (" at each cell's rate" if _lengths_differ(trials) else "")
    return Measure(name=name, unit="s", values=values, why=why)


def to_target_s(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return the time to the target, by row, whose mean is the cell's: with restarts until a seed reaches the target.

    If k of n seeds reached it, the expected time is that of all n over k (Auger and Hansen, "Performance evaluation of
    an advanced local search evolutionary algorithm", IEEE CEC 2005). Each seed that reached the target therefore gets
    an equal share of the time of those that missed it, which have NaN.
    """
    reached = trials["time_to_target_s"].notna()
    missed = steady_s(trials).where(~reached).groupby(trials["cell_id"]).transform("sum")
    return trials["time_to_target_s"] + missed / reached.groupby(trials["cell_id"]).transform("sum")


def missed_s(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return the time of a seed that misses the target, by row: its cell's mean, or the time for the whole budget."""
    is_missed = trials["time_to_target_s"].isna()
    of_cell = steady_s(trials).where(is_missed).groupby(trials["cell_id"]).transform("mean")
    return of_cell.fillna(_budget_s(trials)).fillna(trials["train_s"])


def steady_s(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return the time of each trial's samples at its steady rate; its training time if it has no rate."""
    return (trials["samples"] / trials["samples_per_s"]).fillna(trials["train_s"])


def _budget_s(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return the time of the budget's samples at each trial's rate; without those, of the samples that it took."""
    samples = trials["samples"]
    if "budget_samples" in trials:
        samples = trials["budget_samples"].fillna(samples)
    return samples / trials["samples_per_s"]


def _lengths_differ(trials: pd.DataFrame) -> bool:
    """Return whether trials that did their work had other lengths than the budget's samples, as with fixed steps."""
    if "budget_samples" not in trials:
        return False
    differ = trials["samples"] < (1 - TOLERANCE) * trials["budget_samples"]
    # Less than a batch is missing where batches do not divide the budget.
    by_steps = trials["budget_samples"] - trials["samples"] > trials["global_batch_size"]
    return bool((differ & by_steps & ~is_short(trials["work_done"])).any())


def total_s(trials: pd.DataFrame, kept: pd.Series[bool], took_window: pd.Series[bool]) -> pd.Series[Any]:
    """Return the time from a trial's start in new processes to its end, by row: with compilation and evaluation, too.

    `kept` says which trials ran in processes of an earlier one. The start of new processes is added to their times, as
    the difference between the medians of trials with as many GPUs that had a start and that had none. Otherwise the
    first cell in its processes would look slower. NaN unless the time holds one whole training: after an earlier
    attempt it does not, nor if the training was shorter than its window, as in benchmarks. `took_window` says which
    trials took a window: the others have the timing of another trial.
    """
    # A timed window after the training does not count: without a sweep nobody waits for it.
    steady = steady_s(trials)
    window = pd.to_numeric(trials["window_s"], errors="coerce") if "window_s" in trials else 0.0 * steady
    # The window is an epoch, or steps that a command takes anyway.
    within = (trials["epoch_s"] >= 0.5 * window) | (trials["strategy"] == OWN_RANKS)
    total = trials["wall_s"] - window.where(~within & took_window, 0.0).fillna(0.0)
    whole = (trials["attempt"] == 1) & (within | (steady >= window.fillna(0.0))) & (total >= steady)
    beside = (total - steady).where(whole).astype("float64")
    started, continued = beside.where(~kept), beside.where(kept)
    start = started.groupby(trials["gpus"]).transform("median") - continued.groupby(trials["gpus"]).transform("median")
    # Trials on one GPU often continue in a process of a larger gang, so that the start of none is measured.
    start = start.fillna(started.median() - continued.median()).clip(lower=0.0)
    return (steady + beside + start.where(kept, 0.0)).astype("float64")


def measured(
    trials: pd.DataFrame, terms: Terms, objective: str, *, whole: bool = False, times: Measure | None = None
) -> Measure:
    """Measure the objective with this name; all NaN if it was not measured. `times` are those of `time_s`, if known.

    With `whole`, times and costs include start-up, compilation and evaluation (`total_s`); their power is not known.
    """
    times = times or time_s(trials, terms.target, terms.budget)
    if whole:
        to_target = trials["time_to_target_s"].notna().any()
        total = times.values + trials["total_s"] - steady_s(trials) if to_target else trials["total_s"]
        times = replace(times, name=f"{times.name}, start-up included", values=total.where(times.values.notna()))
    purpose = times.name.removeprefix("time ")
    if objective == "energy":
        power_w = trials["energy_j_per_sample"] * trials["samples_per_s"] * (math.nan if whole else 1.0)
        return replace(times, name=f"energy {purpose}", unit="J", values=power_w * times.values)
    if objective == "cost":
        hours = times.values * trials["gpus_held"] / 3600
        on_cpu = bool((trials["device"] == "cpu").all())
        if terms.report.price_per_gpu_hour is None or on_cpu:
            unit = "worker-hours" if on_cpu else "GPU-hours"
            return replace(times, name=f"cost {purpose}", unit=unit, values=hours)
        return replace(
            times,
            name=f"cost {purpose}",
            unit=terms.report.unit_of_cost,
            values=cost_of(hours, terms.report.price_per_gpu_hour),
        )
    return times
