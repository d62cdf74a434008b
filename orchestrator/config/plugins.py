"""Models, data sets, optimizers and schedules that installed packages offer by entry points: where their code is."""

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
"""The entry points' groups, by the config section whose `name` may name one."""


def plugins_in(sections: Mapping[str, Any]) -> set[str]:
    """The `package.module:name` behind every section's name that a plugin offers: its sources identify the trial."""
    named = {(section, value.get("name")) for section, value in sections.items() if isinstance(value, Mapping)}
    return {path for (section, name), path in _offered().items() if (section, name) in named}


@functools.cache
def _offered() -> dict[tuple[str, str], str]:
    found = entry_points()
    return {(section, each.name): each.value for section, group in GROUPS.items() for each in found.select(group=group)}
