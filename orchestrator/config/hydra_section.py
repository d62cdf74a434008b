"""Hydra's own part of the config: whether its output folder can be made, and saving without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import compose
from omegaconf import OmegaConf

from orchestrator.config.compose import WRONG, one_line
from orchestrator.config.search_path import (
    primary,
)
from orchestrator.store.secrets import Secrets
from sweeps.errors import ConfigError


def check_hydra(overrides: Sequence[str], *, results_dir: Path | None = None) -> dict[str, Any]:
    """Return Hydra's own part of the config. Raises ConfigError if anything in it is not trusted.

    With `results_dir`, the folder of the sweep's output, also raises it if that folder or Hydra's own output folder is
    not writable.
    """
    try:
        hydra = compose(primary(), list(overrides), return_hydra_config=True).hydra
    except ConfigError:
        raise
    except WRONG as error:
        raise ConfigError([one_line(error)]) from None
    config = cast(dict[str, Any], OmegaConf.to_container(hydra, resolve=False))
    errors = []
    if results_dir:
        # The name of Hydra's output folder is known only up to an interpolation: `outputs/${now:%Y-%m-%d}`.
        if reason := _why_not_made(Path(config["run"]["dir"].partition("${")[0])):
            errors.append(f"{reason}, where Hydra keeps its log: set hydra.run.dir=FOLDER to put it elsewhere")
        if reason := _why_not_made(results_dir):
            errors.append(f"results_dir: {reason}")
    if errors:
        raise ConfigError(errors)
    return config


def _why_not_made(folder: Path) -> str:
    """Return why a folder cannot be created, judged without creating it; empty if it can."""
    above = (folder.absolute(), *folder.absolute().parents)
    there = next(each for each in above if os.path.exists(each))  # False also for lack of permission
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
