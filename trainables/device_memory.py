"""A rank's GPU memory: the limit on what it may allocate, and how much it has allocated."""

from __future__ import annotations

import sys

from sweeps.gpus import BESIDE_GB

LEAST_FRACTION = 0.01


def limit(device: str, fraction: float | None) -> None:
    """Limit the process to this fraction of the GPU's memory; None: no limit.

    Beyond the limit an allocation fails as on a full GPU, and other processes on the GPU are not affected. Call it
    after the import of the trainable's module: if that does not import torch, there is nothing to limit.
    """
    if not device.startswith("cuda") or "torch" not in sys.modules:
        return
    import torch

    if fraction is not None:
        beside = BESIDE_GB * 2**30 / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(LEAST_FRACTION, fraction - beside), 0)
    elif torch.cuda.is_initialized():
        torch.cuda.set_per_process_memory_fraction(1.0, 0)  # the trial before may have had less


def peak(device: str) -> dict[str, float]:
    """Return `peak_memory_gb` of the trial's tensors on the GPU so far; empty on CPUs, where telemetry measures it."""
    if not device.startswith("cuda"):
        return {}
    import torch

    return {"peak_memory_gb": torch.cuda.max_memory_allocated() / 2**30}


def taken(device: str) -> dict[str, float]:
    """Return `reserved_memory_gb`, the maximum including `BESIDE_GB`, and the GPU's `device_memory_gb`.

    Empty if this process has not used its GPU through torch.
    """
    if not device.startswith("cuda") or "torch" not in sys.modules:
        return {}
    import torch

    if not torch.cuda.is_initialized():
        return {}
    reserved = torch.cuda.max_memory_reserved(0) / 2**30 + BESIDE_GB
    whole = torch.cuda.get_device_properties(0).total_memory / 2**30
    return {"reserved_memory_gb": reserved, "device_memory_gb": whole}
