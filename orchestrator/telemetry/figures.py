"""Turns the readings of all ranks into columns of the trial's row, without figures not measured throughout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.telemetry.device import Device, Spans
from orchestrator.telemetry.gpu import THROTTLING
from orchestrator.telemetry.readings import TRAINING, WINDOW, Readings
from orchestrator.telemetry.timing_gate import FOREIGN_CPU

WHOLE: Spans = [(0.0, math.inf)]


def spans(readings: Readings, phase: str) -> Spans:
    """The spans of time in which the rank was in this phase."""
    ends = [*(time_s for time_s, _ in readings.phases[1:]), math.inf]
    return [(began, end) for (began, name), end in zip(readings.phases, ends, strict=False) if name == phase]


def timed(readings: Readings) -> Spans:
    """The spans over which throughput was measured: the window, or else the training epochs from the second on.

    The whole trial if it reports no phases.
    """
    if not readings.phases:
        return WHOLE
    return spans(readings, WINDOW) or spans(readings, TRAINING)[1:]


def trained(readings: Readings) -> Spans:
    """The training part of all epochs; the whole trial if it reports no phases."""
    return spans(readings, TRAINING) or WHOLE


def figures(readings: Sequence[Readings], metrics: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
    """Columns of the row of a trial with these readings and its own metrics; energy only if it was `alone`.

    `energy_j` covers the whole training, `power_w` and `energy_j_per_sample` the timed part; each is the total of all
    devices. `gpu_util` and `cpu_util` are fractions, and `gpu_util_spread` is the difference between the busiest and
    the least busy GPU. On machines without GPUs, energy and power are those of the processors.
    """
    found = _of_cpus(readings) | _of_gpus(readings) | _foreign_load(readings)
    if alone and not _disturbed(found):
        found |= _energy(readings, metrics)
    return {name: value for name, value in found.items() if not (isinstance(value, float) and math.isnan(value))}


def _disturbed(found: Mapping[str, Any]) -> bool:
    """Whether other processes contributed to the devices' energy."""
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
    hosts = {each.where for each in readings}
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
    reasons = [name for bit, name in THROTTLING.items() if flags & bit]
    used = [device.mean("gpu_util", timed(each)) for each, device in seen]
    return {
        "gpu_util": _mean(used),
        "gpu_util_spread": max(used) - min(used) if len(used) > 1 and not any(map(math.isnan, used)) else math.nan,
        "sm_clock_mhz": min(device.mean("sm_clock_mhz", timed(each)) for each, device in seen),
        "temperature_c": max(device.largest("temperature_c") for _, device in seen),
        "peak_memory_gb": max(device.largest("memory_used_gb") for _, device in seen),
    } | ({"throttle_reasons": ", ".join(reasons)} if reasons else {})


def _energy(readings: Sequence[Readings], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Energy of the GPUs, else of the processors, which one rank per host reads; no host may be missing."""
    devices = list(_devices(readings, "gpu"))
    source_of_cpu = ""
    if not devices:
        devices = [(each, device) for each, device in _devices(readings, "cpu") if "energy_j" in each.series["cpu"]]
        source_of_cpu = "RAPL"
        if {each.where for each, _ in devices} != {each.where for each in readings}:
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


def _foreign_load(readings: Sequence[Readings]) -> dict[str, Any]:
    """The highest figures that any rank saw: all ranks of a host see the same."""
    found: dict[str, Any] = {}
    for name in ("foreign_cpu", "throttled_periods", "swapped_pages", "foreign_gpu_processes"):
        seen = [float(each.foreign_load[name]) for each in readings if name in each.foreign_load]
        if seen:
            found[name] = max(seen)
    for each in readings:
        if "foreign_cpu_by" in each.foreign_load and each.foreign_load["foreign_cpu"] == found["foreign_cpu"]:
            found["foreign_cpu_by"] = each.foreign_load["foreign_cpu_by"]
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
