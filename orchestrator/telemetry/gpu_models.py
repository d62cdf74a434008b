"""Which GPUs this machine has, as NVIDIA's management library says; only this package uses it."""

from __future__ import annotations

from orchestrator.telemetry.gpu import load_nvml


def gpu_models() -> tuple[str, ...]:
    """The model names of this machine's GPUs in the driver's order; empty without GPUs or without a driver."""
    pynvml = load_nvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
