"""How throughput scales, in Markdown: the cost of more GPUs, forecasts of the next counts, and the critical batch."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.summary import further_axes
from orchestrator.analysis.validity import is_invalid, with_valid_timings
from orchestrator.statistics.critical_batch import BatchEconomy, TooFewBatchesError
from orchestrator.statistics.extrapolation import COUNTS, NoExtrapolationError, extrapolated, paired
from orchestrator.statistics.intervals import Interval
from orchestrator.store.trial_metrics import samples_to_target
from orchestrator.text import numbers
from orchestrator.text.text_tables import Document, TextTable
from sweeps.status import Status

_MOST_GPUS = 1e9
"""A larger number of GPUs in a record is an error."""


def scaling(trials: pd.DataFrame, cells: pd.DataFrame) -> Document:
    """Return the document: throughput by GPUs of cells that are alike, and the critical batch."""
    fixed = FIXED_SIDE[str(cells["scaling"].iloc[0])]
    key = ["device", fixed, "lr_rule", "lr_multiplier", *further_axes(cells)]
    known = cells[(cells["status"] == Status.OK.value) & cells["samples_per_s"].notna()]
    shown = [column for column in key if column == fixed or known[column].nunique(dropna=False) > 1]
    groups = [group for _, group in known.groupby(key, sort=False, dropna=False) if group["gpus"].nunique() >= COUNTS]
    count = len(known.groupby(key, sort=False, dropna=False)) - len(groups)
    few = numbers.counted(count, "group of cells has", "groups of cells have")
    left_out = [f"{few} fewer than {COUNTS} GPU counts, which are too few for a forecast."] if few else []
    invalid = numbers.counted(int(is_invalid(known["timing_valid"]).sum()), "cell has", "cells have")
    doubtful = [f"{invalid} no valid timing; their throughputs are used nevertheless."] if invalid else []
    tables = []
    if groups:
        growth = TextTable(
            name="scaling",
            title="Scaling",
            about=[
                "Extra GPU time: how much more a sample takes than on the GPU count before. The throughputs on 2 and 4"
                " times as many GPUs follow from how it grew (brackets: 90% intervals)."
                " mode=forecast with forecast.gpus has the cells on any GPU count."
            ],
            frame=pd.DataFrame([_row(trials, group, shown) for group in groups]),
            remarks=[*left_out, *doubtful],
        )
        tables.append(growth)
    batches = _critical_batches(trials, cells)
    if len(batches):
        critical = TextTable(
            name="critical_batch",
            title="Critical batch",
            about=[
                "The global batch, in samples, above which a larger batch hardly saves steps (McCandlish et al. 2018)."
                " It is estimated from the samples up to the target at each batch, E = E_min (1 + B/B_crit), and from"
                " the noise of gradients, which gives only its order of magnitude."
            ],
            frame=batches,
        )
        tables.append(critical)
    without = [] if groups else [line for sentence in left_out for line in (sentence, "")]
    content = [*without, *(line for table in tables for line in table.markdown())]
    return Document(text="\n".join(["# Scaling", "", *content]), tables=tables)


def _row(trials: pd.DataFrame, group: pd.DataFrame, shown: list[str]) -> dict[str, Any]:
    own = trials[trials["cell_id"].isin(group["cell_id"]) & (trials["status"] == Status.OK.value)]
    # A damaged journal may hold any number.
    own = own[
        (with_valid_timings(own)["samples_per_s"] > 0) & (pd.to_numeric(own["gpus"], errors="coerce") <= _MOST_GPUS)
    ]
    known = own.groupby(["gpus", "seed"], as_index=False)["samples_per_s"].mean()
    rates: dict[float, dict[int, float]] = {}
    for gpus, seed, rate in zip(known["gpus"], known["seed"], known["samples_per_s"], strict=True):
        rates.setdefault(gpus, {})[seed] = rate
    row = {
        "cells": ", ".join(f"{column}={numbers.config_value(group.iloc[0][column])}" for column in shown),
        "GPUs": ", ".join(f"{count:g}" for count in rates),
    }
    try:
        same_seeds = paired(rates)
    except NoExtrapolationError as error:
        return row | {"extra GPU time": ""} | {_FORECAST.format(factor): str(error) for factor in _FACTORS}
    # Samples per GPU-second at each count, as the geometric mean of the seeds.
    per_gpu = [math.exp(np.log(same_seeds[count]).mean()) / count for count in rates]
    extra_times = ", ".join(f"{before / after - 1:.0%}" for before, after in pairwise(per_gpu))
    row["extra GPU time"] = extra_times
    for factor in _FACTORS:
        try:
            row[_FORECAST.format(factor)] = _interval(extrapolated(same_seeds, factor * max(same_seeds)))
        except NoExtrapolationError as error:
            row[_FORECAST.format(factor)] = str(error)
    return row


_FACTORS = (2, 4)
_FORECAST = "{}× GPUs [samples/s]"


def _critical_batches(trials: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    key = ["lr_rule", "lr_multiplier", *further_axes(cells)]
    rows = []
    for values, group in cells[cells["status"] == Status.OK.value].groupby(key, sort=False, dropna=False):
        reached = trials[trials["cell_id"].isin(group["cell_id"]) & trials["time_to_target_s"].notna()]
        batches = reached["global_batch_size"].to_numpy(dtype="float64")
        # In a frame, what a trial did not report is NaN instead of absent.
        known = [{str(name): value for name, value in row.dropna().items()} for _, row in reached.iterrows()]
        samples = np.array([samples_to_target(metrics) for metrics in known], dtype="float64")
        scale = float(group["noise_scale_samples"].mean())
        try:
            by_samples = _interval(BatchEconomy.of(batches, samples).critical_batch())
        except TooFewBatchesError:
            by_samples = ""
        if by_samples or not math.isnan(scale):
            row = {
                "cells": ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True)),
                "by samples to the target": by_samples,
                "by the noise of gradients": "" if math.isnan(scale) else numbers.number(scale),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def _interval(interval: Interval) -> str:
    """Return the point with its ends, which may be infinite."""
    point, lo, hi = (float(end) for end in (interval.point, interval.lo, interval.hi))
    # Without a critical batch in sight, the data bound it from below.
    if math.isinf(point):
        return f"above {numbers.number(lo)}" if math.isfinite(lo) else "beyond what was tried"
    return numbers.with_interval(
        point, lo, hi, lambda end: numbers.number(end) if math.isfinite(end) else "no upper end"
    )
