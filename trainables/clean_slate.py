"""A warm process looks like a new one to every trial: what trials may have left behind, and how it is undone.

Not undone: a change inside another module (a patched function), and what was compiled or benchmarked on disk.
"""

from __future__ import annotations

import atexit
import gc
import os
import random
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from trainables.torch_flags import TorchFlags


@dataclass(frozen=True, kw_only=True)
class Slate:
    """The state of the process that a trial may rely on, and may change."""

    environment: dict[str, str]
    directory: str
    collects_garbage: bool
    torch: TorchFlags | None
    """None until something imports torch: it is too slow to be imported for the sake of being cleaned."""

    @staticmethod
    def now() -> Slate:
        """The present state."""
        return Slate(
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
    from trainables.torch_flags import TorchFlags

    return TorchFlags.now()


_slates: dict[str, Slate] = {}
"""By trainable: the state just after its first import in this process, which is what a new process would start with."""


def forget() -> None:
    """Let the state that each trainable finds next be the one to return to: another sweep begins in this process."""
    _slates.clear()


def enter(trainable: str, *, seed: int, threads: int) -> None:
    """The slate from which a trainable that has been imported is called: seeded random numbers, so many threads."""
    if trainable in _slates:
        _slates[trainable].restore()
    else:
        _slates[trainable] = Slate.now()
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
class Company:
    """The threads and child processes that keep a process busy on their own."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @staticmethod
    def now() -> Company:
        """Those alive at present."""
        return Company(
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            children=frozenset(child.pid for child in psutil.Process().children()),
        )

    def grown_since(self, before: Company) -> bool:
        """Whether somebody is here who was not before."""
        return bool(self.threads - before.threads or self.children - before.children)
