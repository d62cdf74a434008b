"""What Hydra itself writes down of configs and overrides, without the secrets in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf

from orchestrator.storage.secrets import Secrets


@contextmanager
def saved_without_secrets() -> Iterator[None]:
    """Whatever Hydra or a sweeper of its plugins saves meanwhile is clean before it reaches the disk.

    They write the whole config and every override as they were given, at a place and a moment that no option changes.
    What is to be interpolated stays unresolved: another reader has another environment.
    """
    save = OmegaConf.save

    def save_clean(config: Any, f: Any, resolve: bool = False) -> None:
        told = OmegaConf.to_container(OmegaConf.create(config), resolve=False)
        save(OmegaConf.create(Secrets.of(told, told, os.environ).value(told)), f)

    OmegaConf.save = staticmethod(save_clean)  # type: ignore[method-assign]
    try:
        yield
    finally:
        OmegaConf.save = staticmethod(save)  # type: ignore[method-assign]
