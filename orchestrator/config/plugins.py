"""Models, data sets, optimizers and schedules that installed packages offer through entry points."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

GROUPS: Mapping[str, str] = {
    "model": "sweep_orchestrator.models",
    "data": "sweep_orchestrator.data",
    "optimizer": "sweep_orchestrator.optimizers",
    "schedule": "sweep_orchestrator.schedules",
}
"""Entry point groups by the config section whose `name` may name one of their entries."""


def plugins_in(sections: Mapping[str, Any]) -> set[str]:
    """The `package.module:name` of every section whose name a plugin offers; their sources identify the trial."""
    named = {(section, value.get("name")) for section, value in sections.items() if isinstance(value, Mapping)}
    return {path for (section, name), path in _offered().items() if (section, name) in named}


@functools.cache
def _offered() -> dict[tuple[str, str], str]:
    found = entry_points()
    return {(section, each.name): each.value for section, group in GROUPS.items() for each in found.select(group=group)}
