"""The shipped config, and a real request as it asks, for tests to change."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.overrides import rewritten
from orchestrator.config.request import Request
from orchestrator.config.search_path import config_dir
from orchestrator.store import files


def shipped_config() -> dict[str, Any]:
    """The shipped primary config, with a name, a scaling, a budget and a trainable that does nothing."""
    config: dict[str, Any] = files.load((config_dir() / "config.yaml").read_text())
    del config["defaults"]
    config["sweep"] |= {"name": "s", "scaling": "weak"}
    config["budget"] = {"epochs": 10, "samples": None, "tokens": None, "steps": None, "seconds": None}
    config["trainable"] = {"_target_": "trainables.noop:train"}
    return config


@functools.cache
def _shipped() -> Request:
    with initialised():
        composition = Composition(["sweep=batch_scaling"])
        return Request.of(composition.config, composition.axes())


def request(given: Request | None = None, **changes: Any) -> Request:
    """A request (unless given, that of `sweep=batch_scaling`) with these fields changed, in whichever part they are."""
    result = given or _shipped()
    own = {name: changes.pop(name) for name in ("axes", "metric", "target", "reference_batch_size") if name in changes}
    settings = replace(result.settings, budget=changes.pop("budget", result.settings.budget))  # sweep has one, too
    for part in ("report", "sweep", "cluster", "resources", "forecast", ""):
        values: Any = getattr(settings, part) if part else settings
        there = {name: changes.pop(name) for name in list(changes) if hasattr(values, name)}
        settings = replace(settings, **{part: replace(values, **there)} if part else there)
    assert not changes, changes
    return replace(result, settings=settings, **own)


def unchecked(*arguments: str) -> CheckedSweep:
    """Compose a sweep without checking it, since this machine may lack its GPUs or data; Hydra must be initialised."""
    composition = Composition(rewritten(arguments))
    return CheckedSweep(request=Request.of(composition.config, composition.axes()), composition=composition)


def with_value(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of a config in which one dotted key has another value."""
    changed = copy.deepcopy(dict(config))
    *parents, leaf = key.split(".")
    node = changed
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    return changed


def with_results(checked: CheckedSweep, folder: Path) -> CheckedSweep:
    """Return the sweep with its results in this folder, which is named after the sweep."""
    sweep = replace(checked.request.settings.sweep, name=folder.name)
    settings = replace(checked.request.settings, results_dir=str(folder.parent), sweep=sweep)
    return replace(checked, request=replace(checked.request, settings=settings))
