"""A stand-in for the module that binds NVML, with devices that can be lost at any call."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


class FunctionNotFound(NVMLError):
    pass


class Nvml:
    """Every call is counted; from number `fails_at` on all of them raise. What `lacks` names is not supported."""

    NVMLError, NVMLError_NotSupported, NVMLError_FunctionNotFound = NVMLError, NotSupported, FunctionNotFound
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_SUCCESS = 1, 2, 0, 0
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 197, 198
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def __init__(
        self,
        *,
        fails_at: float = float("inf"),
        lacks: tuple[str, ...] = (),
        pids: tuple[int, ...] = (),
        used: Mapping[int, int] | None = None,
    ):
        """`used`: the utilisation of processes in percent; None if not supported, and {} if none has computed."""
        self._fails_at, self._lacks, self._pids, self.calls = fails_at, lacks, pids, 0
        self.used = used
        self.asked_since: list[int] = []
        self.energy_mj = 5_000_000
        self.devices: list[object] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*given: Any) -> Any:
            self.calls += 1
            if self.calls >= self._fails_at:
                raise NVMLError("GPU is lost")
            if name in self._lacks:
                raise NotSupported("Not Supported")
            return getattr(self, f"_{name}")(*given)

        return call

    def _nvmlInit(self) -> None:
        pass

    def _nvmlShutdown(self) -> None:
        self.devices.append("shut down")

    def _nvmlDeviceGetCount(self) -> int:
        return 2

    def _nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return (b"NVIDIA H100", "NVIDIA H200")[handle]  # bytes from older bindings

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        self.devices.append(index)
        return index

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        self.devices.append(uuid)
        return uuid

    def _nvmlDeviceGetUtilizationRates(self, handle: object) -> object:
        return SimpleNamespace(gpu=75, memory=40)

    def _nvmlDeviceGetMemoryInfo(self, handle: object) -> object:
        return SimpleNamespace(used=3 * 2**30)

    def _nvmlDeviceGetClockInfo(self, handle: object, which: int) -> int:
        return {1: 1980, 2: 3201}[which]

    def _nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int:
        return 61

    def _nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        return 400_000

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        self.energy_mj += 80_000  # 400 W at 5 Hz
        return self.energy_mj

    def _nvmlDeviceGetFanSpeed(self, handle: object) -> int:
        return 30

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:
        return 0x04

    def _nvmlDeviceGetFieldValues(self, handle: object, fields: list[tuple[int, int]]) -> list[object]:
        values = [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=2**20)) for _ in fields]
        values[1].nvmlReturn = 3  # this one is not supported
        return list(values)

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[object]:
        return [SimpleNamespace(pid=ctypes.c_uint(pid).value) for pid in self._pids]

    def _nvmlDeviceGetProcessUtilization(self, handle: object, since_us: int) -> list[object]:
        self.asked_since.append(since_us)
        if self.used is None:
            raise NotSupported("Not Supported")
        if not self.used:
            raise NVMLError("Not Found")
        return [SimpleNamespace(pid=pid, smUtil=use) for pid, use in self.used.items()]
