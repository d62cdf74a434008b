"""The number formats that a training may have, by their names, and whether a device has them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number formats of parameters, inputs and computations."""

    parameters: torch.dtype = torch.float32
    inputs: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    gathers: torch.dtype | None = None
    """The format of the copies of parameters that a sharded model computes on; None: as its parameters are."""
    tf32: bool = False  # whether float32 products may round their factors to 10 bits of mantissa, as tensor cores do
    scales_loss: bool = False  # whether the loss is scaled so that small gradients do not underflow

    @property
    def computes(self) -> torch.dtype:
        """Return the format of matrix products."""
        return self.autocast or self.gathers or self.parameters

    def casting(self, device: str) -> AbstractContextManager[object]:
        """Return the context of a forward pass, which may be entered repeatedly but not nested."""
        if self.autocast is None:
            return nullcontext()
        # Weights are cast once per pass either way; a cache of them must not outlive a captured pass.
        return torch.autocast(torch.device(device).type, self.autocast, cache_enabled=False)

    def set_flags(self, device: str) -> None:
        """Set torch's process-wide flags for training in this precision at full speed; they concern GPUs only."""
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


def precision_on(name: str, device: str, *, master_weights: str) -> Precision:
    """Return the precision of a valid name. Raises ValueError if the device lacks it.

    `master_weights` is the format of parameters; `bf16` is then also the format of all computations.
    """
    on_gpu = torch.device(device).type == "cuda"
    if name == "tf32" and not on_gpu:
        raise ValueError("precision=tf32 is a format of GPUs; the CPU has fp32, bf16, fp16 and fp64")
    if on_gpu and name in ("tf32", "bf16") and torch.cuda.get_device_capability()[0] < 8:
        raise ValueError(f"precision={name} needs compute capability 8.0; {torch.cuda.get_device_name()} has less")
    precision = PRECISIONS[name]
    return precision if master_weights == "fp32" else replace(precision, parameters=torch.bfloat16, autocast=None)
