"""What is wrong with a config of the project's own training that shows before anything is imported to compute with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainables.data_place import absent
from trainables.families import FAMILIES, SCHEDULES
from trainables.optimizers import schedules
from trainables.optimizers.growth import Growth
from trainables.options import path_of
from trainables.supervised.settings import Settings
from trainables.whereabouts import runs_here


def mistakes(config: Mapping[str, Any]) -> Iterator[str]:
    """A line for each; a trial finds what only its data and its device can tell."""
    try:
        Settings.of(config["trainable"])
    except ValueError as error:
        yield str(error)
    except TypeError as error:
        yield f"trainable: a value is of another type than it should be: {error}"
    yield from _names(config)
    if runs_here(config):
        yield from absent(config.get("data") or {})
    try:
        growth = Growth.of(config["schedule"])
        _try_out(config["schedule"])
    except (ValueError, KeyError, TypeError) as error:
        yield f"schedule: {error}"
        return
    if told := growth.why_not(config.get("budget") or {}):
        yield told


def _try_out(schedule: Mapping[str, Any]) -> None:
    """Raise what a schedule of ours raises for its values; somebody's own is not imported to be looked at."""
    if schedule["name"] in SCHEDULES:
        schedules.resolve(schedule)(0.0, 1.0)


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    for section, families in FAMILIES.items():
        try:
            path_of(families, config[section]["name"], subject=section)
        except (ValueError, KeyError, TypeError) as error:
            yield str(error) if isinstance(error, ValueError) else f"{section}.name is not set"
