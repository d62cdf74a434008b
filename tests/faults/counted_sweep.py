"""A small sweep in this process, whose trainable counts its executions and of which one seed fails."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
import pytest

from orchestrator.cli.sweep_checks import checked
from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.config.compose import Composition
from orchestrator.config.search_path import config_dir
from orchestrator.run import driver

OVERRIDES = (
    *("sweep=batch_scaling", "backend=inprocess", "trainable=function", "retries=1", "report.html=false"),
    *("trainable._target_=counted_training:train", "trusted_modules=[counted_training]", "trainable.lr=0.1"),
    *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]"),
)


class NoWatcher:
    """A watcher that does nothing: processes are not tested here."""

    def __init__(self, root: Path, received: tuple[int, int]) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


@contextmanager
def counted_sweep(folder: Path) -> Iterator[Callable[..., CheckedSweep]]:
    """Context with the trainable in `folder`, and the function that configures the sweep with further overrides."""
    shutil.copy(Path(__file__).with_name("counted_training.py"), folder)
    with pytest.MonkeyPatch.context() as patched, hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        patched.syspath_prepend(folder)
        patched.setattr(driver, "Watcher", NoWatcher)
        yield lambda *overrides: checked(Composition((*OVERRIDES, *overrides)))
