"""Files that Hydra writes: whether its output folder can be made, and configs without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from orchestrator.store.secrets import Secrets
from sweeps.errors import ConfigError


def check_writable(hydra: DictConfig, results_dir: Path) -> None:
    """Raise ConfigError if Hydra's output folder or the folder of the sweep's results cannot be made."""
    errors = []
    # The name of Hydra's output folder is known only up to an interpolation: `outputs/${now:%Y-%m-%d}`.
    pattern = cast(dict[str, str], OmegaConf.to_container(hydra.run, resolve=False))["dir"]
    if reason := _why_not_made(Path(pattern.partition("${")[0])):
        errors.append(f"{reason}, where Hydra keeps its log: set hydra.run.dir=FOLDER to put it elsewhere")
    if reason := _why_not_made(results_dir):
        errors.append(f"results_dir: {reason}")
    if errors:
        raise ConfigError(errors)


def _why_not_made(folder: Path) -> str:
    """Return why a folder cannot be created, judged without creating it; empty if it can."""
    above = (folder.absolute(), *folder.absolute().parents)
    there = next(path for path in above if os.path.exists(path))  # False also for lack of permission
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK) else f"{there} cannot be written to"


@contextmanager
def saved_without_secrets() -> Iterator[None]:
    """Context in which configs that Hydra or a sweeper plugin saves contain no secrets.

    Hydra writes the whole config and every override as given, and no option controls where and when. Interpolations
    stay unresolved, because they may have other values in the environment of the reader.
    """
    save = OmegaConf.save

    def save_clean(config: Any, f: Any, resolve: bool = False) -> None:
        plain = OmegaConf.to_container(OmegaConf.create(config), resolve=False)
        save(OmegaConf.create(Secrets.of(plain, plain, os.environ).value(plain)), f)

    OmegaConf.save = staticmethod(save_clean)  # type: ignore[method-assign]
    try:
        yield
    finally:
        OmegaConf.save = staticmethod(save)  # type: ignore[method-assign]
