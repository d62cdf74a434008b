"""From the readings of all ranks to the columns of the trial's row; what was not seen all along is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.telemetry.gpu import POWER_CAP, THROTTLING
from orchestrator.telemetry.sampler import TRAINING, WINDOW, Readings
from orchestrator.telemetry.timing_gate import FOREIGN_CPU

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[float, float]]
"""Seconds from and to."""

WHOLE: Spans = [(0.0, math.inf)]

EDGE_S = 0.05
"""How far a span may reach beyond the samples: clocks are read one after the other."""


def spans(readings: Readings, phase: str) -> Spans:
    """When the rank was in this phase."""
    ends = [*(time_s for time_s, _ in readings.phases[1:]), math.inf]
    return [(began, end) for (began, name), end in zip(readings.phases, ends, strict=False) if name == phase]


def timed(readings: Readings) -> Spans:
    """What throughput was measured over: the window, or else the training epochs from the second on.

    All of a trial that names no phases.
    """
    if not readings.phases:
        return WHOLE
    return spans(readings, WINDOW) or spans(readings, TRAINING)[1:]


def trained(readings: Readings) -> Spans:
    """The training part of all epochs; the whole trial where it named no phases."""
    return spans(readings, TRAINING) or WHOLE


class Device:
    """What was seen of one device."""

    def __init__(self, columns: Mapping[str, Sequence[float]]) -> None:
        self._columns = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
        self._time_s = self._columns["time_s"]

    def energy_j(self, over: Spans) -> tuple[float, str]:
        """Taken in these spans, and from what: `counter`, or `power` integrated by trapezoids; NaN and `` without."""
        for source, total in (("counter", self._column("energy_j")), ("power", self._integrated("power_w"))):
            parts = [self._growth(total, *span) for span in over]
            if parts and not np.isnan(parts).any():
                return math.fsum(parts), source
        return math.nan, ""

    def mean(self, name: str, over: Spans) -> float:
        """A column's mean over time in these spans."""
        total, seconds = self._integrated(name), self.seconds(over)
        parts = [self._growth(total, *span) for span in over]
        return math.fsum(parts) / seconds if seconds > 0 else math.nan

    def growth(self, name: str, over: Spans) -> float:
        """By how much a counter rose in these spans."""
        return math.fsum(self._growth(self._column(name), *span) for span in over) if over else math.nan

    def largest(self, name: str) -> float:
        """A column's largest value."""
        column = self._column(name)
        return float(np.nanmax(column)) if len(column) and not np.isnan(column).all() else math.nan

    def seconds(self, over: Spans) -> float:
        """The length of these spans, as far as there are samples."""
        return math.fsum(min(end, self._time_s[-1]) - max(began, self._time_s[0]) for began, end in over)

    def bits(self, name: str, over: Spans) -> int:
        """All bits that a column of flags had in any sample within these spans."""
        column = self._column(name)
        within = np.zeros(len(column), dtype=bool)
        for began, end in over:
            within |= (self._time_s >= began) & (self._time_s <= end)
        seen = column[within & ~np.isnan(column)].astype(np.int64)
        return int(np.bitwise_or.reduce(seen)) if len(seen) else 0

    def _column(self, name: str) -> Floats:
        found = self._columns.get(name)
        return np.full(len(self._time_s), np.nan) if found is None else found

    def _integrated(self, name: str) -> Floats:
        column = self._column(name)
        areas = np.diff(self._time_s) * (column[1:] + column[:-1]) / 2
        return np.concatenate([column[:1] * 0, np.cumsum(areas)])

    def _growth(self, total: Floats, began: float, end: float) -> float:
        """Of a running total, which may be looked at less often than others; NaN where it ends within the span."""
        end = min(end, self._time_s[-1])
        known = ~np.isnan(total)
        time_s, total = self._time_s[known], total[known]
        if not len(time_s) or began < time_s[0] - EDGE_S or end > time_s[-1] + EDGE_S or end < began:
            return math.nan
        at_ends = np.interp([began, end], time_s, total)
        return float(at_ends[1] - at_ends[0])


def figures(readings: Sequence[Readings], metrics: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
    """Columns of the row of a trial with these ranks and these metrics of its own; energy only where it was `alone`.

    `energy_j` is that of the whole training, `power_w` and `energy_j_per_sample` are of the timed part, all of them of
    all devices together; `gpu_util` and `cpu_util` are shares of 1. On machines without GPUs energy and power are the
    processors'.
    """
    found = _of_cpus(readings) | _of_gpus(readings) | _company(readings)
    if alone and not _disturbed(found):
        found |= _energy(readings, metrics)
    return {name: value for name, value in found.items() if not (isinstance(value, float) and math.isnan(value))}


def _disturbed(found: Mapping[str, Any]) -> bool:
    """Whether others had a part in the energy that the devices took."""
    if "gpu_util" in found:
        return bool(found.get("foreign_gpu_processes", 0) > 0)
    return bool(found.get("foreign_cpu", 0) > FOREIGN_CPU)


def _devices(readings: Sequence[Readings], kind: str) -> Iterator[tuple[Readings, Device]]:
    for each in readings:
        for name, columns in each.series.items():
            if name.startswith(kind) and len(columns["time_s"]):
                yield each, Device(columns)


def _of_cpus(readings: Sequence[Readings]) -> dict[str, Any]:
    seen = list(_devices(readings, "cpu"))
    used_s = math.fsum(device.growth("cpu_s", timed(each)) for each, device in seen)
    core_s = math.fsum(device.seconds(timed(each)) * each.cores for each, device in seen)
    hosts = {each.host for each in readings}
    found: dict[str, Any] = {}
    if core_s > 0:
        found["cpu_util"] = used_s / core_s * len(seen) / len(hosts)  # ranks of a host share its cores
    if seen and not any(name.startswith("gpu") for each in readings for name in each.series):
        found["peak_memory_gb"] = max(device.largest("rss_gb") for _, device in seen)
    return found


def _of_gpus(readings: Sequence[Readings]) -> dict[str, Any]:
    seen = list(_devices(readings, "gpu"))
    if not seen:
        return {}
    flags = 0
    for each, device in seen:
        flags |= device.bits("throttle_reasons", timed(each))
    told = [name for bit, name in {**THROTTLING, POWER_CAP: "power cap"}.items() if flags & bit]
    return {
        "gpu_util": _mean([device.mean("gpu_util", timed(each)) for each, device in seen]),
        "sm_clock_mhz": min(device.mean("sm_clock_mhz", timed(each)) for each, device in seen),
        "temperature_c": max(device.largest("temperature_c") for _, device in seen),
        "peak_memory_gb": max(device.largest("memory_used_gb") for _, device in seen),
    } | ({"throttle_reasons": ", ".join(told)} if told else {})


def _energy(readings: Sequence[Readings], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Of the GPUs; on machines without, of the processors: one rank of a host reads them, and none may be missing."""
    devices = list(_devices(readings, "gpu"))
    source_of_cpu = ""
    if not devices:
        devices = [(each, device) for each, device in _devices(readings, "cpu") if "energy_j" in each.series["cpu"]]
        source_of_cpu = "RAPL"
        if {each.host for each, _ in devices} != {each.host for each in readings}:
            return {}
    whole = [device.energy_j(trained(each)) for each, device in devices]
    window = [device.energy_j(timed(each)) for each, device in devices]
    seconds = [device.seconds(timed(each)) for each, device in devices]
    power_w = math.fsum(energy / s if s > 0 else math.nan for (energy, _), s in zip(window, seconds, strict=True))
    found: dict[str, Any] = {"energy_j": math.fsum(energy for energy, _ in whole)}
    if devices and power_w > 0:
        found["power_w"] = power_w
        if metrics.get("samples_per_s") and all(each.phases for each in readings):
            found["energy_j_per_sample"] = power_w / metrics["samples_per_s"]
    sources = {source for _, source in (*whole, *window) if source}
    if not devices or not sources:
        return {}
    return found | {"energy_source": source_of_cpu or " + ".join(sorted(sources))}


def _company(readings: Sequence[Readings]) -> dict[str, Any]:
    """The worst that any rank saw: those of a host see the same."""
    found: dict[str, Any] = {}
    for name in ("foreign_cpu", "throttled_periods", "swapped_pages", "foreign_gpu_processes"):
        seen = [float(each.company[name]) for each in readings if name in each.company]
        if seen:
            found[name] = max(seen)
    for each in readings:
        if "foreign_cpu_by" in each.company and each.company["foreign_cpu"] == found["foreign_cpu"]:
            found["foreign_cpu_by"] = each.company["foreign_cpu_by"]
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
