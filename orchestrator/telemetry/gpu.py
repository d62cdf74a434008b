"""What NVML says of the GPUs of this machine, and of those that this process may use."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from orchestrator.telemetry.tap import Source, Tap

GB = 2**30

POWER_CAP = "power cap"
"""How a device that is kept busy runs: it belongs to what is timed."""

THROTTLING = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x04: POWER_CAP,
}
"""NVML's clock-event reasons that are told (nvml.h, nvmlClocksEventReasons); all but the power cap spoil a timing.

Not among them: an idle device, and clocks that somebody chose.
"""


def load_nvml() -> ModuleType:
    """The module that binds NVML."""
    with warnings.catch_warnings():
        # The deprecated package of the same name, which other software may have installed, warns at import.
        warnings.simplefilter("ignore", FutureWarning)
        import pynvml
    module: ModuleType = pynvml
    return module


def gpu_models() -> tuple[str, ...]:
    """The model names of this machine's GPUs in the driver's order; empty without GPUs or without a driver."""
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


class Gpus:
    """Those of a process, as `gpu0`, `gpu1` … in CUDA's order; `failure` says why there are none, or fewer figures."""

    def __init__(self, count: int, visible: str | None = None, nvml: Any = None) -> None:
        """The first `count` that a CUDA_VISIBLE_DEVICES of this value leaves, counted in the order of the PCI bus."""
        self.taps: dict[str, Tap] = {}
        self._failure = ""
        self._handles: list[Any] = []
        if not count:
            return
        try:
            self._nvml = nvml or load_nvml()
            self._nvml.nvmlInit()
            self._handles = [_handle(self._nvml, entry) for entry in _entries(count, visible)]
        except Exception as error:  # no library, no driver, no such device
            self._failure = f"NVML: {error or type(error).__name__}"
            return
        absent = (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound)
        self.taps = {
            f"gpu{index}": Tap(_sources(self._nvml, handle), absent) for index, handle in enumerate(self._handles)
        }

    @property
    def failure(self) -> str:
        """The first thing that went wrong; empty if nothing did."""
        return self._failure or next((tap.failure for tap in self.taps.values() if tap.failure), "")

    def foreign_processes(self) -> float:
        """Processes that compute on these GPUs besides this one; NaN where NVML does not say.

        In a container NVML may go by other numbers: where it names no process of this machine, one of them is this one.
        Where it names none at all, it does not even say that this one computes.
        """
        found = 0
        for handle in self._handles:
            try:
                pids = [process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            except self._nvml.NVMLError:
                return math.nan
            if not pids:
                return math.nan
            is_one_of_them = os.getpid() in pids or not any(os.path.exists(f"/proc/{pid}") for pid in pids)
            found += max(0, len(pids) - is_one_of_them)
        return float(found) if self._handles else math.nan


def _entries(count: int, visible: str | None) -> list[str]:
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()] if visible else []
    return entries[:count] or [str(index) for index in range(count)]


def _handle(nvml: Any, entry: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(entry)) if entry.isdigit() else nvml.nvmlDeviceGetHandleByUUID(entry)


def _sources(nvml: Any, handle: Any) -> Sequence[Source]:
    """One for each call, because each may be missing on some device."""

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
    found = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_util": found.gpu / 100, "memory_util": found.memory / 100}


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
