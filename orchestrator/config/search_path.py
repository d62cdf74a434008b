"""The folders in which configs are found, the shipped one and the user's own, and the config groups in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path

from orchestrator.config.hydra_private import Repository, names_in, repository

PRIMARY = "config"
"""The name of the shipped primary config, from which everything is composed unless the user has their own."""


def config_dir() -> Path:
    """Return the folder of the shipped configs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def shipped_dirs() -> tuple[Path, ...]:
    """Return the folders of shipped configs: the package's, and in a clone also that of the published experiments."""
    # The installed package does not contain the published experiments.
    published = Path(__file__).parents[2] / "studies/conf"
    return (config_dir(), published) if published.is_dir() else (config_dir(),)


_chosen: ContextVar[tuple[str, str | None]] = ContextVar("primary", default=(PRIMARY, None))
"""The primary config of this command line and its folder; as in Hydra, there is one of each."""


@contextmanager
def with_primary(name: str, folder: str | None) -> Iterator[None]:
    """Context in which everything is composed from this primary config, which may be in one of the user's folders."""
    # A program may call for several sweeps, each with its own primary config.
    before = _chosen.set((name, folder))
    try:
        yield
    finally:
        _chosen.reset(before)


def primary() -> str:
    """Return the name of the primary config in use."""
    return _chosen.get()[0]


def primary_folder() -> str | None:
    """Return the folder of the user's own primary config; None for the shipped one."""
    return _chosen.get()[1]


def primary_arguments() -> list[str]:
    """Hydra's flags for the user's own primary config, which Hydra does not find via a search path override."""
    name, folder = _chosen.get()
    return [] if name == PRIMARY else [f"--config-dir={folder}", f"--config-name={name}"]


class Groups:
    """The config groups and their choices, including the user's own on the search path."""

    def __init__(self, search_path: Sequence[str]) -> None:
        """`search_path` has the overrides that add folders of the user."""
        self._search_path = list(search_path)
        self._options: dict[str, list[str]] = {}

    @cached_property
    def _configs(self) -> Repository:
        # Hydra reads the primary config again, so that this is done only if needed, and once.
        return repository(primary(), self._search_path)

    @cached_property
    def names(self) -> list[str]:
        """The names of all groups."""
        return [name for name in names_in("", self._configs, groups=True) if name != "hydra"]

    def options(self, group: str) -> list[str]:
        """Return the choices in a group; those in its subfolders as `folder/choice`, unless a choice has its name."""
        if group not in self._options:
            own = names_in(group, self._configs)
            folders = [folder for folder in names_in(group, self._configs, groups=True) if folder not in own]
            below = [f"{folder}/{name}" for folder in folders for name in names_in(f"{group}/{folder}", self._configs)]
            self._options[group] = own + below
        return self._options[group]
