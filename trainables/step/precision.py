"""The number formats of a training step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What is kept, fed and computed in which format."""

    parameters: torch.dtype = torch.float32
    inputs: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    tf32: bool = False
    """Whether float32 products may round their factors to 10 bits of mantissa (tensor cores, compute capability 8)."""
    scales_loss: bool = False
    """Whether the loss is scaled so that small gradients do not underflow."""

    def casting(self, device: str) -> AbstractContextManager[object]:
        """The context of a forward pass; may be entered again and again, not nested."""
        if self.autocast is None:
            return nullcontext()
        # Weights are cast once a pass either way; a cache of them must not outlive a captured one.
        return torch.autocast(torch.device(device).type, self.autocast, cache_enabled=False)

    def set_flags(self, device: str) -> None:
        """Set the process's switches for training at full speed in this precision; they concern GPUs only."""
        if torch.device(device).type == "cuda":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.backends.cudnn.benchmark = True


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(tf32=True),
    "bf16": Precision(inputs=torch.bfloat16, autocast=torch.bfloat16, tf32=True),
    "fp16": Precision(inputs=torch.float16, autocast=torch.float16, tf32=True, scales_loss=True),
    "fp64": Precision(parameters=torch.float64, inputs=torch.float64),
}


def precision_on(name: str, device: str) -> Precision:
    """The precision of this name, which the settings have checked. Raises ValueError where the device lacks it."""
    on_gpu = torch.device(device).type == "cuda"
    if name == "tf32" and not on_gpu:
        raise ValueError("precision=tf32 is a format of GPUs; the CPU has fp32, bf16, fp16 and fp64")
    if on_gpu and name in ("tf32", "bf16") and torch.cuda.get_device_capability()[0] < 8:
        raise ValueError(f"precision={name} needs compute capability 8.0; {torch.cuda.get_device_name()} has less")
    return PRECISIONS[name]
