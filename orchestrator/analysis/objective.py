"""What the recommendation minimises, for every trial: a time, an energy or a cost, to the target or for the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from orchestrator.config.request import AT_YOUR_PRICE


@dataclass(frozen=True, kw_only=True)
class Measure:
    """An objective, measured. Series are by the trials' index, NaN where a trial has none."""

    name: str
    """In words, such as `time to the target (validation accuracy 0.97)`."""
    unit: str
    values: pd.Series[Any]
    why: str = ""
    """Why it is not the time to a target: `no_target`, or `target_missed` if no trial reached it; empty if it is."""


def time_s(trials: pd.DataFrame, target: float | None, budget: Mapping[str, Any] | None = None) -> Measure:
    """Training time to the target; where no trial reached one, for the budget.

    The time for the budget is its samples at the steady rate: with short budgets the first epoch, which holds
    compilation and start-up, would decide. Trials that report no rate or no samples give their `train_s`; those that
    report a rate alone, the samples that the `budget` (`samples` or `steps`) asks for at that rate.

    A cell of whose n seeds k reached the target counts with the time that all n spent over k, the expected time with
    restarts until one reaches it (Auger and Hansen, "Performance evaluation of an advanced local search evolutionary
    algorithm", IEEE CEC 2005): each of its reached times grows by its share of what the others spent in vain.
    """
    reached = trials["time_to_target_s"].notna()
    if reached.any():
        vain = trials["train_s"].where(~reached).groupby(trials["cell_id"]).transform("sum")
        hits = reached.groupby(trials["cell_id"]).transform("sum")
        measure = "time to the target" if target is None else f"time to the target (validation accuracy {target:g})"
        return Measure(name=measure, unit="s", values=trials["time_to_target_s"] + vain / hits)
    steady = trials["samples"] / trials["samples_per_s"]
    values = steady.fillna(trials["train_s"]).fillna(_asked_samples(trials, budget or {}) / trials["samples_per_s"])
    why = "no_target" if target is None else "target_missed"
    return Measure(name="time for the fixed budget", unit="s", values=values, why=why)


def _asked_samples(trials: pd.DataFrame, budget: Mapping[str, Any]) -> pd.Series[Any]:
    """What each trial was to train on; NaN where the budget is in epochs or seconds."""
    if (samples := budget.get("samples")) is not None:
        return pd.Series(float(samples), trials.index)
    steps = budget.get("steps")
    return trials["global_batch_size"] * (math.nan if steps is None else float(steps))


def measured(
    trials: pd.DataFrame,
    objective: str,
    target: float | None,
    price: float | None,
    budget: Mapping[str, Any] | None = None,
) -> Measure:
    """The objective, by its name; all NaN where it was not measured."""
    times = time_s(trials, target, budget)
    purpose = times.name.removeprefix("time ")
    if objective == "energy":
        power_w = trials["energy_j_per_sample"] * trials["samples_per_s"]
        return replace(times, name=f"energy {purpose}", unit="J", values=power_w * times.values)
    if objective == "cost":
        hours = times.values * trials["gpus_held"] / 3600
        on_cpu = bool((trials["device"] == "cpu").all())
        if price is None or on_cpu:
            unit = "worker-hours" if on_cpu else "GPU-hours"
            return replace(times, name=f"cost {purpose}", unit=unit, values=hours)
        return replace(times, name=f"cost {purpose}", unit=AT_YOUR_PRICE, values=hours * price)
    return times
