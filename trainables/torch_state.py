"""torch's process-wide state: the switches a trial may change, and its random numbers.

`TorchFlags` reads all switches and writes them back. `derive` and `generator` make independent random streams out of
one seed. Importing this module imports torch; `trainables.isolation` does so only where a trial has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One setting that a trial may change for the whole process."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _attribute(owner: Any, name: str) -> Switch:
    return Switch(read=lambda: getattr(owner, name), write=lambda value: setattr(owner, name, value))


SWITCHES = {
    "default_dtype": Switch(read=torch.get_default_dtype, write=torch.set_default_dtype),
    # Naming the CPU would put a mode in front of every call of torch; None is what a new process has.
    "default_device": Switch(
        read=torch.get_default_device,
        write=lambda device: torch.set_default_device(None if device == torch.device("cpu") else device),
    ),
    "grad": Switch(read=torch.is_grad_enabled, write=torch.set_grad_enabled),
    "anomaly": Switch(read=torch.is_anomaly_enabled, write=torch.autograd.set_detect_anomaly),
    "deterministic": Switch(read=torch.get_deterministic_debug_mode, write=torch.set_deterministic_debug_mode),
    "fill_uninitialized": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "autocast_cpu": Switch(
        read=lambda: torch.is_autocast_enabled("cpu"), write=lambda on: torch.set_autocast_enabled("cpu", on)
    ),
    "autocast_cuda": Switch(
        read=lambda: torch.is_autocast_enabled("cuda"), write=lambda on: torch.set_autocast_enabled("cuda", on)
    ),
    "autocast_cache": Switch(read=torch.is_autocast_cache_enabled, write=torch.set_autocast_cache_enabled),
    "cudnn": _attribute(cudnn, "enabled"),
    "cudnn_benchmark": _attribute(cudnn, "benchmark"),
    "cudnn_deterministic": _attribute(cudnn, "deterministic"),
    "fp16_reduction": _attribute(cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "bf16_reduction": _attribute(cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "mkldnn_deterministic": _attribute(mkldnn, "deterministic"),
    "flash_attention": Switch(read=cuda.flash_sdp_enabled, write=cuda.enable_flash_sdp),
    "efficient_attention": Switch(read=cuda.mem_efficient_sdp_enabled, write=cuda.enable_mem_efficient_sdp),
    "math_attention": Switch(read=cuda.math_sdp_enabled, write=cuda.enable_math_sdp),
    "cudnn_attention": Switch(read=cuda.cudnn_sdp_enabled, write=cuda.enable_cudnn_sdp),
}

_backends: Any = torch.backends  # its type stubs lack what is reached by attribute
FP32_OWNERS = (
    _backends,
    _backends.cudnn,
    _backends.cudnn.conv,
    _backends.cudnn.rnn,
    _backends.cuda.matmul,
    _backends.mkldnn,
    _backends.mkldnn.matmul,
    _backends.mkldnn.conv,
    _backends.mkldnn.rnn,
)
"""The owners of an `fp32_precision` setting, from general to special."""


@dataclass(frozen=True, kw_only=True)
class TorchFlags:
    """The value of every switch at one moment."""

    switches: dict[str, Any]
    matmul_precision: str
    cudnn_tf32: bool
    fp32_precisions: tuple[str, ...]

    @staticmethod
    def now() -> TorchFlags:
        """Read the present values."""
        return TorchFlags(
            switches={name: switch.read() for name, switch in SWITCHES.items()},
            matmul_precision=torch.get_float32_matmul_precision(),
            cudnn_tf32=cudnn.allow_tf32,
            fp32_precisions=tuple(owner.fp32_precision for owner in FP32_OWNERS),
        )

    def restore(self) -> None:
        """Write these values back."""
        for name, switch in SWITCHES.items():
            if switch.read() != self.switches[name]:
                switch.write(self.switches[name])
        torch.set_flush_denormal(False)  # cannot be read, is off in a new process
        # The old and the new interface of the float32 precision share state that neither may read once both were used.
        # Writing the old one first and then the new one restores any mixture.
        torch.set_float32_matmul_precision(self.matmul_precision)
        cudnn.allow_tf32 = self.cudnn_tf32
        for owner, precision in zip(FP32_OWNERS, self.fp32_precisions, strict=True):
            owner.fp32_precision = precision


def derive(seed: int, *purpose: object) -> int:
    """Return a seed for this purpose: the same for the same arguments on every machine, unrelated to all others."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """Return a random stream on the CPU, so that training on any device draws the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def random_state() -> dict[str, Any]:
    """Return the state of torch's global generators: of the CPU, and of every visible GPU."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpus}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set the state of torch's global generators."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([generator_state.cpu() for generator_state in state["cuda"]])
