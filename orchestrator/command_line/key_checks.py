"""Checks the keys of the orchestrator's own sections, since misspelt ones would be ignored, and the shape of values."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.composition.search_path import config_dir
from orchestrator.config.sections import OWN_SECTIONS
from orchestrator.storage import yaml_text
from sweeps.mistakes import nearest

_FREE = ("sweep.axes",)
"""Sections with keys of the user's choice; sections shipped empty (`cluster.labels`) are free as well."""


def key_mistakes(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every key that is not in the shipped config.

    Other sections belong to the trainable: their names are mistakes only if they resemble a shipped one.
    """
    shipped = _shipped()
    for section, value in config.items():
        if section in (*OWN_SECTIONS, "budget") and section in shipped:
            yield from _unknown(value, shipped[section], section)
        elif section not in _sections() and (meant := nearest(str(section), _sections())):
            yield f"there is no section {section!r}{meant}"


def shape_mistakes(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every value that should be a section, a list, or true or false, and is not."""
    for section, shipped in _shipped().items():
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
    elif isinstance(shipped, bool) and not isinstance(given, bool):  # `no` is a word for Hydra, and would count as true
        yield f"{where} must be true or false, not {given!r}"


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
def _shipped() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml_text.load((config_dir() / "config.yaml").read_text(encoding="utf-8"))
    return loaded


def _sections() -> tuple[str, ...]:
    """The sections of the shipped config, including config groups."""
    return (*_shipped(), *(each.name for each in config_dir().iterdir() if each.is_dir()))
