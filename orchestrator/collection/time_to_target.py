"""What it takes a cell to reach `trainable.target_accuracy`, seeds that did not reach it included."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.statistics.censoring import median_time

OF_TARGET = (
    *("time_to_target_median_s", "time_to_target_median_s_lo", "time_to_target_median_s_hi"),
    *("time_to_target_expected_s", "statistical_efficiency", "energy_to_target_j", "cost_to_target"),
)


def add_target(cells: pd.DataFrame, ok: pd.DataFrame, price_per_gpu_hour: float | None) -> None:
    """Add OF_TARGET.

    The median is that of log-normal times, where seeds that missed the target count as longer than their training
    (`censoring`); its upper end is inf if the data set none. The expected time is that with restarts until a seed
    reaches the target: what all seeds spent over how many reached it (Auger and Hansen, CEC 2005).
    `statistical_efficiency` is what is left of `speedup_to_target` once the throughput's speed-up is divided out: the
    baseline's samples to the target over the cell's, start-up included. Energy and cost go by the expected time.
    """
    reached = ok["time_to_target_s"].notna()
    spent = ok["time_to_target_s"].where(reached, ok["train_s"]).groupby(ok["cell_id"]).sum(min_count=1)
    hits = reached.groupby(ok["cell_id"]).sum()
    cells["time_to_target_expected_s"] = (spent / hits.where(hits > 0)).reindex(cells.index)
    medians = {
        cell: median_time(
            seeds["time_to_target_s"].to_numpy(dtype="float64"),
            seeds["train_s"].where(seeds["time_to_target_s"].isna()).to_numpy(dtype="float64"),
        )
        for cell, seeds in ok[ok["cell_id"].map(hits) > 0].groupby("cell_id")
    }
    for end, suffix in (("point", ""), ("lo", "_lo"), ("hi", "_hi")):
        values = {cell: float(getattr(interval, end)) for cell, interval in medians.items()}
        cells[f"time_to_target_median_s{suffix}"] = pd.Series(values, dtype="float64").reindex(cells.index)
    cells["statistical_efficiency"] = cells["speedup_to_target"] / cells["speedup"]
    hours = cells["time_to_target_expected_s"] / 3600 * cells["gpus_held"].where(cells["device"] != "cpu")
    cells["cost_to_target"] = np.nan if price_per_gpu_hour is None else hours * price_per_gpu_hour
    power_w = cells["energy_j_per_sample"] * cells["samples_per_s"]
    cells["energy_to_target_j"] = power_w * cells["time_to_target_expected_s"]
