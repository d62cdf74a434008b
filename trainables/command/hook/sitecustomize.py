# mypy: ignore-errors
"""Started by Python in every process of a trial's command: has its training counted and timed, and its metrics read.

Each process that takes steps writes its counts to `<process id>.json` in the folder SWEEP_HOOK (`sweep_training.py`),
and rows of metrics to `<process id>.jsonl` (`sweep_frameworks.py`). It needs Python 3.9, and torch if the command uses
it. Most processes train nothing: so the modules beside this one are loaded with the first package that they watch.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.machinery
import os
import sys

from sweep_files import FOLDER, write_file

HERE = os.path.dirname(os.path.abspath(__file__))

WATCHED = {
    "torch.optim.optimizer": ("sweep_torch", "watch_optimizers"),
    "torch.utils.data.dataloader": ("sweep_torch", "watch_loaders"),
    "torch.nn.modules.module": ("sweep_torch", "watch_modes"),
    "torch.autograd.grad_mode": ("sweep_torch", "watch_gradients"),
    "torch.serialization": ("sweep_torch", "watch_checkpoints"),
    "transformers.trainer": ("sweep_frameworks", "watch_trainer"),
    "keras.src.callbacks.callback_list": ("sweep_frameworks", "watch_keras"),
    "keras.src.trainers.epoch_iterator": ("sweep_frameworks", "watch_keras_batches"),
    "fastai.learner": ("sweep_frameworks", "watch_fastai"),
}
"""The module and the function in it that is called with a package's module once that has been imported."""


# The base classes of importlib.abc would take longer to import than everything else here.
class Loader:
    """Another loader, followed by the function that watches its module."""

    def __init__(self, loader, watcher, function):
        self.loader, self.watcher, self.function = loader, watcher, function

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            getattr(importlib.import_module(self.watcher), self.function)(module)
        except Exception as error:  # the command must not fail because it is watched
            print(f"sweep hook: {module.__name__}: {type(error).__name__}: {error}", file=sys.stderr)


class Finder:
    """Finds the watched modules as the other finders do, and the hook's modules in their folder."""

    def find_spec(self, name, path=None, target=None):
        # The program may have a folder of this name, or another sys.path by now.
        if name.startswith("sweep_"):
            return importlib.machinery.PathFinder.find_spec(name, [HERE])
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader, *WATCHED[name])
                return spec
        return None


def at_exit():
    """Write the last counts of a process that may have trained."""
    if "torch" in sys.modules or "sweep_training" in sys.modules:
        importlib.import_module("sweep_training").write_last()


def run_next():
    """Run the sitecustomize that this one hides, if there is one."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec  # rarely needed, and slow to import

        spec.loader.exec_module(module_from_spec(spec))


if FOLDER:
    write_file(f"{os.getpid()}.started", "")
    sys.meta_path.insert(0, Finder())
    atexit.register(at_exit)
run_next()
