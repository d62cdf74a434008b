"""The shipped config, and a real request as it asks, for tests to change."""

import functools
from dataclasses import replace
from typing import Any

from orchestrator.config.compose import Composition
from orchestrator.config.request import Request
from orchestrator.config.search_path import config_dir, initialised
from orchestrator.store import files


def shipped_config() -> dict[str, Any]:
    """The shipped primary config, with a name, a scaling, a budget and a trainable that does nothing."""
    config: dict[str, Any] = files.load((config_dir() / "config.yaml").read_text())
    del config["defaults"]
    config["sweep"] |= {"name": "s", "scaling": "weak"}
    config["budget"] = {"epochs": 10, "samples": None, "steps": None, "seconds": None}
    config["trainable"] = {"_target_": "trainables.noop:train"}
    return config


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
