"""The folders in which configs are found, the shipped one and the user's own, and the config groups in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path

from omegaconf import DictConfig

from orchestrator.config.config_files import PRIMARY, check_file, config_dir, shipped_dirs
from orchestrator.config.hydra_private import Checks, choices_in, groups_in, initialised_at
from orchestrator.config.trust import check_hydra_part
from sweeps.errors import ConfigError

_chosen: ContextVar[tuple[str, str | None]] = ContextVar("primary", default=(PRIMARY, None))
"""The primary config of this command line and its folder; as in Hydra, there is one of each."""


@contextmanager
def with_primary(name: str, folder: str | None) -> Iterator[None]:
    """Context in which everything is composed from this primary config, which may be in one of the user's folders."""
    before = _chosen.set((name, folder))
    try:
        yield
    finally:
        _chosen.reset(before)


def primary() -> str:
    """Return the name of the primary config in use."""
    return _chosen.get()[0]


def primary_arguments() -> list[str]:
    """Hydra's flags for the user's own primary config, which Hydra does not find via a search path override."""
    name, folder = _chosen.get()
    return [] if name == PRIMARY else [f"--config-dir={folder}", f"--config-name={name}"]


def is_search_path(override: str) -> bool:
    """Return whether an override adds config folders of the user."""
    return override.lstrip("+").startswith("hydra.searchpath=")


def folder_of(place: str) -> Path | None:
    """Return the folder named by a search path entry; None for other kinds of entry (`pkg://…`)."""
    kind, scheme, path = place.strip("'\"").rpartition("://")
    return Path(path) if kind in ("file", "") and path else None


def folders(overrides: Sequence[str]) -> list[Path]:
    """Return the user's config folders named in the overrides."""
    return [folder for path in _paths(overrides) for folder in map(folder_of, path.split(",")) if folder]


def with_search_path(overrides: Sequence[str], folder: str | None) -> list[str]:
    """Return the overrides with one more config folder, merged into one search path because Hydra accepts only one.

    Raises ConfigError for missing folders, for which Hydra only warns.
    """
    missing = [f"hydra.searchpath: {place}" for place in folders(overrides) if not place.is_dir()]
    if folder is not None and not Path(folder).is_dir():
        missing.append(f"-cd {folder}")
    if missing:
        raise ConfigError([f"{place}: there is no such config folder" for place in missing])
    if folder is None:
        return list(overrides)
    # The folder of the flag comes first, as with Hydra's own `--config-dir`.
    others = [override for override in overrides if not is_search_path(override)]
    return [*others, f"hydra.searchpath=[{','.join([f'file://{folder}', *_paths(overrides)])}]"]


def _paths(overrides: Sequence[str]) -> list[str]:
    """Return the entries of each search path in the overrides."""
    return [override.partition("=")[2].strip("[]") for override in overrides if is_search_path(override)]


@contextmanager
def initialised() -> Iterator[None]:
    """Context with Hydra initialised for the shipped configs and the user's own primary config."""
    folder = _chosen.get()[1]
    with initialised_at(config_dir(), None if folder is None else Path(folder).absolute(), CHECKS):
        yield


def _check_hydra(hydra: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError if Hydra's section of a composed config names untrusted code, or does not fit this program."""
    check_hydra_part(hydra, overrides)
    errors = list(_shadowed(hydra))
    if hydra.job.chdir:
        errors.append("hydra.job.chdir=true: each trial runs in its folder anyway, and paths are relative to this one")
    if errors:
        raise ConfigError(errors)


CHECKS = Checks(file=check_file, hydra=_check_hydra, folders=shipped_dirs()[1:])
"""What every config passes that Hydra composes."""


def _shadowed(hydra: DictConfig) -> Iterator[str]:
    """Yield a line for every chosen config that exists in the user's folders and among ours: Hydra would take ours.

    Identical copies are allowed.
    """
    folders = [folder for folder in map(folder_of, hydra.searchpath) if folder]
    for group, choice in hydra.runtime.choices.items():
        name = f"{group}/{choice}.yaml"
        shipped = next((folder / name for folder in shipped_dirs() if (folder / name).is_file()), None)
        if shipped is None:
            continue
        # Copies of a shipped file are common, and harmless while they are equal.
        for own in (folder / name for folder in folders):
            if own.is_file() and own.read_bytes() != shipped.read_bytes():
                yield f"{group}={choice}: the shipped config of this name comes before {own}; give yours another name"


class Groups:
    """The config groups and their choices, including the user's own on the search path."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self._search_path = [override for override in overrides if is_search_path(override)]
        self._options: dict[str, list[str]] = {}

    @cached_property
    def names(self) -> list[str]:
        """The names of all groups. Makes Hydra read the primary config again, so call it only if needed."""
        return [name for name in groups_in("", primary(), self._search_path) if name != "hydra"]

    def options(self, group: str) -> list[str]:
        """Return the choices in a group; those in its subfolders as `folder/choice`.

        A folder of the same name as a choice belongs to that choice.
        """
        if group not in self._options:
            place = primary(), self._search_path
            own = choices_in(group, *place)
            folders = [folder for folder in groups_in(group, *place) if folder not in own]
            below = [f"{folder}/{name}" for folder in folders for name in choices_in(f"{group}/{folder}", *place)]
            self._options[group] = own + below
        return self._options[group]
