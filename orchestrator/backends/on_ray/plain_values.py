"""What Tune's callbacks and its copy of the results see of a trial. Does not import Tune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.storage.secrets import Secrets
from orchestrator.trackers.tracking import numbers, run_of
from sweeps.trial import TrialSpec

RESERVED = ("rows", "outcome", "done", "config")
"""Keys of a result that have a meaning to Tune or to this back end."""


def plain_config(trial: TrialSpec, secrets: Secrets) -> dict[str, Any]:
    """The trial's parameters for Tune's loggers and frames."""
    return {"params": dict(run_of(trial, secrets).params)}


def plain_result(last_row: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, float]:
    """The figures of the last row and of the whole trial as {name: number}, as Tune's callbacks expect."""
    figures = {**numbers(last_row), **numbers(metrics)}
    return {name: value for name, value in figures.items() if name not in RESERVED}
