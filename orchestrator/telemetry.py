"""What NVIDIA's management library knows; the only place that uses it."""

from __future__ import annotations

import warnings


def gpu_models() -> tuple[str, ...]:
    """The model names of this machine's GPUs in the driver's order; empty without GPUs or without a driver."""
    with warnings.catch_warnings():
        # The deprecated package of the same name, which other software may have installed, warns at import.
        warnings.simplefilter("ignore", FutureWarning)
        import pynvml
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
