"""Trials to cells: what the seeds of a cell have in common, and how it compares with its baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.accuracy_verdict import OF_VERDICT, add_accuracy_verdict
from orchestrator.collection.baseline import MACHINES, MIXED, Comparison, same_machines
from orchestrator.collection.by_seed import Differences, by_cell
from orchestrator.collection.cell_notes import cell_notes
from orchestrator.collection.launches import launch_share
from orchestrator.collection.scaling_loss import OF_SCALING, add_scaling_loss
from orchestrator.collection.time_to_target import OF_TARGET, add_target
from orchestrator.collection.timed import counts, only_sound
from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.means import Interval, logs
from orchestrator.telemetry.timing_gate import Fault
from sweeps.status import Status

COLUMNS = (
    *("sweep", "cell_id", "baseline_cell_id", "gpus", "device", "strategy", "global_batch_size", "device_batch_size"),
    *("lr_rule", "lr_multiplier", "lr", "status", "n_seeds", "n_ok"),
    *("first_epoch_s", "epoch_s", "epoch_s_lo", "epoch_s_hi", "train_s"),
    *("samples_per_s", "samples_per_s_lo", "samples_per_s_hi", "speedup", "speedup_lo", "speedup_hi"),
    *("efficiency", "efficiency_lo", "efficiency_hi", "scaling", "accuracy", "accuracy_lo", "accuracy_hi"),
    *("val_accuracy", "time_to_target_s", "speedup_to_target", "wall_s", "energy_j", "energy_j_per_sample", "cost"),
    *("peak_memory_gb", "gpu_util", "power_w", "timing_valid", "note"),
)
"""Columns of `summary.csv` that other people's scripts rely on."""

FURTHER = (
    *("reference_cell_id", "accuracy_difference", "accuracy_difference_lo", "accuracy_difference_hi"),
    *("speedup_paired", "n_reached", *OF_VERDICT, *OF_TARGET, "noise_scale_samples", *OF_SCALING, "n_timed"),
    *("epochs", "gpu_clock_mhz", "gpu_temperature_c", "most_co_tenants", "n_processes"),
    *("val_accuracy_lo", "val_accuracy_hi", "same_machines", "timing_fault", "launch_share", "steps"),
)
"""Columns behind those; then the further axes."""

MARGIN = 0.01
"""By how much accuracies may differ where nobody says otherwise."""

_TIMES = ("first_epoch_s", "epoch_s", "train_s", "samples_per_s", "time_to_target_s")
_MEANS = ("wall_s", "accuracy", "val_accuracy", "energy_j", "energy_j_per_sample", "gpu_util", "power_w")
_WITH_INTERVAL = ("epoch_s", "samples_per_s", "accuracy", "val_accuracy")
_ORDER = {status.value: order for order, status in enumerate(Status)}


def summary_frame(
    trials: pd.DataFrame, comparison: Comparison, *, price_per_gpu_hour: float | None = None, margin: float = MARGIN
) -> pd.DataFrame:
    """One row a cell, in the order of their first trials: `COLUMNS`, `FURTHER`, the further axes.

    Figures are those of the cell's ok seeds. Times and rates are geometric means and compared by ratios, so that
    `speedup` is exactly the ratio of two `samples_per_s`; accuracies and powers are arithmetic means, as are energies
    and `wall_s`, which add up to what is paid; memory is the largest. Intervals are Student's t below 10 seeds and
    bootstrapped from there on; those of comparisons are paired by seed where both cells have the same ok seeds, else
    Welch's.
    A time to target needs all ok seeds to have reached it: a mean of those that did would flatter the cell.
    `cost` is what one trial of the cell has cost: all of its attempts, from start to end.
    Seeds without a valid timing are left out of what is timed where others have one: `n_timed` are left.
    """
    ok = only_sound(trials)[trials["status"] == Status.OK.value]
    ok = ok.assign(**{f"log {column}": logs(ok[column]) for column in _TIMES})
    cells = _cells(trials, comparison)
    _add_figures(cells, ok)
    _add_speedup(cells, ok, comparison)
    _add_accuracy_difference(cells, ok, comparison)
    hours = cells["wall_s"] / 3600 * cells["gpus_held"].where(cells["device"] != "cpu")
    cells["cost"] = np.nan if price_per_gpu_hour is None else hours * price_per_gpu_hour
    add_accuracy_verdict(cells, ok, margin)
    add_target(cells, ok, price_per_gpu_hour)
    add_scaling_loss(cells, ok)
    cells["note"] = cell_notes(cells, trials)
    return cells[[*COLUMNS, *FURTHER, *comparison.axis_columns.values()]].reset_index(drop=True)


def further_axes(cells: pd.DataFrame) -> list[str]:
    """The columns of a summary that are axes beyond the standard ones."""
    return [name for name in cells.columns if name not in (*COLUMNS, *FURTHER)]


def _cells(trials: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """What is known of each cell without its figures, indexed by `cell_id`."""
    groups = trials.groupby("cell_id", sort=False)
    cells = groups.first()
    models = groups["device_model"].agg(lambda seeds: " + ".join(sorted(set(seeds.dropna()))))
    cells["device_model"] = models.where(models != "", cells["device"])
    cells["device"] = cells["device_model"].where(cells["device"] != "cpu", "cpu")
    cells[MIXED] = groups["device_model"].nunique() > 1
    cells["status"] = trials["status"].map(_ORDER).groupby(trials["cell_id"]).min().map(dict(enumerate(_ORDER)))
    cells["n_seeds"] = groups.size()
    ok = trials["status"] == Status.OK.value
    counted = {"n_ok": ok, "n_reached": ok & trials["time_to_target_s"].notna(), "n_timed": counts(trials)}
    for column, true in counted.items():
        cells[column] = true.groupby(trials["cell_id"]).sum()
    for column, names in zip(MACHINES, (["host"], ["machines", "machine"]), strict=True):
        machines = _words(trials[ok], *names)
        cells[column] = [machines.get(cell, frozenset()) for cell in cells.index]
    cells["scaling"] = comparison.scaling
    return cells.rename_axis(index=None).assign(cell_id=cells.index)


def _words(trials: pd.DataFrame, *names: str) -> dict[str, Any]:
    """By cell a frozenset of the words in its trials' provenance, under the first of these names that each tells."""
    columns = [trials[name] for name in (f"provenance.{each}" for each in names) if name in trials]
    found: dict[str, Any] = {}
    for cell, *values in zip(trials["cell_id"], *columns, strict=True):
        text = next((each for each in values if isinstance(each, str)), "")
        found[cell] = found.get(cell, frozenset()).union(text.split())
    return found


def _add_figures(cells: pd.DataFrame, ok: pd.DataFrame) -> None:
    means = {column: mean_interval(by_cell(cells.index, ok, column)) for column in _MEANS}
    means |= {column: mean_interval(by_cell(cells.index, ok, f"log {column}")).map(np.exp) for column in _TIMES}
    for column, interval in means.items():
        cells[column] = interval.point
        if column in _WITH_INTERVAL:
            cells[f"{column}_lo"], cells[f"{column}_hi"] = interval.lo, interval.hi
    groups = ok.groupby("cell_id")
    cells["peak_memory_gb"] = groups["peak_memory_gb"].max()
    cells["epochs"], cells["steps"] = groups["epochs"].min(), groups["steps"].min()
    cells["gpus_held"] = groups["gpus_held"].mean()
    cells["most_co_tenants"] = _numbers(ok, "co_tenants").groupby(ok["cell_id"]).max()
    timed = ok[counts(ok)]
    processes = timed.groupby("cell_id")["process"].nunique().reindex(cells.index)
    cells["n_processes"] = processes.where(processes > 0).astype("Int64")
    cells["gpu_clock_mhz"] = _numbers(ok, "sm_clock_mhz").groupby(ok["cell_id"]).mean()
    cells["gpu_temperature_c"] = _numbers(ok, "temperature_c").groupby(ok["cell_id"]).max()
    on_gpus = timed[timed["device"] != "cpu"]
    step_s, host_s = (_numbers(on_gpus, column) for column in ("step_s", "step_host_s"))
    cells["launch_share"] = launch_share(step_s, host_s, on_gpus["cell_id"])
    cells["noise_scale_samples"] = _numbers(ok, "noise_scale").groupby(ok["cell_id"]).mean()
    cells["time_to_target_s"] = cells["time_to_target_s"].where(cells["n_reached"] == cells["n_ok"])
    valid = groups["timing_valid"].any().reindex(cells.index).astype("boolean")
    cells["timing_valid"] = valid & ~(cells[MIXED] & valid.notna())
    cells["timing_fault"] = _faults(cells, ok)


def _faults(cells: pd.DataFrame, ok: pd.DataFrame) -> pd.Series[Any]:
    """Of each cell whose timing is not valid the fault to mend first; empty elsewhere."""
    order = {fault.value: place for place, fault in enumerate(Fault)}
    of_seeds = ok["timing_fault"].map(order).groupby(ok["cell_id"]).min().reindex(cells.index)
    several = pd.Series(order[Fault.SEVERAL_MODELS], index=cells.index).where(cells[MIXED])
    first = pd.concat([of_seeds, several], axis=1).min(axis=1).where(cells["timing_valid"].eq(False).fillna(False))
    return first.map({place: name for name, place in order.items()}).astype("object")


def _numbers(trials: pd.DataFrame, column: str) -> pd.Series[Any]:
    """A column that not all sweeps have."""
    found = trials[column] if column in trials else pd.Series(np.nan, index=trials.index)
    return pd.to_numeric(found, errors="coerce").astype("float64")


def _add_speedup(cells: pd.DataFrame, ok: pd.DataFrame, comparison: Comparison) -> None:
    baseline = comparison.baselines(cells)
    cells["baseline_cell_id"] = baseline
    cells["same_machines"] = same_machines(cells)
    differences = Differences.of(ok, "log samples_per_s", cells.index, baseline)
    speedup = differences.interval().map(np.exp)
    growth = (cells["gpus"] / cells["gpus"].reindex(baseline).to_numpy()).to_numpy(dtype="float64")
    _put(cells, "speedup", speedup)
    _put(cells, "efficiency", speedup.map(lambda times: times / growth))
    compared = ~np.isnan(speedup.lo) & (baseline != cells.index).to_numpy(dtype=bool)
    cells["speedup_paired"] = pd.Series(differences.same_seeds, index=cells.index).astype("boolean").where(compared)
    at_baseline = cells["time_to_target_s"].reindex(baseline).to_numpy()
    cells["speedup_to_target"] = at_baseline / cells["time_to_target_s"]


def _add_accuracy_difference(cells: pd.DataFrame, ok: pd.DataFrame, comparison: Comparison) -> None:
    reference = comparison.references(cells)
    cells["reference_cell_id"] = reference
    _put(cells, "accuracy_difference", Differences.of(ok, "accuracy", cells.index, reference).interval())


def _put(cells: pd.DataFrame, column: str, interval: Interval) -> None:
    cells[column], cells[f"{column}_lo"], cells[f"{column}_hi"] = interval.point, interval.lo, interval.hi
