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


def request(**changes: Any) -> Request:
    """That of `sweep=batch_scaling`, with these fields."""
    return replace(_shipped(), **changes)
