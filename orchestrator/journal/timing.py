"""The timing of a trial as a part of its row, which may come from another attempt than the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_THE_WINDOW = frozenset(
    (
        *("epoch_s", "samples_per_s", "window_s", "window_steps", "slowest_rank", "mfu", "matrix_flops_per_s"),
        *("shares", "rank_samples_per_s", "micro_batch_size"),
        *("gpu_util", "gpu_util_spread", "cpu_util", "sm_clock_mhz", "throttle_reasons"),
        *("power_w", "energy_j_per_sample"),
        *("foreign_cpu", "foreign_cpu_by", "foreign_gpu_processes", "throttled_periods", "swapped_pages"),
    )
)
_OF_A_STEP = "step_"
_TRAINED = ("first_epoch_s", "train_s", "time_to_target_s", "energy_j")
_OF_THE_TRAINING = (*_TRAINED, "energy_source")
"""Which a repetition that ends with its window cannot measure."""
_SPEEDS = ("samples_per_s", "epoch_s", "window_s")
_HARDWARE_AND_SOFTWARE = ("device_model", "driver", "cuda", "cudnn", "nccl", "torch")


def timing_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row or a repetition, as JSON values, that are its timing."""
    metrics = {name: value for name, value in _metrics(row).items() if _is_timing(name, row)}
    return {name: row[name] for name in ("timing", "provenance") if name in row} | {"metrics": metrics}


def with_timing(row: Mapping[str, Any], timed: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the timing of another attempt at the same trial."""
    timing = timing_of(timed)
    others = {name: value for name, value in _metrics(row).items() if not _is_timing(name, timed)}
    return {**row, **timing, "metrics": {**others, **timing["metrics"]}}


def not_timed(row: Mapping[str, Any], timed: Mapping[str, Any]) -> list[str]:
    """What the row's speed rests on and this other attempt did not measure; without a rate it rests on `train_s`."""
    of_row, found = _metrics(row), timing_of(timed)["metrics"]
    needed = [name for name in _SPEEDS if name in of_row] or ["train_s"]
    return [name for name in needed if name not in found]


def not_repeated(row: Mapping[str, Any], timed: Mapping[str, Any]) -> list[str]:
    """The row's times and energies that are still of its training, whose timing was spoiled."""
    return [name for name in _TRAINED if name in _metrics(row) and not _is_timing(name, timed)]


def comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether hardware and software of these provenances are the same, as far as both tell."""
    return all(one[name] == other[name] for name in _HARDWARE_AND_SOFTWARE if name in one and name in other)


def _is_timing(name: str, timed: Mapping[str, Any]) -> bool:
    whole = timed.get("repeats") != "window"
    return name in _OF_THE_WINDOW or name.startswith(_OF_A_STEP) or (whole and name in _OF_THE_TRAINING)


def _metrics(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a record that may be of any form."""
    metrics = row.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}
