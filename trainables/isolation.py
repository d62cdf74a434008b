"""Isolation of the trials that one process runs one after another: each finds the process as if it were new.

Not undone are changes inside other modules (a patched function), and what was compiled or benchmarked on disk. torch is
imported here only after a trial has imported it: it is too slow to import only to be reset.
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

from trainables.command.process_tree import is_alive
from trainables.torch_private import clear_cublas_workspaces, forget_compiled, stop_compile_workers

if TYPE_CHECKING:
    from trainables.torch_state import TorchFlags


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """The process-wide state that a trial may rely on, and may change."""

    environment: dict[str, str]
    directory: str
    collects_garbage: bool
    torch: TorchFlags | None  # None until something imports torch

    @staticmethod
    def now() -> ProcessState:
        """Return the present state."""
        flags = None
        if "torch" in sys.modules:
            from trainables.torch_state import TorchFlags

            flags = TorchFlags.now()
        return ProcessState(
            environment=dict(os.environ),
            directory=os.getcwd(),
            collects_garbage=gc.isenabled(),
            torch=flags,
        )

    def restore(self) -> None:
        """Restore this state."""
        os.chdir(self.directory)
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        (gc.enable if self.collects_garbage else gc.disable)()
        if self.torch is not None:
            self.torch.restore()


_frozen_modules = 0  # the number of imported modules that garbage collection leaves out

_initial_states: dict[str, ProcessState] = {}
"""The state of the process just after the first import of each trainable: what a new process would start with."""


def forget() -> None:
    """Forget all initial states: another sweep begins in this process, and each trainable's next state is initial."""
    _initial_states.clear()


def enter(trainable: str, *, seed: int, threads: int) -> None:
    """Prepare the process for an imported trainable: restore its initial state, seed random numbers, set threads."""
    if trainable in _initial_states:
        _initial_states[trainable].restore()
    else:
        _initial_states[trainable] = ProcessState.now()
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()


def leave() -> None:
    """Undo what the trial has left, and free its memory: the next trainable is imported as in a new process."""
    if _initial_states:
        max(_initial_states.values(), key=lambda state: state.torch is not None).restore()
    stop_compile_workers()
    forget_compiled()
    gc.collect()
    # Imported objects never die, and are most of what a collection would examine.
    global _frozen_modules
    if not _frozen_modules:
        atexit.register(gc.unfreeze)  # C++ bindings complain of objects that are not collected at exit
    if len(sys.modules) > _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.freeze()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            clear_cublas_workspaces()
            torch.cuda.empty_cache()


@dataclass(frozen=True, kw_only=True)
class BackgroundWork:
    """The threads and child processes of this process, which may keep it busy after a trial."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @staticmethod
    def now() -> BackgroundWork:
        """Return the threads and child processes that are alive now."""
        return BackgroundWork(
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            children=frozenset(child.pid for child in psutil.Process().children() if is_alive(child)),
        )

    def grown_since(self, before: BackgroundWork) -> bool:
        """Return whether new threads or child processes exist."""
        return bool(self.threads - before.threads or self.children - before.children)
