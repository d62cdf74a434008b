"""The keys that a config file, which may come from a stranger, may set. The command line may set all keys.

The shipped files are trusted. The user's own primary config, in or below the working folder, may set some of Hydra's
keys, what the command does, and destinations: other machines, and folders outside the working folder.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.config.content_hashes import is_installed
from orchestrator.config.hydra_private import ConfigFile
from orchestrator.config.overrides import literal
from orchestrator.config.search_path import PRIMARY, shipped_dirs
from orchestrator.config.trust import KEY, UNSET
from orchestrator.store.secrets import NO_SECRETS
from sweeps.errors import ConfigError

_HYDRAS_SOURCES = ("pkg://hydra.conf", "structured://")
_FROM_OWN_PRIMARY = frozenset({"callbacks", "help", "launcher", "run", "searchpath", "sweep", "verbose"})
"""Parts of Hydra's own section that a primary config may set: texts, folders, and plugins, whose code is checked."""

DESTINATIONS = {
    "cluster.address": "host",
    "init.dir": "folder",
    "launch.options.hosts": "host",
    "local_results_dir": "folder",
    "results_dir": "folder",
    "tracker.mlflow.uri": "folder",
    "tracker.tensorboard.dir": "folder",
    "tune.storage_path": "folder",
}
"""Keys whose values may name a receiver of code or results, and what it is if the value has no scheme."""
SWITCHES = {"data.download": False, "mode": "run", "tracker.wandb.entity": None, "tracker.wandb.mode": "offline"}
"""Keys that make the command write, send or fetch something else unless they have this value."""
_LOCAL_SCHEMES = ("", "file", "sqlite", "http", "https", "ray")


def check_file(file: ConfigFile) -> None:
    """Raise ConfigError if a config file sets what only the command line may set."""
    if file.is_typed and re.match(r"hydra\b", file.package):
        return
    errors = list(_errors_of_trusted(file) if _is_shipped(file) else _errors_of_file(file))
    if errors:
        raise ConfigError(f"{file.path or file.name}: {error}" for error in errors)


def _is_own(path: Path | None) -> bool:
    """Return whether a file lies in or below the working folder, and not in an installed package there."""
    if path is None:
        return False
    place = path.resolve()
    return place.is_relative_to(Path.cwd()) and not is_installed(place)


def _is_shipped(file: ConfigFile) -> bool:
    """Return whether a file is one of the project's or of Hydra's; `name` may lead out of its source by `..`."""
    if file.path is None:
        return file.source in _HYDRAS_SOURCES and ".." not in file.name
    place = file.path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in shipped_dirs())


def _errors_of_trusted(file: ConfigFile) -> Iterator[str]:
    """Yield an error if a defaults list places a shipped file, or one of Hydra's, into Hydra's own section."""
    if file.name == PRIMARY or "hydra" not in file.config:
        return
    group, _, choice = file.name.rpartition("/")
    if not group.startswith("hydra") or file.package not in ("hydra", group.replace("/", ".")):
        yield f"the package {file.package} may be given only on the command line"
    elif group == "hydra/sweeper" and choice != "basic":
        yield f"a sweeper may be chosen only on the command line: hydra/sweeper={choice}"


def _errors_of_file(file: ConfigFile) -> Iterator[str]:
    content = file.content
    if not isinstance(content, Mapping):
        return
    # The config of -cn. A stranger's folder may have one with the name of the shipped primary config, too.
    is_own_primary = file.is_primary and file.name != PRIMARY and _is_own(file.path)
    if "hydra" in content:
        allowed = _FROM_OWN_PRIMARY if is_own_primary else frozenset()
        yield from _hydra_errors(content["hydra"], allowed)
    if KEY in content and not _is_own(file.path):
        yield f"{KEY} may be set only by a file in or below the working folder; type it: {KEY}={_typed(content[KEY])}"
    for key, value in _destinations(content) if not is_own_primary else ():
        yield (
            f"{key}={_typed(value)} reaches beyond the working folder, which only the command line and your own primary"
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
    """Yield each (key, value) that may lead out of the working folder; an interpolation may lead anywhere."""
    for key, kind in {**DESTINATIONS, **dict.fromkeys(SWITCHES, "switch")}.items():
        set_key, value = _deepest(content, key)
        if set_key != key:
            # A section that is an interpolation as a whole may hold any value.
            if set_key and isinstance(value, str) and "${" in value:
                yield set_key, value
            continue
        if kind == "switch":
            if value != SWITCHES[key]:
                yield key, value
            continue
        addresses = value if isinstance(value, list) else [value]
        if not all(_stays_here(address, kind) for address in addresses):
            yield key, value


def _deepest(content: Mapping[str, Any], key: str) -> tuple[str, Any]:
    """Return the longest beginning of a dotted key that is in the content, and its value."""
    names: list[str] = []
    value: Any = content
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            break
        value = value[name]
        names.append(name)
    return ".".join(names), value


def _stays_here(address: Any, kind: str) -> bool:
    """Return whether a value certainly names no other machine, and no place outside the working folder."""
    if address in (None, "", UNSET):
        return True
    if address in ("auto", "local"):
        return True
    text, is_host = str(address), kind == "host"
    if "${" in text or "\\" in text:
        return False
    try:
        # `urlsplit` looks for a host only behind two slashes.
        parts = urlsplit(f"//{text}" if is_host and "://" not in text else text)
        host = parts.hostname or ""
        is_loopback = host == "localhost" or (bool(host) and ipaddress.ip_address(host).is_loopback)
    except ValueError:  # no address
        return False
    if not is_host and parts.scheme in ("", "file", "sqlite"):
        # A file, unless a service has this name.
        is_file = not host and text not in ("databricks", "databricks-uc", "uc")
        return is_file and _is_below_working_folder(text, parts.scheme)
    # MLflow would import the module of an unusual scheme. Programs differ in where a host ends before these signs.
    is_ambiguous = bool(set("#?@%") & set(text)) or (is_host and bool(parts.path))
    return is_loopback and not is_ambiguous and parts.scheme in _LOCAL_SCHEMES


def _is_below_working_folder(place: str, scheme: str) -> bool:
    """Return whether a folder or a file's URI lies in or below the working folder, after links."""
    path = place
    if scheme:
        # Programs differ in how they read other signs, and signs before the scheme.
        if not re.fullmatch(rf"(?i:{scheme}):[\w./ -]*", place):
            return False
        # `sqlite:///mlflow.db` is a relative path, `file:///mlruns` an absolute one.
        path = place[len(scheme) + 1 :].removeprefix("///" if scheme == "sqlite" else "//")
    try:
        # Whether `~` is the home folder depends on the program.
        return not path.startswith("~") and Path(os.path.realpath(path)).is_relative_to(Path.cwd())
    except ValueError:  # a zero byte, or half of a surrogate pair
        return False


def _typed(value: Any) -> str:
    return str(NO_SECRETS.value(literal(value) if isinstance(value, str | int | float | Sequence) else str(value)))
