"""What Tune's callbacks and its copy of the results are shown of a trial; nothing of Tune is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.storage.secrets import Secrets
from orchestrator.trackers.run import numbers, run_of
from sweeps.trial import TrialSpec

RESERVED = ("rows", "outcome", "done", "config")
"""Keys of a result that mean something to Tune or to us."""


def plain_config(trial: TrialSpec, secrets: Secrets) -> dict[str, Any]:
    """What Tune's loggers and frames show of a trial."""
    return {"params": dict(run_of(trial, secrets).params)}


def plain_result(last_row: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, float]:
    """The last row's figures and those of the whole trial, as Tune's callbacks know results: names and numbers."""
    figures = {**numbers(last_row), **numbers(metrics)}
    return {name: value for name, value in figures.items() if name not in RESERVED}
