"""Keys of the orchestrator's own sections: a config file may add any, and one with a slip would be read by nobody."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.request import OWN_SECTIONS
from orchestrator.storage import yaml_text
from sweeps.mistakes import nearest

_FREE = ("sweep.axes",)
"""Sections whose keys are the user's to choose; so are those that are shipped empty (`cluster.labels`)."""


def key_mistakes(config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """A line for every key that the shipped config, in `folder`, has not.

    Further sections belong to the trainable: of those only the names that are nearly a shipped one are mistakes.
    """
    shipped = _shipped(folder)
    for section, value in config.items():
        if section in (*OWN_SECTIONS, "budget") and section in shipped:
            yield from _unknown(value, shipped[section], section)
        elif section not in _sections(folder) and (meant := nearest(str(section), _sections(folder))):
            yield f"there is no section {section!r}{meant}"


def shape_mistakes(config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """A line for every section or list of the orchestrator's own that is none, and that nothing can be read from."""
    for section, shipped in _shipped(folder).items():
        if section in config and section != "defaults":
            yield from _misshapen(config[section], shipped, section)


def _misshapen(given: Any, shipped: Any, where: str) -> Iterator[str]:
    if isinstance(shipped, Mapping):
        if not isinstance(given, Mapping):
            yield f"{where} must be a section{_with(shipped)}, not {given!r}"
        elif where not in _FREE:
            for key in shipped:
                if key in given:
                    yield from _misshapen(given[key], shipped[key], f"{where}.{key}")
    elif isinstance(shipped, list) and not isinstance(given, list):
        yield f"{where} must be a list, not {given!r}; [] is an empty one"


def _with(shipped: Mapping[str, Any]) -> str:
    return f" with {', '.join(shipped)}" if shipped else ""


def _unknown(given: Any, shipped: Any, where: str) -> Iterator[str]:
    if where in _FREE or not shipped or not isinstance(shipped, Mapping) or not isinstance(given, Mapping):
        return
    for key, value in given.items():
        if key in shipped:
            yield from _unknown(value, shipped[key], f"{where}.{key}")
        else:
            yield f"there is no key {where}.{key}{nearest(str(key), shipped)}"


@functools.cache
def _shipped(folder: Path) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml_text.load((folder / "config.yaml").read_text(encoding="utf-8"))
    return loaded


def _sections(folder: Path) -> tuple[str, ...]:
    """Of the config, those that config groups make included."""
    return (*_shipped(folder), *(each.name for each in folder.iterdir() if each.is_dir()))
