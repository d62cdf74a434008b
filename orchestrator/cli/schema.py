"""Checks values: of keys with allowed words or a range of numbers, and of shipped models, data sets, optimizers …

Checks the keys of the orchestrator's own sections, since misspelt ones would be ignored, and the shape of values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.request import OWN_SECTIONS, value_at
from orchestrator.config.search_path import config_dir
from orchestrator.decision.recommendation import OBJECTIVES
from orchestrator.store import files
from sweeps.axes import flat, is_not_finite, is_number, is_whole
from sweeps.errors import nearest, unknown
from sweeps.sweep import STRATEGIES


@dataclass(frozen=True, kw_only=True)
class Number:
    """A range of finite numbers: above a bound, at least a bound, or between two."""

    above: float = -math.inf
    at_least: float = -math.inf
    below: float = math.inf
    whole: bool = False
    beside: tuple[Any, ...] = ()
    """Further values that are allowed."""

    def admits(self, value: Any) -> bool:
        """Whether the value is allowed."""
        if value in self.beside:
            return True
        if not (is_whole(value) if self.whole else is_number(value)) or not math.isfinite(value):
            return False
        return bool(self.above < value < self.below and value >= self.at_least)

    def __str__(self) -> str:
        number = "a whole number" if self.whole else "a number"
        if self.below < math.inf and self.above == -math.inf:
            return f"{number} of at least {self.at_least:g} and below {self.below:g}"
        if self.below < math.inf:
            return f"{number} between {self.above:g} and {self.below:g}"
        return f"{number} above {self.above:g}" if self.above > -math.inf else f"{number} of at least {self.at_least:g}"


Values = Mapping[str, tuple[str, ...] | Number]
"""Allowed values by dotted key."""

_OR_NULL = (None,)
_OR_AUTO = ("auto",)

OF_REQUEST: Values = {
    "backend": ("ray", "inprocess"),
    "workers": ("warm", "per_seed", "fresh"),
    "retries": Number(at_least=0, whole=True),
    "equal_failures": Number(at_least=2, whole=True, beside=_OR_NULL),
    "hang_s": Number(above=0, beside=_OR_NULL),
    "time_limit_s": Number(above=0, beside=_OR_NULL),
    "rerun_invalid": Number(at_least=0),
    "sweep.scaling": ("auto", "weak", "strong"),
    "sweep.early_stop_after": Number(above=0, below=1),
    "sweep.budget.gpu_hours": Number(at_least=0, beside=_OR_NULL),
    "sweep.budget.wall_s": Number(at_least=0, beside=_OR_NULL),
    "sweep.budget.cost": Number(at_least=0, beside=_OR_NULL),
    "cluster.wait_s": Number(at_least=0),
    "telemetry.hz": Number(at_least=0),
    "report.price_per_gpu_hour": Number(at_least=0, beside=_OR_NULL),
    "report.objective": OBJECTIVES,
    "report.margin": Number(above=0),
    "predict.gpus_per_node": Number(above=0, beside=_OR_NULL),
    "predict.bandwidth_gb_s": Number(above=0, beside=_OR_NULL),
    "predict.latency_s": Number(above=0, beside=_OR_NULL),
    "plan.format": ("table", "json"),
    "objective.best": ("max", "min"),
    "tracker.wandb.mode": ("offline", "online"),
}
"""Keys that say what to do, except `mode`."""

OF_SETUP: Values = {
    "strategy": ("auto", *STRATEGIES),
    "grad_accum_steps": Number(at_least=1, whole=True),
    "warmup_epochs": Number(at_least=0),
    "budget.epochs": Number(above=0, beside=_OR_NULL),
    "budget.samples": Number(above=0, whole=True, beside=_OR_NULL),
    "budget.steps": Number(above=0, whole=True, beside=_OR_NULL),
    "budget.seconds": Number(above=0, beside=_OR_NULL),
    "resources.device": ("auto", "cuda", "cpu"),
    "resources.gpus_per_worker": Number(above=0, beside=_OR_AUTO),
    "resources.cpus_per_worker": Number(above=0, whole=True, beside=_OR_AUTO),
    "resources.timing": ("auto", "device", "exclusive", "shared"),
}
"""Keys that say what a trial is."""


def value_errors(config: Mapping[str, Any], values: Values) -> Iterator[str]:
    """Yield a line for every key whose value is not allowed."""
    for key, valid in values.items():
        value = value_at(config, key)
        if not isinstance(valid, Number):
            if value not in valid:
                yield unknown(key, value, valid)
        elif not valid.admits(value):
            yield f"{key} must be {valid}, not {value!r}"


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


def type_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value of another type or size than those in the shipped configs: a word for a number.

    Checks only shipped models, data sets, optimizers and schedules: what the user's own accept is not known here.
    """
    for key, value in flat({name: each for name, each in config.items() if name not in OWN_SECTIONS}):
        if is_not_finite(value) and key not in OF_SETUP:
            yield f"{key} must be a finite number, not {value!r}"
    for group in _GROUPS:
        given = config.get(group)
        if not isinstance(given, Mapping):
            continue
        shipped = _shipped(group, str(given.get("name")))
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
def _shipped(group: str, name: str) -> Mapping[str, Any]:
    """{dotted key: value} of the shipped file with this name; empty if there is none."""
    file = config_dir() / group / f"{name}.yaml"
    if not name.isidentifier() or not file.is_file():
        return {}
    return dict(flat(files.load(file.read_text(encoding="utf-8"))))


_FREE = ("sweep.axes",)
"""Sections with keys of the user's choice; sections shipped empty (`cluster.labels`) are free as well."""


def key_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every key that is not in the shipped config.

    Other sections belong to the trainable: their names are mistakes only if they resemble a shipped one.
    """
    shipped = _shipped_key_checks()
    for section, value in config.items():
        if section in (*OWN_SECTIONS, "budget") and section in shipped:
            yield from _unknown(value, shipped[section], section)
        elif section not in _sections() and (meant := nearest(str(section), _sections())):
            yield f"there is no section {section!r}{meant}"


def shape_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every value that should be a section, a list, or true or false, and is not."""
    for section, shipped in _shipped_key_checks().items():
        if section in config and section != "defaults":
            yield from _misshapen(config[section], shipped, section)


def _misshapen(given: Any, shipped: Any, where: str) -> Iterator[str]:
    if isinstance(shipped, Mapping):
        if not isinstance(given, Mapping):
            yield f"{where} must be a section{_with(shipped)}, not {given!r}"
        elif where not in _FREE:
            for key in shipped:
                if key in given:
                    yield from _misshapen(given[key], shipped[key], f"{where}.{key}")
    elif isinstance(shipped, list) and not isinstance(given, list):
        yield f"{where} must be a list, not {given!r}; [] is an empty one"
    elif isinstance(shipped, bool) and not isinstance(given, bool):  # `no` is a word for Hydra, and would count as true
        yield f"{where} must be true or false, not {given!r}"


def _with(shipped: Mapping[str, Any]) -> str:
    return f" with {', '.join(shipped)}" if shipped else ""


def _unknown(given: Any, shipped: Any, where: str) -> Iterator[str]:
    if where in _FREE or not shipped or not isinstance(shipped, Mapping) or not isinstance(given, Mapping):
        return
    for key, value in given.items():
        if key in shipped:
            yield from _unknown(value, shipped[key], f"{where}.{key}")
        else:
            yield f"there is no key {where}.{key}{nearest(str(key), shipped)}"


@functools.cache
def _shipped_key_checks() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = files.load((config_dir() / "config.yaml").read_text(encoding="utf-8"))
    return loaded


def _sections() -> tuple[str, ...]:
    """The sections of the shipped config, including config groups."""
    return (*_shipped_key_checks(), *(each.name for each in config_dir().iterdir() if each.is_dir()))
