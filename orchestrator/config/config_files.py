"""The rules for config files: which keys a file may set, since it may come from a stranger.

The command line may set everything, and the shipped files are trusted. The user's own primary config, in or below the
working folder, may set some of Hydra's keys, and destinations on a network. Any other file may set neither. Hydra calls
`check_file` with what each file adds to a config, wherever its package puts it, before it becomes part of that config.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.config.hydra_private import ConfigFile
from orchestrator.config.overrides import literal
from orchestrator.store.secrets import NO_SECRETS
from sweeps.errors import ConfigError

PRIMARY = "config"
"""The name of the shipped primary config, from which everything is composed unless the user has their own."""

KEY = "trusted_modules"

_HYDRAS_SOURCES = ("pkg://hydra.conf", "structured://")
_FROM_OWN_PRIMARY = frozenset({"callbacks", "help", "launcher", "run", "searchpath", "sweep", "verbose"})
"""Parts of Hydra's own section that a primary config may set: texts, folders, and plugins, whose code is checked."""

DESTINATIONS = (
    "cluster.address",
    "launch.options.hosts",
    "results_dir",
    "tracker.mlflow.uri",
    "tracker.tensorboard.dir",
    "tune.storage_path",
)
"""Keys whose values may name a machine that receives code or results."""
_HOSTS = ("cluster.address", "launch.options.hosts")
"""Destinations that are the name of a host without a scheme; the others are folders then."""
_LOCAL_SCHEMES = ("", "file", "sqlite", "http", "https", "ray")


def config_dir() -> Path:
    """Return the folder of the shipped configs, relative to this code: a user's package `conf` must not shadow it.

    It is inside the package when installed, and beside it in a checkout.
    """
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def shipped_dirs() -> tuple[Path, ...]:
    """Return the folders of shipped configs: the package's, and in a clone also that of the published experiments."""
    published = Path(__file__).parents[2] / "studies/conf"
    return (config_dir(), published) if published.is_dir() else (config_dir(),)


def check_file(file: ConfigFile) -> None:
    """Raise ConfigError if a config file sets what only the command line may set."""
    if file.is_typed and re.match(r"hydra\b", file.package):
        return
    errors = list(_errors_of_trusted(file) if _is_shipped(file) else _errors_of_file(file))
    if errors:
        raise ConfigError(f"{file.path or file.name}: {error}" for error in errors)


def is_own(path: Path | None) -> bool:
    """Return whether a file lies in or below the working folder, and not in an installed package there."""
    if path is None:
        return False
    place = path.resolve()
    is_installed = {"site-packages", "dist-packages"} & set(place.parts)
    return place.is_relative_to(Path.cwd()) and not is_installed


def _is_shipped(file: ConfigFile) -> bool:
    """Return whether a file is one of the project's or of Hydra's; `name` may lead out of its source by `..`."""
    if file.path is None:
        return file.source in _HYDRAS_SOURCES and ".." not in file.name
    place = file.path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in shipped_dirs())


def _errors_of_trusted(file: ConfigFile) -> Iterator[str]:
    """Yield an error if a defaults list places a shipped file, or one of Hydra's, into Hydra's own section."""
    if not isinstance(file.content, Mapping) or "hydra" not in file.content or file.name == PRIMARY:
        return
    group, _, choice = file.name.rpartition("/")
    if not group.startswith("hydra") or file.package not in ("hydra", group.replace("/", ".")):
        yield f"the package {file.package} may be given only on the command line"
    elif group == "hydra/sweeper" and choice != "basic":
        yield f"a sweeper may be chosen only on the command line: hydra/sweeper={choice}"


def _errors_of_file(file: ConfigFile) -> Iterator[str]:
    content = file.content if isinstance(file.content, Mapping) else {}
    is_own_primary = file.is_primary and file.name != PRIMARY and is_own(file.path)
    if "hydra" in content:
        allowed = _FROM_OWN_PRIMARY if is_own_primary else frozenset()
        yield from _hydra_errors(content["hydra"], allowed)
    if KEY in content and not is_own(file.path):
        yield f"{KEY} may be set only by a file in or below the working folder; type it: {KEY}={_typed(content[KEY])}"
    for key, value in _destinations(content) if not is_own_primary else ():
        yield (
            f"{key}={_typed(value)} is a destination on a network, which only the command line and your own primary"
            f" config may choose; to use it, type {key}={_typed(value)}"
        )


def _hydra_errors(section: Any, allowed: frozenset[str]) -> Iterator[str]:
    """Yield an error for each key of Hydra's own section outside `allowed`."""
    if not isinstance(section, Mapping):
        yield f"hydra must be a section, not {section!r}"
        return
    for key, value in section.items():
        if key in allowed:
            continue
        names = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) and value else [key]
        for name in names:
            yield f"hydra.{name} is set by a config file, which may not set it; the command line may: hydra.{name}=…"
    places = section.get("searchpath")
    # An interpolation or `pkg://module` would make Hydra import a module.
    for place in places if isinstance(places, list) else [places] if places else []:
        if not re.fullmatch(r"file://[^$]*|[^$:]*", str(place)):
            yield f"hydra.searchpath has {place!r}; a config file may add only folders (file://…)"


def _destinations(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each (key, value) that may lead to another machine; an interpolation may lead anywhere."""
    for key in DESTINATIONS:
        node: Any = content
        path: list[str] = []
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                break
            node = node[part]
            path.append(part)
        else:
            values = node if isinstance(node, list) else [node]
            if not all(_is_local(value, is_host=key in _HOSTS) for value in values):
                yield key, node
            continue
        # A section that is an interpolation as a whole may hold any value.
        if path and isinstance(node, str) and "${" in node:
            yield ".".join(path), node


def _is_local(value: Any, *, is_host: bool) -> bool:
    """Return whether a value certainly names no other machine."""
    if value in (None, "", "auto", "local", "???"):
        return True
    text = str(value)
    if "${" in text or "\\" in text:
        return False
    try:
        # `urlsplit` looks for a host only behind two slashes.
        parts = urlsplit(text if "://" in text or not is_host else f"//{text}")
    except ValueError:
        return False
    # An unusual scheme names a host elsewhere, or a module that Ray or MLflow would import.
    if is_host or parts.hostname:
        return parts.scheme in _LOCAL_SCHEMES and _is_loopback(parts.hostname or "")
    return parts.scheme in ("", "file", "sqlite") and text not in ("databricks", "databricks-uc", "uc")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _typed(value: Any) -> str:
    return str(NO_SECRETS.value(literal(value) if isinstance(value, str | int | float | Sequence) else str(value)))
