"""How much of its GPU's memory a rank may take, and how much it took."""

from __future__ import annotations

import sys

BESIDE_GB = 1.0
"""What a process holds of a GPU beside torch's allocator, at most: CUDA's context, cuDNN's and cuBLAS' own."""

LEAST_SHARE = 0.01


def limit(device: str, share: float | None) -> None:
    """Let torch's allocator have this share of the GPU's memory, with what lies beside it; None: whatever there is.

    Beyond it an allocation fails as on a full device, and no other process on the GPU feels it. The trainable's module
    has been imported; a rank whose module does not import torch has nothing to limit.
    """
    if not device.startswith("cuda") or "torch" not in sys.modules:
        return
    import torch

    if share is not None:
        beside = BESIDE_GB * 2**30 / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(LEAST_SHARE, share - beside), 0)
    elif torch.cuda.is_initialized():
        torch.cuda.set_per_process_memory_fraction(1.0, 0)  # the trial before may have had less


def peak(device: str) -> dict[str, float]:
    """`peak_memory_gb`: of the GPU, by the trial's tensors so far; nothing on CPUs, where telemetry looks on."""
    if not device.startswith("cuda"):
        return {}
    import torch

    return {"peak_memory_gb": torch.cuda.max_memory_allocated() / 2**30}


def taken(device: str) -> dict[str, float]:
    """`reserved_memory_gb`: at most, with what lies beside the allocator; `device_memory_gb`: of the whole GPU.

    Nothing where this process has not used its GPU through torch.
    """
    if not device.startswith("cuda") or "torch" not in sys.modules:
        return {}
    import torch

    if not torch.cuda.is_initialized():
        return {}
    reserved = torch.cuda.max_memory_reserved(0) / 2**30 + BESIDE_GB
    whole = torch.cuda.get_device_properties(0).total_memory / 2**30
    return {"reserved_memory_gb": reserved, "device_memory_gb": whole}
