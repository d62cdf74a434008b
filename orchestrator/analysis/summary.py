"""Turns trials into cells: the summary, with a row for each cell.

The summary has the means of a cell's ok seeds, scaling and efficiency over the baseline, the verdict on the cell's
test accuracy against the reference cell, the time and cost to reach a target accuracy, and a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import MACHINES, MIXED, Comparison, same_machines
from orchestrator.analysis.by_seed import BySeed, Differences
from orchestrator.analysis.objective import to_target_s
from orchestrator.analysis.scaling_loss import OF_SCALING, add_scaling_loss
from orchestrator.analysis.validity import is_invalid, timing_counts, with_valid_timings
from orchestrator.config.settings import ReportSection
from orchestrator.statistics.intervals import (
    Array,
    Interval,
    at_least,
    least_error,
    logs,
    mean_interval,
    proportion_interval,
)
from orchestrator.store.record import OF_STARTED
from orchestrator.telemetry.timing_gate import SUPERLINEAR, Fault
from sweeps.gpus import cost_of
from sweeps.status import Status

OF_TARGET = (*("time_to_target_expected_s", "statistical_efficiency", "energy_to_target_j", "cost_to_target"),)


OF_SOURCES = ("work_source", "rate_source")
"""Columns that name where figures are from."""

SOURCES = ("counted", "declared", "clock", "assumed")
"""Where a figure is from, the most certain source first."""

COLUMNS = (
    *("sweep", "cell_id", "baseline_cell_id", "gpus", "device", "strategy", "global_batch_size", "device_batch_size"),
    *("lr_rule", "lr_multiplier", "lr", "status", "n_seeds", "n_ok"),
    *("first_epoch_s", "epoch_s", "epoch_s_lo", "epoch_s_hi", "train_s"),
    *("samples_per_s", "samples_per_s_lo", "samples_per_s_hi", "speedup", "speedup_lo", "speedup_hi"),
    *("efficiency", "efficiency_lo", "efficiency_hi", "scaling", "accuracy", "accuracy_lo", "accuracy_hi"),
    *("val_accuracy", "time_to_target_s", "speedup_to_target", "wall_s", "energy_j", "energy_j_per_sample", "cost"),
    *("peak_memory_gb", "gpu_util", "power_w", "timing_valid", "note"),
)
"""Columns of `summary.csv` that users' scripts rely on."""

FURTHER = (
    *("reference_cell_id", "accuracy_difference", "accuracy_difference_lo", "accuracy_difference_hi"),
    *("speedup_paired", "n_reached", "accuracy_verdict", *OF_TARGET),
    *("noise_scale_samples", *OF_SCALING, "n_timed"),
    *("epochs", "gpu_clock_mhz", "gpu_temperature_c", "most_co_tenants", "n_processes"),
    *("val_accuracy_lo", "val_accuracy_hi", "same_machines", "timing_fault", "launch_share", "steps"),
    "timed_with",
    *("val_loss", "val_loss_lo", "val_loss_hi", "bits_per_byte", "tokens", "sequence_length"),
    *("tokens_per_s", "mfu_nominal"),
    *("n_collapsed", "total_s", "tokens_per_s_lo", "tokens_per_s_hi", "work_done"),
    *OF_SOURCES,
    "n_nodes",
)
"""Columns after those; the further axes follow."""

_GEOMETRIC = ("first_epoch_s", "epoch_s", "train_s", "samples_per_s", "tokens_per_s", "time_to_target_s", "total_s")
OF_TEXTS = ("val_loss", "bits_per_byte", "tokens", "sequence_length", "tokens_per_s", "mfu_nominal")
"""Figures of language models that every frame has; `val_loss` and `mfu_nominal` are of all trainables."""

_MEANS = ("wall_s", "accuracy", "val_accuracy", "energy_j", "energy_j_per_sample", "gpu_util", "power_w", *OF_TEXTS)
_WITH_INTERVAL = ("epoch_s", "samples_per_s", "tokens_per_s", "accuracy", "val_accuracy", "val_loss")
SAMPLES = {"accuracy": "test_samples", "val_accuracy": "val_samples"}
"""The number of samples of which each accuracy is the share; a trainable of your own may not report it."""
_ORDER = {status.value: order for order, status in enumerate(Status)}


def summary_frame(
    trials: pd.DataFrame, comparison: Comparison, *, report: ReportSection, metrics: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a row for each cell, in the order of first trials: `COLUMNS`, `FURTHER`, the further axes, `metrics`.

    The metrics are columns of `trials`; each has an interval.

    Figures are means over the cell's ok seeds. Times and rates have geometric means and are compared by ratios, so that
    `speedup` is exactly the ratio of two `samples_per_s`. Accuracies, powers, energies and `wall_s` have arithmetic
    means; memory is the maximum. Intervals are Student's t below 10 seeds and bootstrapped from 10 on. Comparisons are
    paired by seed if both cells have the same ok seeds, else Welch's.
    A cell has a time to target only if all ok seeds reached the target: a mean of the others would be too short.
    `cost` is the mean cost of one trial with all its attempts.
    Timed figures use only the `n_timed` seeds with a valid timing, or all seeds if no seed has one.
    """
    ok = with_valid_timings(trials)[trials["status"] == Status.OK.value]
    # Scaling is a ratio, and the mean of logarithms makes the ratio of two means the mean of the ratios.
    ok = ok.assign(**{f"log {column}": logs(ok[column]) for column in _GEOMETRIC})
    cells = _cells(trials, comparison)
    _add_figures(cells, ok)
    cells = cells.copy()  # in one piece: pandas warns of a frame with many inserted columns
    _add_scaling(cells, ok, comparison)
    _add_accuracy_difference(cells, ok, comparison, report.margin)
    cells["cost"] = _cost(cells, cells["wall_s"], report.price_per_gpu_hour)
    add_target(cells, ok, report.price_per_gpu_hour)
    add_scaling_loss(cells, ok, comparison.on_fewest_nodes(cells))
    cells["note"] = cell_notes(cells, trials)
    for metric in metrics:
        if f"{metric}_lo" not in cells:
            _put(cells, metric, mean_interval(BySeed(cells.index, ok).table(_numbers(ok, metric))))
    of_metrics = (f"{metric}{end}" for metric in metrics for end in ("", "_lo", "_hi"))
    columns = dict.fromkeys((*COLUMNS, *FURTHER, *comparison.axis_columns.values(), *of_metrics))
    return cells[list(columns)].reset_index(drop=True)


def rows_of(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows as {column: value}, None for NA."""
    # In a tenth of the time of `to_dict("records")`, which looks at each of the hundred columns by itself.
    rows = frame.to_numpy(dtype="object").tolist()
    return [dict(zip(frame.columns, (None if value is pd.NA else value for value in row), strict=True)) for row in rows]


def further_metrics(cells: pd.DataFrame) -> list[str]:
    """Return the columns of a summary that are metrics beyond the standard ones: each has an interval."""
    standard = (*COLUMNS, *FURTHER, "time_s")  # the report adds the time that the recommendation compares
    return [name for name in cells.columns if f"{name}_lo" in cells.columns and name not in standard]


def further_axes(cells: pd.DataFrame) -> list[str]:
    """Return the columns of a summary that are axes beyond the standard ones. A metric's column has an interval."""
    metrics = {name.removesuffix("_lo") for name in cells.columns if name.endswith("_lo")}
    with_ends = {f"{name}{end}" for name in metrics for end in ("", "_lo", "_hi")}
    return [name for name in cells.columns if name not in (*COLUMNS, *FURTHER, *with_ends)]


_OF_EVERY_SEED = (
    *("sweep", "gpus", "device", "strategy", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier"),
    *("lr", "timed_with"),
)
"""Columns of trials that a cell takes from its first seed that has a value."""


def _cells(trials: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """Return each cell's axes, devices, status and counts of seeds, indexed by `cell_id`."""
    # In the order of first trials, which is the grid's.
    groups = trials.groupby("cell_id", sort=False)
    cells = groups[[*_OF_EVERY_SEED, *comparison.axis_columns.values()]].first()
    models = groups["device_model"].agg(lambda seeds: " + ".join(sorted(set(seeds.dropna()))))
    cells["device_model"] = models.where(models != "", cells["device"])
    cells["device"] = cells["device_model"].where(cells["device"] != "cpu", "cpu")
    cells[MIXED] = groups["device_model"].nunique() > 1
    # A seed that a rule of the sweep left out says nothing about its cell, if other seeds ran.
    order, cell_ids = trials["status"].map(_ORDER), trials["cell_id"]
    of_started = order.where(trials["skipped_by"].isin(OF_STARTED)).groupby(cell_ids).min()
    cells["status"] = of_started.fillna(order.groupby(cell_ids).min()).map(dict(enumerate(_ORDER)))
    cells["n_seeds"] = groups.size()
    cells["n_nodes"] = groups["n_nodes"].max()
    ok = trials["status"] == Status.OK.value
    collapsed = ok & trials["collapsed"].astype("boolean").fillna(False)
    counted = {
        "n_ok": ok,
        "n_collapsed": collapsed,
        "n_reached": ok & trials["time_to_target_s"].notna(),
        "n_timed": timing_counts(trials),
    }
    cells[list(counted)] = pd.DataFrame(counted).groupby(trials["cell_id"]).sum()
    for column, names in zip(MACHINES, (["host"], ["machines", "machine"]), strict=True):
        machines = _machines(trials[ok], *names)
        cells[column] = [machines.get(cell, frozenset()) for cell in cells.index]
    cells["scaling"] = comparison.scaling
    return cells.rename_axis(index=None).assign(cell_id=cells.index)


def _machines(trials: pd.DataFrame, *names: str) -> dict[str, Any]:
    """Return by cell a frozenset of its trials' machines, from the first provenance field that a trial has."""
    columns = [trials[name] for name in (f"provenance.{name}" for name in names) if name in trials]
    machines: dict[str, Any] = {}
    for cell, *values in zip(trials["cell_id"], *columns, strict=True):
        text = next((name for name in values if isinstance(name, str)), "")
        machines[cell] = machines.get(cell, frozenset()).union(text.split())
    return machines


def _add_figures(cells: pd.DataFrame, ok: pd.DataFrame) -> None:
    """Add what follows from a cell's own ok seeds, without a comparison."""
    # Means over the seeds, with their intervals.
    log_of = {column: f"log {column}" for column in _GEOMETRIC}
    by_seed = BySeed(cells.index, ok)
    means = {column: mean_interval(by_seed.table(ok[column])) for column in _MEANS}
    means |= {column: mean_interval(by_seed.table(ok[log])).map(np.exp) for column, log in log_of.items()}
    for column, samples in SAMPLES.items():
        counted = _numbers(ok, samples).where(ok[column].notna())
        means[column] = proportion_interval(by_seed.table(ok[column]), by_seed.table(counted))
    for column, interval in means.items():
        # Only the figures that readers compare have an interval: two columns each would hide the rest.
        cells[column] = interval.point
        if column in _WITH_INTERVAL:
            cells[f"{column}_lo"] = np.maximum(interval.lo, np.minimum(interval.point, 0.0))
            cells[f"{column}_hi"] = interval.hi

    # Resources and work, and how the work is known.
    groups = ok.groupby("cell_id")
    # The least of its seeds: a reader asks whether all of them had enough.
    least = ["epochs", "steps", "work_done"]
    cells[least] = groups[least].min()
    cells["gpus_held"], cells["peak_memory_gb"] = groups["gpus_held"].mean(), groups["peak_memory_gb"].max()
    for column in OF_SOURCES:
        # A cell's figure is as certain as the least certain of its seeds.
        sources = ok[column].astype(pd.CategoricalDtype(list(SOURCES), ordered=True))
        cells[column] = sources.groupby(ok["cell_id"]).max().reindex(cells.index).astype("object")

    # Conditions under which the seeds ran and were timed.
    timed = ok[timing_counts(ok)]
    processes = _processes(timed).groupby(timed["cell_id"]).nunique().reindex(cells.index)
    cells["n_processes"] = processes.where(processes > 0).astype("Int64")
    reported = ("co_tenants", "temperature_c", "sm_clock_mhz", "noise_scale")
    numbers = pd.DataFrame({column: _numbers(ok, column) for column in reported}).groupby(ok["cell_id"])
    cells[["most_co_tenants", "gpu_temperature_c"]] = numbers[["co_tenants", "temperature_c"]].max()
    cells[["gpu_clock_mhz", "noise_scale_samples"]] = numbers[["sm_clock_mhz", "noise_scale"]].mean()
    on_gpus = timed[timed["device"] != "cpu"]
    step_s, host_s = (_numbers(on_gpus, column) for column in ("step_s", "step_host_s"))
    # The share of a step in which GPUs wait for launches.
    cells["launch_share"] = (host_s / step_s).groupby(on_gpus["cell_id"]).mean()

    # Results of the training.
    # A mean of the seeds that reached the target would be too short.
    cells["time_to_target_s"] = cells["time_to_target_s"].where(cells["n_reached"] == cells["n_ok"])

    # Whether the timing counts.
    valid = groups["timing_valid"].any().reindex(cells.index).astype("boolean")
    cells["timing_valid"] = valid & ~(cells[MIXED] & valid.notna())
    cells["timing_fault"] = _faults(cells, ok)


def _faults(cells: pd.DataFrame, ok: pd.DataFrame) -> pd.Series[Any]:
    """Return the fault to remove first for each cell whose timing is not valid; empty for others."""
    order = {fault.value: place for place, fault in enumerate(Fault)}
    of_seeds = ok["timing_fault"].map(order).groupby(ok["cell_id"]).min().reindex(cells.index)
    several = pd.Series(order[Fault.SEVERAL_MODELS], index=cells.index).where(cells[MIXED])
    first = pd.concat([of_seeds, several], axis=1).min(axis=1).where(cells["timing_valid"].eq(False).fillna(False))
    return first.map({place: name for name, place in order.items()}).astype("object")


def _processes(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return the process that timed each trial; NaN if unknown. A trial that loads no torch here starts its own."""
    torch = trials["provenance.torch"] if "provenance.torch" in trials else pd.Series(None, index=trials.index)
    ran = trials["provenance.host"].notna() if "provenance.host" in trials else pd.Series(False, index=trials.index)
    return trials["process"].where(torch.notna() | ~ran, trials["trial_id"])


def _numbers(trials: pd.DataFrame, column: str) -> pd.Series[Any]:
    """Return a column as numbers; NaN if the sweep lacks it."""
    values = trials[column] if column in trials else pd.Series(np.nan, index=trials.index)
    return pd.to_numeric(values, errors="coerce").astype("float64")


def _add_scaling(cells: pd.DataFrame, ok: pd.DataFrame, comparison: Comparison) -> None:
    """Add each cell's baseline, its scaling over that, the column `speedup`, and its efficiency."""
    baseline = comparison.baselines(cells)
    cells["baseline_cell_id"] = baseline
    cells["same_machines"] = same_machines(cells)
    # In logarithms a ratio is a difference, and its interval never reaches below 0.
    differences = Differences.of(ok, "log samples_per_s", cells.index, baseline)
    scaling = differences.interval().map(np.exp)
    # The baseline may have more than one GPU, if one GPU does not hold the model.
    growth = (cells["gpus"] / cells["gpus"].reindex(baseline).to_numpy()).to_numpy(dtype="float64")
    _put(cells, "speedup", scaling)
    _put(cells, "efficiency", scaling.map(lambda times: times / growth))
    # Empty for the baseline itself, which is compared with nothing, and where no interval says how sure it is.
    compared = ~np.isnan(scaling.lo) & (baseline != cells.index).to_numpy(dtype=bool)
    cells["speedup_paired"] = pd.Series(differences.same_seeds, index=cells.index).astype("boolean").where(compared)
    cells["speedup_to_target"] = cells["time_to_target_s"].reindex(baseline).to_numpy() / cells["time_to_target_s"]


def _add_accuracy_difference(cells: pd.DataFrame, ok: pd.DataFrame, comparison: Comparison, margin: float) -> None:
    """Add the difference of each cell's accuracy from its reference's, and the verdict on it."""
    reference = comparison.references(cells)
    cells["reference_cell_id"] = reference
    differences = Differences.of(ok, "accuracy", cells.index, reference)
    interval = differences.interval()
    least = _least_error(cells, ok, interval.point)
    _put(cells, "accuracy_difference", at_least(interval, least))
    # The reference cell has no verdict.
    cells["accuracy_verdict"] = [
        difference.verdict(margin) if own != other else ""
        for own, other, difference in zip(cells["cell_id"], reference, differences.tested(least), strict=True)
    ]


def _least_error(cells: pd.DataFrame, ok: pd.DataFrame, difference: Array) -> Array:
    """Return the least standard error of each cell's accuracy difference from its reference; 0 if it is unknown."""
    # A share of n samples has a binomial error, which two seeds that agree by chance do not show.
    known = ok[ok["accuracy"].notna()]
    total = _numbers(known, SAMPLES["accuracy"]).groupby(known["cell_id"]).agg(lambda seeds: seeds.sum(skipna=False))
    own, other = (total.reindex(ids).to_numpy(dtype="float64") for ids in (cells.index, cells["reference_cell_id"]))
    return np.where(cells["reference_cell_id"] == cells.index, 0.0, least_error(difference, np.minimum(own, other)))


def _put(cells: pd.DataFrame, column: str, interval: Interval) -> None:
    cells[column], cells[f"{column}_lo"], cells[f"{column}_hi"] = interval.point, interval.lo, interval.hi


def add_target(cells: pd.DataFrame, ok: pd.DataFrame, price_per_gpu_hour: float | None) -> None:
    """Add OF_TARGET.

    The expected time assumes restarts until a seed reaches the target: `to_target_s`.
    `statistical_efficiency` is `speedup_to_target / speedup`: the baseline's samples to the target over the cell's.
    Energy and cost use the expected time.
    """
    cells["time_to_target_expected_s"] = to_target_s(ok).groupby(ok["cell_id"]).mean().reindex(cells.index)
    cells["statistical_efficiency"] = cells["speedup_to_target"] / cells["speedup"]
    cells["cost_to_target"] = _cost(cells, cells["time_to_target_expected_s"], price_per_gpu_hour)
    power_w = cells["energy_j_per_sample"] * cells["samples_per_s"]
    cells["energy_to_target_j"] = power_w * cells["time_to_target_expected_s"]


def _cost(cells: pd.DataFrame, held_s: pd.Series[Any], price_per_gpu_hour: float | None) -> pd.Series[Any]:
    """Return the cost of holding each cell's GPUs for this long; NaN without a price, and on CPUs."""
    gpu_hours = held_s / 3600 * cells["gpus_held"].where(cells["device"] != "cpu")
    cost: pd.Series[Any] = cost_of(gpu_hours, price_per_gpu_hour)
    return cost


def cell_notes(cells: pd.DataFrame, trials: pd.DataFrame) -> list[str]:
    """Return the note of each cell, the worst first."""
    of_seeds, causes = _seed_notes(trials), superlinear_causes(cells)
    baseline_is_disturbed = is_invalid(cells["timing_valid"].reindex(cells["baseline_cell_id"])).to_numpy()
    notes = []
    for row, cause, is_disturbed in zip(rows_of(cells), causes, baseline_is_disturbed, strict=True):
        n_ok = row["n_ok"]
        parts = [
            of_seeds.get(row["cell_id"], ""),
            "seeds ran on different device models (cluster.gpu_type chooses one)" if row[MIXED] else "",
            f"target reached by {row['n_reached']} of {n_ok} seeds" if 0 < row["n_reached"] < n_ok else "",
            f"timed from {row['n_timed']} of {n_ok} seeds" if row["n_timed"] < n_ok else "",
            f"{row['n_collapsed']} of {n_ok} seeds collapsed" if row["n_collapsed"] else "",
            "not paired: other ok seeds than the baseline's" if row["speedup_paired"] is False else "",
            f"superlinear: {row['efficiency']:.2f} of the ideal scaling; likely cause: {cause}" if cause else "",
            "the baseline's timing is not valid" if is_disturbed and row["timing_valid"] is not False else "",
            "rerun=failed runs it again" if row["status"] == Status.FAILED.value else "",
        ]
        notes.append("; ".join(filter(None, parts)))
    return notes


def superlinear_causes(cells: pd.DataFrame) -> list[str]:
    """Return the likely cause of each cell's superlinear scaling; empty if its efficiency is at most SUPERLINEAR."""
    sizes = cells[["cell_id", "gpus", "device_batch_size"]].set_index("cell_id")
    of_baseline = sizes.reindex(cells["baseline_cell_id"])
    causes = np.where(
        of_baseline["gpus"] < 1,
        "its baseline has a fraction of a GPU",
        np.where(
            of_baseline["device_batch_size"] > cells["device_batch_size"].to_numpy(),
            "smaller batches per device, which fit caches or avoid swapping",
            "a baseline that caches or memory slow down",
        ),
    )
    return list(np.where(cells["efficiency"] > SUPERLINEAR, causes, ""))


def _seed_notes(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each cell a note of each status of its seeds, the worst first: `1 of 3 seeds oom: CUDA out of memory`.

    The note of a status is that of its first seed that has one.
    """
    ends: dict[str, dict[str, list[str]]] = {}
    for cell_id, status, note in zip(trials["cell_id"], trials["status"], trials["note"], strict=True):
        ends.setdefault(cell_id, {}).setdefault(status, []).append(note)
    notes = {}
    for cell_id, by_status in ends.items():
        seeds = sum(map(len, by_status.values()))
        parts = []
        for status in sorted(by_status, key=lambda status: _ORDER[status]):
            count = len(by_status[status])
            is_of_some = status != Status.OK.value and count < seeds
            whose = f"{count} of {seeds} seeds {status}" if is_of_some else ""
            parts.append(": ".join(filter(None, (whose, next(filter(None, by_status[status]), "")))))
        notes[cell_id] = "; ".join(filter(None, parts))
    return notes
