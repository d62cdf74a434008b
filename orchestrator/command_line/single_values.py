"""Keys that can be checked one by one, with their allowed words or range of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.sections import value_at
from orchestrator.decision.recommendation import OBJECTIVES
from sweeps.mistakes import unknown
from sweeps.number import is_number, is_whole


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
}
"""Keys that say what to do, except `mode`."""

OF_SETUP: Values = {
    "strategy": ("auto", "single", "data_parallel", "ddp", "ddp_unequal", "independent", "own_ranks"),
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


def value_mistakes(config: Mapping[str, Any], values: Values) -> Iterator[str]:
    """Yield a line for every key whose value is not allowed."""
    for key, valid in values.items():
        value = value_at(config, key)
        if not isinstance(valid, Number):
            if value not in valid:
                yield unknown(key, value, valid)
        elif not valid.admits(value):
            yield f"{key} must be {valid}, not {value!r}"
