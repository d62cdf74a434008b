"""A warm process looks like a new one to every trial: what trials may have left behind, and how it is undone.

Not undone: a change inside another module (a patched function), and what was compiled or benchmarked on disk.

torch's process-wide switches: read them all, and put them all back.

Independent streams of random numbers out of one seed, and where torch's own are: dropout draws from those.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch.backends import cuda, cudnn, mkldnn


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """The state of the process that a trial may rely on, and may change."""

    environment: dict[str, str]
    directory: str
    collects_garbage: bool
    torch: TorchFlags | None
    """None until something imports torch: it is too slow to be imported for the sake of being cleaned."""

    @staticmethod
    def now() -> ProcessState:
        """The present state."""
        return ProcessState(
            environment=dict(os.environ),
            directory=os.getcwd(),
            collects_garbage=gc.isenabled(),
            torch=_torch_flags(),
        )

    def restore(self) -> None:
        """Bring this state back."""
        os.chdir(self.directory)
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        (gc.enable if self.collects_garbage else gc.disable)()
        if self.torch is not None:
            self.torch.restore()


def _torch_flags() -> TorchFlags | None:
    if "torch" not in sys.modules:
        return None

    return TorchFlags.now()


_slates: dict[str, ProcessState] = {}
"""By trainable: the state just after its first import in this process, which is what a new process would start with."""


def forget() -> None:
    """Let the state that each trainable finds next be the one to return to: another sweep begins in this process."""
    _slates.clear()


def enter(trainable: str, *, seed: int, threads: int) -> None:
    """The slate from which a trainable that has been imported is called: seeded random numbers, so many threads."""
    if trainable in _slates:
        _slates[trainable].restore()
    else:
        _slates[trainable] = ProcessState.now()
    _seed(seed)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()


def leave() -> None:
    """Undo what the trial left, and give back its memory: the next trainable is imported as in a new process."""
    if _slates:
        max(_slates.values(), key=lambda slate: slate.torch is not None).restore()
    _dismiss_compilers()
    _release_memory()


def _seed(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(seed)


def _dismiss_compilers() -> None:
    """End the pool of processes with which torch compiles kernels, if there is one: it belongs to one trial."""
    pool = sys.modules.get("torch._inductor.async_compile")
    if pool is not None:
        pool.shutdown_compile_workers()


def _release_memory() -> None:
    """Give back what the last trial's objects, compiled functions and cached blocks hold."""
    _forget_compiled()
    gc.collect()
    _spare_imports()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            torch._C._cuda_clearCublasWorkspaces()  # one for each stream that a trial has had, 65 MB on an H200
            torch.cuda.empty_cache()


def _forget_compiled() -> None:
    """Only where something was compiled: on a GPU to forget nothing would import the whole of the compilers first."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return
    frames = dynamo.utils.counters["frames"]
    if frames["total"] or dynamo.convert_frame.input_codes.seen:  # what has to be one graph (fullgraph) is not counted
        dynamo.reset()
        frames.clear()


_spared_modules = 0


def _spare_imports() -> None:
    """Take what imports made out of the next collections: it never dies, and is most of what they would look at."""
    global _spared_modules
    if not _spared_modules:
        atexit.register(gc.unfreeze)  # C++ bindings complain of what is not collected at the end
    if len(sys.modules) > _spared_modules:
        _spared_modules = len(sys.modules)
        gc.freeze()


@dataclass(frozen=True, kw_only=True)
class BackgroundWork:
    """The threads and child processes that keep a process busy on their own."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @staticmethod
    def now() -> BackgroundWork:
        """Those alive at present."""
        return BackgroundWork(
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            children=frozenset(child.pid for child in psutil.Process().children()),
        )

    def grown_since(self, before: BackgroundWork) -> bool:
        """Whether somebody is here who was not before."""
        return bool(self.threads - before.threads or self.children - before.children)


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One setting that a trial may change for the whole process."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _attribute(owner: Any, name: str) -> Switch:
    return Switch(read=lambda: getattr(owner, name), write=lambda value: setattr(owner, name, value))


def _set_default_device(device: torch.device) -> None:
    # Naming the CPU would put a mode in front of every call of torch; None is what a new process has.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _passes_over_compile_errors() -> bool:
    compilers = sys.modules.get("torch._dynamo")  # slow to import: whoever has not can have changed nothing
    return compilers is not None and getattr(compilers.config, "suppress_errors", False)


def _pass_over_compile_errors(on: bool) -> None:
    sys.modules["torch._dynamo"].config.suppress_errors = on


SWITCHES = {
    "default_dtype": Switch(read=torch.get_default_dtype, write=torch.set_default_dtype),
    "default_device": Switch(read=torch.get_default_device, write=_set_default_device),
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
    "compile_errors": Switch(read=_passes_over_compile_errors, write=_pass_over_compile_errors),
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

_backends: Any = torch.backends  # its types leave out what is reached by attribute
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
"""Where float32 may be computed in less, from general to special."""


@dataclass(frozen=True, kw_only=True)
class TorchFlags:
    """The value of every switch at one moment."""

    switches: dict[str, Any]
    matmul_precision: str
    cudnn_tf32: bool
    fp32_precisions: tuple[str, ...]

    @staticmethod
    def now() -> TorchFlags:
        """The present values."""
        return TorchFlags(
            switches={name: switch.read() for name, switch in SWITCHES.items()},
            matmul_precision=torch.get_float32_matmul_precision(),
            cudnn_tf32=cudnn.allow_tf32,
            fp32_precisions=tuple(owner.fp32_precision for owner in FP32_OWNERS),
        )

    def restore(self) -> None:
        """Put these values back."""
        for name, switch in SWITCHES.items():
            if switch.read() != self.switches[name]:
                switch.write(self.switches[name])
        torch.set_flush_denormal(False)  # cannot be read, is off in a new process
        # Old and new interface of the float32 precision share state that neither may read once both were used;
        # writing the old one first and the new one over it brings back any mixture.
        torch.set_float32_matmul_precision(self.matmul_precision)
        cudnn.allow_tf32 = self.cudnn_tf32
        for owner, precision in zip(FP32_OWNERS, self.fp32_precisions, strict=True):
            owner.fp32_precision = precision


def derive(seed: int, *purpose: object) -> int:
    """A seed of its own for this purpose: equal for equal arguments everywhere, unrelated to every other's."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A stream on the CPU, so that every kind of device draws the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def random_state() -> dict[str, Any]:
    """Of this process, on the CPU and on every GPU that it sees."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpus}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Go on from there."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
