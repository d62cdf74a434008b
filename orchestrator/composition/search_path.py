"""Where configs are found: the shipped ones, and folders of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

PRIMARY = "config"
"""The name of the primary config; there is no other, because all keys of the orchestrator are in it."""


def config_dir() -> Path:
    """The folder of the shipped configs, found beside this code: a user's own package named conf must not shadow it.

    In an installation it is inside the package, in a checkout beside it.
    """
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def is_search_path(override: str) -> bool:
    """Whether an override adds folders of the user's own configs."""
    return override.lstrip("+").startswith("hydra.searchpath=")


def with_search_path(overrides: Sequence[str], folder: str | None) -> list[str]:
    """The overrides with one more folder of configs; Hydra takes a search path only once."""
    if folder is None:
        return list(overrides)
    own = [override.partition("=")[2].strip("[]") for override in overrides if is_search_path(override)]
    others = [override for override in overrides if not is_search_path(override)]
    return [*others, f"hydra.searchpath=[{','.join([f'file://{folder}', *own])}]"]


@contextmanager
def initialised() -> Iterator[None]:
    """Hydra with the shipped configs, as inside its own main; what a program itself uses it for is left as it was."""
    others, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="orchestrator"):
            yield
    finally:
        GlobalHydra.instance().hydra = others
