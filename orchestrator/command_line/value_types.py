"""Checks types and ranges of values: a word in place of a number, an infinite number, a momentum of 2."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.command_line.single_values import OF_SETUP, Number
from orchestrator.config.sections import OWN_SECTIONS
from orchestrator.storage import yaml_text
from sweeps.dotted import flat
from sweeps.number import is_endless, is_number, is_whole

_GROUPS = ("model", "data", "optimizer", "schedule")
_OF_COUNTS = ("model", "data")
"""Groups in which whole numbers count things (channels, images, pixels); elsewhere they may be rates."""
_PLACES = ("root", "path")

_SHARE_KEPT, _AT_LEAST_0 = Number(at_least=0, below=1), Number(at_least=0)
_BOUNDS: Mapping[str, Number] = {
    "optimizer.momentum": _SHARE_KEPT,  # from 1 on, velocities grow without bound
    "optimizer.betas": _SHARE_KEPT,
    "optimizer.rho": _SHARE_KEPT,
    "optimizer.eps": _AT_LEAST_0,
    "optimizer.weight_decay": _AT_LEAST_0,
    "optimizer.trust_coefficient": Number(above=0),
    "schedule.gamma": Number(above=0),
    "schedule.initial": _AT_LEAST_0,
    "schedule.final": _AT_LEAST_0,
}
"""Ranges of numbers (and of each in a list) of shipped optimizers and schedules; outside them training cannot work."""


def type_mistakes(config: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield a line for each wrong value; `folder` holds the shipped configs, whose values tell the expected types.

    Checks only shipped models, data sets, optimizers and schedules: what the user's own accept is not known here.
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
            elif key in shipped:
                yield from _out_of_bounds(f"{group}.{key}", value)
        if shipped.get("nesterov") is False and given.get("nesterov") is True and given.get("momentum") == 0:
            yield f"{group}.nesterov=true needs a momentum, but {group}.momentum=0"
        for key in _PLACES if group == "data" else ():
            if not isinstance(place := given.get(key), str | None):
                yield f"data.{key} must be text, not {place!r}"


def _out_of_bounds(key: str, value: Any) -> Iterator[str]:
    bounds = _BOUNDS.get(key)
    if bounds and isinstance(value, list):
        wrong = [each for each in value if not bounds.admits(each)]
        yield from [f"{key} must be a list of numbers, each {bounds}, not {value!r}"] if wrong else ()
    elif bounds and not bounds.admits(value):
        yield f"{key} must be {bounds}, not {value!r}"


def _section(shipped: Mapping[str, Any], key: str) -> str:
    """What is expected if the key is a section; empty if it is not one."""
    inside = [each.removeprefix(f"{key}.").partition(".")[0] for each in shipped if each.startswith(f"{key}.")]
    return f"a section with {', '.join(dict.fromkeys(inside))}" if inside else ""


def _wanted(shipped: Any, given: Any, *, counts: bool) -> str:
    """The expected kind of value; empty if the given one may be right."""
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
    """{dotted key: value} of the shipped file with this name; empty if there is none."""
    file = folder / group / f"{name}.yaml"
    if not name.isidentifier() or not file.is_file():
        return {}
    return dict(flat(yaml_text.load(file.read_text(encoding="utf-8"))))
