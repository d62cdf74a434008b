"""Values of the kind that they cannot be: a word for a number of a shipped model, or a number that is none."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.command_line.single_values import OF_SETUP
from orchestrator.config.request import OWN_SECTIONS
from orchestrator.storage import yaml_text
from sweeps.dotted import flat
from sweeps.number import is_endless, is_number, is_whole

_GROUPS = ("model", "data", "optimizer", "schedule")
_OF_COUNTS = ("model", "data")
"""In which a whole number is one of channels, images, pixels; elsewhere it may be a rate."""
_PLACES = ("root", "path")


def type_mistakes(config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """A line for each; `folder` holds the shipped configs, whose own values say of what kind the others are.

    Only of a model, data set, optimizer or schedule that is shipped: what somebody's own takes is not known here.
    """
    for key, value in flat({name: each for name, each in config.items() if name not in OWN_SECTIONS}):
        if is_endless(value) and key not in OF_SETUP:
            yield f"{key} must be a finite number, not {value!r}"
    for group in _GROUPS:
        given = config.get(group)
        if not isinstance(given, Mapping):
            continue
        shipped = _values(folder, group, str(given.get("name")))
        for key, value in ((key, value) for key, value in flat(given) if value is not None):
            if kind := _section(shipped, key) or _wanted(shipped.get(key), value, counts=group in _OF_COUNTS):
                yield f"{group}.{key} must be {kind}, not {value!r}"
        for key in _PLACES if group == "data" else ():
            if not isinstance(place := given.get(key), str | None):
                yield f"data.{key} must be text, not {place!r}"


def _section(shipped: Mapping[str, Any], key: str) -> str:
    """What a section holds that something else is given for; empty where the key is none."""
    inside = [each.removeprefix(f"{key}.").partition(".")[0] for each in shipped if each.startswith(f"{key}.")]
    return f"a section with {', '.join(dict.fromkeys(inside))}" if inside else ""


def _wanted(shipped: Any, given: Any, *, counts: bool) -> str:
    """Of what kind the value would have to be; empty where nothing is known against it."""
    if isinstance(shipped, bool) and not isinstance(given, bool):
        return "true or false"
    if isinstance(shipped, list):
        return "" if isinstance(given, list) else "a list"
    if counts and is_whole(shipped):
        least = min(shipped, 1)
        return "" if is_whole(given) and given >= least else f"a whole number of at least {least}"
    return "a number" if is_number(shipped) and not is_number(given) else ""


@functools.cache
def _values(folder: Path, group: str, name: str) -> Mapping[str, Any]:
    """{dotted key: value} of the shipped file of this name; empty where there is none."""
    file = folder / group / f"{name}.yaml"
    if not name.isidentifier() or not file.is_file():
        return {}
    return dict(flat(yaml_text.load(file.read_text(encoding="utf-8"))))
