"""Reads NVML's figures for this machine's GPUs, and for those that this process may use."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from orchestrator.telemetry.sources import GB, Source, Tap

POWER_CAP = "power cap"  # normal for a device under full load, and so no reason to reject a timing

THROTTLING = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x04: POWER_CAP,
}
"""NVML's clock-event reasons that are reported (nvml.h, nvmlClocksEventReasons). All but the power cap disturb timings.

Not reported: idle devices, and clocks set by the user.
"""


def load_nvml() -> ModuleType:
    """Return the module with NVML's bindings."""
    with warnings.catch_warnings():
        # The deprecated package of the same name, which other software may have installed, warns at import.
        warnings.simplefilter("ignore", FutureWarning)
        import pynvml
    module: ModuleType = pynvml
    return module


def gpu_models() -> tuple[str, ...]:
    """Return the model names of this machine's GPUs in the driver's order; empty without GPUs or without a driver."""
    nvml = load_nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        names = [nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(at)) for at in range(nvml.nvmlDeviceGetCount())]
        return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
    finally:
        nvml.nvmlShutdown()


BEFORE_S = 2.0  # how far the first look at other processes goes back: NVML samples them about once a second


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The numbers of other processes on a rank's GPUs; NaN if unknown."""

    busy: float = math.nan  # those that computed, or of which NVML does not know whether they did
    idle: float = math.nan  # those that only hold memory, such as a notebook


class Gpus:
    """A process's GPUs as `gpu0`, `gpu1` … in CUDA's order; `failure` says why GPUs or figures are missing."""

    def __init__(self, count: int, visible: str | None = None, nvml: Any = None) -> None:
        """The first `count` GPUs that CUDA_VISIBLE_DEVICES=`visible` leaves, in the order of the PCI bus."""
        self.taps: dict[str, Tap] = {}
        self._failure = ""
        self._handles: list[Any] = []
        self._looked_us: int | None = None
        if not count:
            return
        try:
            self._nvml = nvml or load_nvml()
            self._nvml.nvmlInit()
            # NVML ignores CUDA_VISIBLE_DEVICES, and counts all GPUs of the machine.
            entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
            for entry in entries[:count] or map(str, range(count)):
                by_index = entry.isdigit()
                find = self._nvml.nvmlDeviceGetHandleByIndex if by_index else self._nvml.nvmlDeviceGetHandleByUUID
                self._handles.append(find(int(entry) if by_index else entry))
        except Exception as error:  # no library, no driver, no such device
            self._handles, self._failure = [], f"NVML: {error or type(error).__name__}"
            return
        absent = (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound)
        self.taps = {
            f"gpu{index}": Tap(_sources(self._nvml, handle), absent) for index, handle in enumerate(self._handles)
        }

    @property
    def failure(self) -> str:
        """The first thing that went wrong; empty if nothing did."""
        return self._failure or next((tap.failure for tap in self.taps.values() if tap.failure), "")

    def neighbours(self, workers: Collection[int] = ()) -> Neighbours:
        """Return which other processes than this one and its workers were on these GPUs since the last call.

        The first call looks back by BEFORE_S. In a container NVML may use other process ids: if none of them exists
        here, the busiest is taken to be this process. If NVML lists no process, it does not know of this one either,
        and nothing is known. Where it does not know how much each process computed, all of them count as busy.
        """
        # NVML keeps samples by the wall clock, in microseconds.
        since_us, self._looked_us = self._looked_us, time.time_ns() // 1000
        on_gpus = [self._neighbours(handle, {os.getpid(), *workers}, since_us) for handle in self._handles]
        known = [on_gpu for on_gpu in on_gpus if on_gpu is not None]
        if not known or len(known) < len(on_gpus):
            return Neighbours()
        # A process may be on several of the GPUs.
        busy = {pid for busy_there, _ in known for pid in busy_there}
        if any(idle_there is None for _, idle_there in known):
            return Neighbours(busy=len(busy))
        idle = {pid for _, idle_there in known for pid in idle_there or ()}
        return Neighbours(busy=len(busy), idle=len(idle - busy))

    def _neighbours(self, handle: Any, ours: set[int], since_us: int | None) -> tuple[set[int], set[int] | None] | None:
        """Return the ids of the other processes on one GPU, busy and idle ones; None for what is not known."""
        try:
            pids = {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        except self._nvml.NVMLError:
            return None
        if not pids:
            return None
        seen = self._sm_use(handle, since_us)
        used = seen or {}
        # A container without the host's process ids: ours cannot be among them by number.
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            ours = {max(pids, key=lambda pid: used.get(pid, 0))}
        others = (pids | {pid for pid, use in used.items() if use > 0}) - ours
        if not any(used.get(pid, 0) > 0 for pid in ours):  # NVML has not seen this process either
            # The first look reaches back only by BEFORE_S, in which NVML may have no sample of this process yet.
            is_too_early = since_us is None and seen is not None
            return None if is_too_early else (others, None)
        busy = {pid for pid in others if used.get(pid, 0) > 0}
        return busy, others - busy

    def _sm_use(self, handle: Any, since_us: int | None) -> Mapping[int, int] | None:
        """Return each process's highest utilisation of the multiprocessors, in percent; None if not supported."""
        used: dict[int, int] = {}
        since_us = since_us or time.time_ns() // 1000 - int(BEFORE_S * 1e6)
        try:
            for sample in self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us):
                used[sample.pid] = max(used.get(sample.pid, 0), int(sample.smUtil))
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None
        except self._nvml.NVMLError:  # no process has computed since then
            return {}
        return used


def _sources(nvml: Any, handle: Any) -> Sequence[Source]:
    """Return one source for each call of NVML."""
    # Some devices do not support some calls, and a source that fails is not read again.

    def of(name: str, function: str, *given: Any, unit: float = 1.0, counts: bool = False) -> Source:
        def read() -> Mapping[str, float]:
            return {name: float(getattr(nvml, function)(handle, *given)) * unit}

        return Source(name=f"NVML {function}", read=read, counts=counts)

    return (
        Source(name="NVML utilisation", read=partial(_utilisation, nvml, handle)),
        Source(name="NVML memory", read=partial(_memory, nvml, handle)),
        of("sm_clock_mhz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        of("memory_clock_mhz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        of("temperature_c", "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        of("power_w", "nvmlDeviceGetPowerUsage", unit=1e-3),
        of("energy_j", "nvmlDeviceGetTotalEnergyConsumption", unit=1e-3, counts=True),
        of("fan", "nvmlDeviceGetFanSpeed", unit=1e-2),
        Source(name="NVML clock-event reasons", read=partial(_throttling, nvml, handle)),
        Source(name="NVML link counters", read=partial(_links, nvml, handle), counts=True),
    )


def _utilisation(nvml: Any, handle: Any) -> Mapping[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_util": rates.gpu / 100, "memory_util": rates.memory / 100}


def _memory(nvml: Any, handle: Any) -> Mapping[str, float]:
    return {"memory_used_gb": float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / GB}


def _throttling(nvml: Any, handle: Any) -> Mapping[str, float]:
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return {"throttle_reasons": float(reasons(handle))}


def _links(nvml: Any, handle: Any) -> Mapping[str, float]:
    all_links, kib = 0xFFFFFFFF, 2**10
    wanted = {
        "pcie_tx_gb": (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
        "pcie_rx_gb": (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
        "nvlink_tx_gb": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, all_links, kib),
        "nvlink_rx_gb": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, all_links, kib),
    }
    values = nvml.nvmlDeviceGetFieldValues(handle, [(field, scope) for field, scope, _ in wanted.values()])
    return {
        name: value.value.ullVal * unit / GB
        for (name, (_, _, unit)), value in zip(wanted.items(), values, strict=True)
        if value.nvmlReturn == nvml.NVML_SUCCESS
    }
