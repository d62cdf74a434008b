"""Turns the readings of a trial's ranks into columns of its row, and into `telemetry.parquet`.

A figure that was not measured throughout is left out. `Device` has the means and totals of one device's samples over
spans of time, `figures` the columns of the row, `write` the table, and `with_telemetry` adds both to an outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.store.files import write_whole
from orchestrator.store.record import TrialOutcome
from orchestrator.store.results_folder import TELEMETRY
from orchestrator.telemetry.gpu import THROTTLING
from orchestrator.telemetry.sources import TRAINING, WINDOW, Readings
from orchestrator.telemetry.timing_gate import FOREIGN_CPU
from sweeps.trial import TrialSpec

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[float, float]]  # pairs of start and end, in seconds

EDGE_S = 0.05
"""Seconds by which a span may extend beyond the samples, because clocks are not read at exactly the same time."""


class Device:
    """The samples of one device."""

    def __init__(self, columns: Mapping[str, Sequence[float]]) -> None:
        self._columns = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
        self._time_s = self._columns["time_s"]

    def energy_j(self, over: Spans) -> tuple[float, str]:
        """Return the energy used in these spans and its source, `counter` or `power` (trapezoidal rule), or NaN."""
        # The counter misses nothing between two samples, which the power does.
        for source, total in (("counter", self._column("energy_j")), ("power", self._integrated("power_w"))):
            parts = [self._growth(total, *span) for span in over]
            if parts and not np.isnan(parts).any():
                return math.fsum(parts), source
        return math.nan, ""

    def mean(self, name: str, over: Spans) -> float:
        """Return the time-weighted mean of a column in these spans."""
        total, seconds = self._integrated(name), self.seconds(over)
        parts = [self._growth(total, *span) for span in over]
        return math.fsum(parts) / seconds if seconds > 0 else math.nan

    def growth(self, name: str, over: Spans) -> float:
        """Return the increase of a counter in these spans."""
        return math.fsum(self._growth(self._column(name), *span) for span in over) if over else math.nan

    def largest(self, name: str) -> float:
        """Return a column's largest value."""
        column = self._column(name)
        return float(np.nanmax(column)) if len(column) and not np.isnan(column).all() else math.nan

    def seconds(self, over: Spans) -> float:
        """Return the total length of these spans, within the time of the samples."""
        return math.fsum(min(end, self._time_s[-1]) - max(began, self._time_s[0]) for began, end in over)

    def bits(self, name: str, over: Spans) -> int:
        """Return the union of a column's flags over all samples in these spans."""
        column = self._column(name)
        within = np.zeros(len(column), dtype=bool)
        for began, end in over:
            within |= (self._time_s >= began) & (self._time_s <= end)
        seen = column[within & ~np.isnan(column)].astype(np.int64)
        return int(np.bitwise_or.reduce(seen)) if len(seen) else 0

    def _column(self, name: str) -> Floats:
        return self._columns.get(name, np.full(len(self._time_s), np.nan))

    def _integrated(self, name: str) -> Floats:
        column = self._column(name)
        # Time-weighted, because samples are late when the machine is busy.
        areas = np.diff(self._time_s) * (column[1:] + column[:-1]) / 2
        return np.concatenate([column[:1] * 0, np.cumsum(areas)])

    def _growth(self, total: Floats, began: float, end: float) -> float:
        """Return the increase of a running total, which may be sampled less often; NaN if its samples end too early."""
        end = min(end, self._time_s[-1])
        # Counters are read less often than the other figures, so that most of their samples are empty.
        known = ~np.isnan(total)
        time_s, total = self._time_s[known], total[known]
        if not len(time_s) or began < time_s[0] - EDGE_S or end > time_s[-1] + EDGE_S or end < began:
            return math.nan
        at_ends = np.interp([began, end], time_s, total)
        return float(at_ends[1] - at_ends[0])


WHOLE: Spans = [(0.0, math.inf)]


def spans(readings: Readings, phase: str) -> Spans:
    """Return the spans of time in which the rank was in this phase."""
    ends = [*(time_s for time_s, _ in readings.phases[1:]), math.inf]
    return [(began, end) for (began, name), end in zip(readings.phases, ends, strict=False) if name == phase]


def timed(readings: Readings) -> Spans:
    """Return the spans over which throughput was measured: the window, or else the training epochs after the first.

    For a trial that reports no phases it is the whole trial.
    """
    if not readings.phases:
        return WHOLE
    # The first epoch includes compilation, caches and cuDNN's trials.
    return spans(readings, WINDOW) or spans(readings, TRAINING)[1:]


def trained(readings: Readings) -> Spans:
    """Return the training part of all epochs; the whole trial if it reports no phases."""
    return spans(readings, TRAINING) or WHOLE


def figures(readings: Sequence[Readings], metrics: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
    """Return the columns of the row of a trial with these readings and metrics; energy only if it was `alone`.

    `energy_j` covers the whole training, `power_w` and `energy_j_per_sample` the timed part; each is the total of all
    devices. `gpu_util` and `cpu_util` are fractions, and `gpu_util_spread` is the difference between the busiest and
    the least busy GPU. On machines without GPUs, energy and power are those of the processors.
    """
    measured = _of_cpus(readings) | _of_gpus(readings) | _foreign_load(readings)
    # Energy is of the device that computes: on a GPU trial, other programs on the cores do not matter.
    name, tolerated = ("foreign_gpu_processes", 0) if "gpu_util" in measured else ("foreign_cpu", FOREIGN_CPU)
    if alone and not measured.get(name, 0) > tolerated:  # else other processes used some of the energy
        measured |= _energy(readings, metrics)
    return {name: value for name, value in measured.items() if not (isinstance(value, float) and math.isnan(value))}


def _devices(readings: Sequence[Readings], kind: str) -> Iterator[tuple[Readings, Device]]:
    for reading in readings:
        for name, columns in reading.series.items():
            if name.startswith(kind) and len(columns["time_s"]):
                yield reading, Device(columns)


def _of_cpus(readings: Sequence[Readings]) -> dict[str, Any]:
    seen = list(_devices(readings, "cpu"))
    used_s = math.fsum(device.growth("cpu_s", timed(reading)) for reading, device in seen)
    core_s = math.fsum(device.seconds(timed(reading)) * reading.cores for reading, device in seen)
    hosts = {reading.where for reading in readings}
    measured: dict[str, Any] = {}
    if core_s > 0:
        measured["cpu_util"] = used_s / core_s * len(seen) / len(hosts)  # ranks of a host share its cores
    if seen and not any(name.startswith("gpu") for reading in readings for name in reading.series):
        measured["peak_memory_gb"] = max(device.largest("rss_gb") for _, device in seen)
    return measured


def _of_gpus(readings: Sequence[Readings]) -> dict[str, Any]:
    seen = list(_devices(readings, "gpu"))
    if not seen:
        return {}
    flags = 0
    for reading, device in seen:
        flags |= device.bits("throttle_reasons", timed(reading))
    reasons = [name for bit, name in THROTTLING.items() if flags & bit]
    used = [device.mean("gpu_util", timed(reading)) for reading, device in seen]
    measured: dict[str, Any] = {}
    # A program that leaves GPUs idle trained on fewer than the trial has.
    if len(used) > 1 and max(used) >= LEAST_UTIL:
        measured["busy_gpus"] = sum(share >= IDLE_SHARE * max(used) for share in used)
    return (
        measured
        | {
            "gpu_util": math.fsum(used) / len(used),
            "gpu_util_spread": max(used) - min(used) if len(used) > 1 and not any(map(math.isnan, used)) else math.nan,
            "sm_clock_mhz": min(device.mean("sm_clock_mhz", timed(reading)) for reading, device in seen),
            "temperature_c": max(device.largest("temperature_c") for _, device in seen),
            "peak_memory_gb": max(device.largest("memory_used_gb") for _, device in seen),
        }
        | ({"throttle_reasons": ", ".join(reasons)} if reasons else {})
    )


LEAST_UTIL, IDLE_SHARE = 0.05, 0.1
"""If the busiest GPU is busy for this share of the time, others that are below a tenth of it are idle."""


def _energy(readings: Sequence[Readings], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the energy of the GPUs, else of the processors, which one rank per host reads; no host may be missing."""
    devices = list(_devices(readings, "gpu"))
    source_of_cpu = ""
    if not devices:
        devices = [
            (reading, device) for reading, device in _devices(readings, "cpu") if "energy_j" in reading.series["cpu"]
        ]
        source_of_cpu = "RAPL"
        # The counters are those of a host, so that the energy of a host without a reading is missing.
        if {reading.where for reading, _ in devices} != {reading.where for reading in readings}:
            return {}
    whole = [device.energy_j(trained(reading)) for reading, device in devices]
    window = [device.energy_j(timed(reading)) for reading, device in devices]
    seconds = [device.seconds(timed(reading)) for reading, device in devices]
    power_w = math.fsum(energy / s if s > 0 else math.nan for (energy, _), s in zip(window, seconds, strict=True))
    measured: dict[str, Any] = {"energy_j": math.fsum(energy for energy, _ in whole)}
    if devices and power_w > 0:
        measured["power_w"] = power_w
        if metrics.get("samples_per_s") and all(reading.phases for reading in readings):
            measured["energy_j_per_sample"] = power_w / metrics["samples_per_s"]
    sources = {source for _, source in (*whole, *window) if source}
    if not devices or not sources:
        return {}
    return measured | {"energy_source": source_of_cpu or " + ".join(sorted(sources))}


def _foreign_load(readings: Sequence[Readings]) -> dict[str, Any]:
    """Return the highest figures that any rank saw: all ranks of a host see the same."""
    measured: dict[str, Any] = {}
    for name in ("foreign_cpu", "throttled_periods", "swapped_pages", "foreign_gpu_processes", "idle_gpu_processes"):
        seen = [float(reading.foreign_load[name]) for reading in readings if name in reading.foreign_load]
        if seen:
            measured[name] = max(seen)
    for reading in readings:
        if "foreign_cpu_by" in reading.foreign_load and reading.foreign_load["foreign_cpu"] == measured["foreign_cpu"]:
            measured["foreign_cpu_by"] = reading.foreign_load["foreign_cpu_by"]
    return measured


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
    parts = [_table(reading, device) for reading in readings for device in reading.series]
    data = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(parts), data, compression="zstd")
    write_whole(path, data.getvalue().to_pybytes())


def _table(readings: Readings, device: str) -> pa.Table:
    columns = {name: np.asarray(column) for name, column in readings.series[device].items()}
    time_s = columns["time_s"]
    if "cpu_s" in columns:
        steps = np.diff(time_s)
        rates = np.diff(columns["cpu_s"]) / np.where(steps > 0, steps, np.nan)
        columns["cpu_util"] = np.concatenate([[np.nan], rates])
    for name in _COUNTERS:
        if name in columns:
            # A counter runs since the machine booted, and its value alone says nothing.
            columns[name] = columns[name] - columns[name][0]
    rows = len(time_s)
    empty = np.full(rows, np.nan)
    begins = [began for began, _ in readings.phases]
    phases = ["", *(name for _, name in readings.phases)]
    numbers = np.searchsorted(begins, time_s, side="left")  # a sample at a boundary belongs to the phase that ends
    return pa.table(
        {
            "rank": pa.array([readings.rank] * rows, pa.int32()),
            "host": pa.array([readings.host] * rows, pa.string()),
            "device": pa.array([device] * rows, pa.string()),
            "time_s": pa.array(time_s),
            "phase": pa.array([phases[number] for number in numbers], pa.string()),
            **{name: pa.array(columns.get(name, empty), from_pandas=True) for name in COLUMNS},
        }
    )


def with_telemetry(
    outcome: TrialOutcome, readings: Sequence[Readings], trial: TrialSpec, trial_dir: Path
) -> TrialOutcome:
    """Return the outcome with these ranks' figures and machines; write the samples to the trial's folder.

    The trial's own metrics take precedence over telemetry. If the file cannot be written, the note says so.
    """
    if not readings:
        return outcome
    # A total without one of the ranks would be too small, and look like a result.
    complete = len(readings) == trial.gang.ranks
    # Energy is that of the whole device, so that only a trial with its devices to itself has some.
    on_cpu, timing = trial.device == "cpu", trial.timing
    alone = timing == "exclusive" if on_cpu else timing != "shared" and trial.gang.gpus_per_rank >= 1
    seen = figures(readings, outcome.metrics, alone=alone) if complete else {}
    failures = [f"telemetry: {reading.failure}" for reading in readings if reading.failure][:1]
    try:
        if any(reading.ticks for reading in readings):
            write(trial_dir / TELEMETRY, readings)
        else:  # the trial was too short for any sample; the file is an earlier attempt's
            (trial_dir / TELEMETRY).unlink(missing_ok=True)
    except OSError as error:
        failures.append(f"telemetry was not written: {error.strerror or error}")
    idle = int(seen.get("idle_gpu_processes", 0))
    neighbours = [f"{idle} idle {'process' if idle == 1 else 'processes'} of others on the GPUs"] if idle else []
    note = "; ".join(filter(None, [outcome.note, *neighbours, *failures]))
    machines = list(dict.fromkeys(reading.machine for reading in sorted(readings, key=attrgetter("rank"))))
    provenance = {**outcome.provenance, **({"machine": machines[0]} if machines[0] else {})}
    if len(machines) > 1 and all(machines):
        provenance["machines"] = " ".join(machines)
    return replace(outcome, metrics={**seen, **outcome.metrics}, provenance=provenance, note=note)
