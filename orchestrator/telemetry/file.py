"""Writes a trial's telemetry as a table with one row per sample of a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.storage.durable import write_whole
from orchestrator.telemetry.device import Floats
from orchestrator.telemetry.readings import Readings

COLUMNS = (
    *("gpu_util", "memory_util", "memory_used_gb", "sm_clock_mhz", "memory_clock_mhz", "temperature_c"),
    *("power_w", "energy_j", "fan", "throttle_reasons", "pcie_tx_gb", "pcie_rx_gb", "nvlink_tx_gb", "nvlink_rx_gb"),
    *("cpu_util", "rss_gb"),
)
"""The columns after `rank`, `host`, `device` (`gpu0`, …, or `cpu` for the process), `time_s` and `phase`.

`time_s` counts from the start of the trial. Utilisations are fractions; `cpu_util` is relative to one core, and so may
exceed 1. Energies and link counters start from 0 at the first sample. `throttle_reasons` are NVML's clock-event
reasons. Empty means not measured.
"""
_COUNTERS = ("energy_j", "pcie_tx_gb", "pcie_rx_gb", "nvlink_tx_gb", "nvlink_rx_gb")


def write(path: Path, readings: Sequence[Readings]) -> None:
    """Write the table, as a whole or not at all. Raises OSError if the disk refuses it."""
    parts = [_table(each, device) for each in readings for device in each.series]
    data = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(parts), data, compression="zstd")
    write_whole(path, data.getvalue().to_pybytes())


def _table(readings: Readings, device: str) -> pa.Table:
    columns = {name: np.asarray(column) for name, column in readings.series[device].items()}
    time_s = columns["time_s"]
    if "cpu_s" in columns:
        columns["cpu_util"] = _rate(columns["cpu_s"], time_s)
    for name in _COUNTERS:
        if name in columns:
            columns[name] = columns[name] - columns[name][0]
    rows = len(time_s)
    empty = np.full(rows, np.nan)
    return pa.table(
        {
            "rank": pa.array([readings.rank] * rows, pa.int32()),
            "host": pa.array([readings.host] * rows, pa.string()),
            "device": pa.array([device] * rows, pa.string()),
            "time_s": pa.array(time_s),
            "phase": pa.array(_phases(readings, time_s), pa.string()),
            **{name: pa.array(columns.get(name, empty), from_pandas=True) for name in COLUMNS},
        }
    )


def _rate(total: Floats, time_s: Floats) -> Floats:
    """The rate of a counter since the previous sample; NaN at the first."""
    steps = np.diff(time_s)
    return np.concatenate([[np.nan], np.diff(total) / np.where(steps > 0, steps, np.nan)])


def _phases(readings: Readings, time_s: Floats) -> list[str]:
    """Each sample's phase; a sample at a boundary belongs to the phase that ends."""
    begins = [began for began, _ in readings.phases]
    names = ["", *(name for _, name in readings.phases)]
    return [names[number] for number in np.searchsorted(begins, time_s, side="left")]
