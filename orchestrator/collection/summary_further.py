"""Further columns of the summary: what accuracies show against a margin, and what it takes to reach the target."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.collection.by_seed import Differences
from orchestrator.statistics.censoring import median_time
from orchestrator.statistics.equivalence import Difference, power, seeds_to_settle

OF_EQUIVALENCE = ("accuracy_verdict", "accuracy_power", "accuracy_seeds_to_settle")
"""Of the test accuracy against the reference cell's."""

OF_TARGET = (
    *("time_to_target_median_s", "time_to_target_median_s_lo", "time_to_target_median_s_hi"),
    *("time_to_target_expected_s", "statistical_efficiency"),
    *("energy_to_target_j", "cost_to_target", "noise_scale_samples"),
)
"""Of the training time to `trainable.target_accuracy`, and the batch up to which more samples a step help."""


def add_equivalence(cells: pd.DataFrame, ok: pd.DataFrame, margin: float) -> None:
    """Add OF_EQUIVALENCE: the verdict, the power to show equivalence at this n, and the seeds that would settle it.

    The reference cell itself has none of them.
    """
    differences = Differences.of(ok, "accuracy", cells.index, cells["reference_cell_id"])
    pairs = np.minimum(differences.own.n, differences.other.n).astype(int)
    compared = (cells["reference_cell_id"] != cells["cell_id"]).to_numpy()
    tested = [
        _tested(each, margin, int(n)) if wanted else ("", np.nan, None)
        for each, n, wanted in zip(differences.tested(), pairs, compared, strict=True)
    ]
    for place, column in enumerate(OF_EQUIVALENCE):
        cells[column] = [row[place] for row in tested]
    cells["accuracy_seeds_to_settle"] = cells["accuracy_seeds_to_settle"].astype("Int64")


def _tested(difference: Difference, margin: float, n: int) -> tuple[str, float, int | None]:
    verdict = difference.verdict(margin)
    if not verdict:
        return "", np.nan, None
    chance = power(margin, difference.error * n**0.5, n)
    return verdict, chance, seeds_to_settle(difference, margin, n) if verdict == "inconclusive" else None


def add_target(cells: pd.DataFrame, ok: pd.DataFrame, price_per_gpu_hour: float | None) -> None:
    """Add OF_TARGET.

    The median is that of log-normal times, in which seeds that did not reach the target count as longer than their
    training (`censoring`); its upper end is inf where no such end is known. The expected time is that with restarts
    until a seed reaches it: what all seeds spent, over how many reached it (Auger and Hansen, CEC 2005).
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
    scales = ok["noise_scale"] if "noise_scale" in ok else pd.Series(np.nan, index=ok.index)
    scales = pd.to_numeric(scales, errors="coerce").astype("float64")
    cells["noise_scale_samples"] = scales.groupby(ok["cell_id"]).mean().reindex(cells.index)
