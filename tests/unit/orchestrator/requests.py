"""A real request, as the shipped config asks, for tests to change."""

import functools
from dataclasses import replace
from typing import Any

from orchestrator.composition.composition import Composition
from orchestrator.composition.search_path import initialised
from orchestrator.config.request import Request


@functools.cache
def _shipped() -> Request:
    with initialised():
        composition = Composition(["sweep=batch_scaling"])
        return Request.of(composition.config, composition.axes(), composition.arguments)


def request(given: Request | None = None, **changes: Any) -> Request:
    """A request (unless given, that of `sweep=batch_scaling`) with these fields changed, in whichever part they are."""
    result = given or _shipped()
    for part in ("sweep", "selection", "failures", "cluster", "criteria"):
        before = getattr(result, part)
        there = {name: changes.pop(name) for name in list(changes) if hasattr(before, name)}
        result = replace(result, **{part: replace(before, **there)})
    return replace(result, **changes)
