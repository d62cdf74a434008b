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
from sweeps.number import is_endless, is_number

_GROUPS = ("model", "data", "optimizer", "schedule")


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
        for key, value in flat(given):
            if kind := _wanted(shipped.get(key), value):
                yield f"{group}.{key} must be {kind}, not {value!r}"


def _wanted(shipped: Any, given: Any) -> str:
    """Of what kind the value would have to be; empty where nothing is known against it."""
    if given is None:
        return ""
    if isinstance(shipped, bool) and not isinstance(given, bool):
        return "true or false"
    return "a number" if is_number(shipped) and not is_number(given) else ""


@functools.cache
def _values(folder: Path, group: str, name: str) -> Mapping[str, Any]:
    """{dotted key: value} of the shipped file of this name; empty where there is none."""
    file = folder / group / f"{name}.yaml"
    if not name.isidentifier() or not file.is_file():
        return {}
    return dict(flat(yaml_text.load(file.read_text(encoding="utf-8"))))
