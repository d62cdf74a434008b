"""Where configs are found: the shipped ones, and folders of the user's own; and which of these are passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from sweeps.mistakes import MistakesError

PRIMARY = "config"
"""The shipped primary config's name: what everything is composed from, unless the user has one of their own."""

_chosen: ContextVar[tuple[str, str | None]] = ContextVar("primary", default=(PRIMARY, None))
"""The primary config of this command line, and the folder of its own configs: as in Hydra, there is one of each."""


def config_dir() -> Path:
    """The folder of the shipped configs, found beside this code: a user's own package named conf must not shadow it.

    In an installation it is inside the package, in a checkout beside it.
    """
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@contextmanager
def with_primary(name: str, folder: str | None) -> Iterator[None]:
    """Meanwhile everything is composed from this primary config, which may lie in a folder of the user's own."""
    before = _chosen.set((name, folder))
    try:
        yield
    finally:
        _chosen.reset(before)


def primary() -> str:
    """The name of the primary config that is composed from."""
    return _chosen.get()[0]


def primary_arguments() -> list[str]:
    """Hydra's flags for a primary config of the user's own: in a search path that is an override it finds none."""
    name, folder = _chosen.get()
    return [] if name == PRIMARY else [f"--config-dir={folder}", f"--config-name={name}"]


def is_search_path(override: str) -> bool:
    """Whether an override adds folders of the user's own configs."""
    return override.lstrip("+").startswith("hydra.searchpath=")


def folder_of(place: str) -> Path | None:
    """The folder that an entry of a search path names; None for another kind of place (`pkg://…`)."""
    kind, scheme, path = place.strip("'\"").rpartition("://")
    return Path(path) if kind in ("file", "") and path else None


def folders(overrides: Sequence[str]) -> list[Path]:
    """The folders of the user's own configs that the overrides name."""
    return [folder for path in _paths(overrides) for folder in map(folder_of, path.split(",")) if folder]


def with_search_path(overrides: Sequence[str], folder: str | None) -> list[str]:
    """The overrides with one more folder of configs; Hydra takes a search path only once.

    Raises MistakesError for folders that are not there, which Hydra only warns of.
    """
    missing = [f"hydra.searchpath: {place}" for place in folders(overrides) if not place.is_dir()]
    if folder is not None and not Path(folder).is_dir():
        missing.append(f"-cd {folder}")
    if missing:
        raise MistakesError([f"{each}: there is no such folder of configs" for each in missing])
    if folder is None:
        return list(overrides)
    others = [override for override in overrides if not is_search_path(override)]
    return [*others, f"hydra.searchpath=[{','.join([f'file://{folder}', *_paths(overrides)])}]"]


def _paths(overrides: Sequence[str]) -> list[str]:
    """The search paths that the overrides give, each with its places behind one another."""
    return [override.partition("=")[2].strip("[]") for override in overrides if is_search_path(override)]


@contextmanager
def initialised() -> Iterator[None]:
    """Hydra with the shipped configs, as inside its own main; what a program itself uses it for is left as it was."""
    others, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="orchestrator"):
            if (folder := _chosen.get()[1]) is not None:
                _also_from(Path(folder).absolute())
            yield
    finally:
        GlobalHydra.instance().hydra = others


def _also_from(folder: Path) -> None:
    """As Hydra's own `--config-dir`, behind the shipped configs: a primary config is looked for before any override."""
    loader = cast(ConfigLoaderImpl, GlobalHydra.instance().config_loader())
    places = loader.config_search_path
    places.prepend(provider="command-line", path=f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    loader.repository.initialize_sources(places)


def shadowed(hydra: DictConfig) -> Iterator[str]:
    """A line for every choice made that is a file of the user's own, and of ours: Hydra would take ours.

    `hydra` is Hydra's own part of a composed config. A copy that says the same is no mistake.
    """
    folders = [folder for folder in map(folder_of, hydra.searchpath) if folder]
    for group, choice in hydra.runtime.choices.items():
        shipped = config_dir() / f"{group}/{choice}.yaml"
        for own in (folder / f"{group}/{choice}.yaml" for folder in folders if shipped.is_file()):
            if own.is_file() and own.read_bytes() != shipped.read_bytes():
                yield f"{group}={choice}: the shipped config of this name comes before {own}; give yours another name"
