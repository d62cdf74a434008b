"""A trial as a run of a tracker, with a name, parameters and tags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.storage.secrets import NO_SECRETS, Secrets
from sweeps.dotted import flat
from sweeps.number import is_number
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a tracker receives when a trial starts."""

    name: str
    """For people: the values of the axes."""
    params: Mapping[str, Any]
    """The trial's batch, learning rate and config, under dotted keys."""
    tags: Mapping[str, str]
    """sweep, trial_id, cell_id, device, strategy and timing."""


def run_of(trial: TrialSpec, secrets: Secrets = NO_SECRETS) -> Run:
    """The run of a trial, without secrets."""
    axes = {f"axes.{key}": value for key, value in secrets.value(trial.axes).items()}
    config = {key: value for key, value in flat(secrets.value(trial.config)) if value not in (None, {})}
    numbers_of_it = {
        "gpus": trial.gpus,
        "global_batch_size": trial.batch.global_batch_size,
        "device_batch_size": trial.batch.device_batch_size,
        "grad_accum_steps": trial.batch.grad_accum_steps,
        "lr_rule": trial.lr.rule,
        "lr_multiplier": trial.lr.multiplier,
        "lr": trial.lr.value,
        "seed": trial.seed,
    }
    return Run(
        name=secrets.text(trial.label.partition("/")[2]),
        params={**numbers_of_it, **config, **axes},
        tags={
            "sweep": trial.sweep,
            "trial_id": trial.trial_id,
            "cell_id": trial.cell_id,
            "device": trial.device,
            "strategy": trial.strategy,
            "timing": trial.timing,
        },
    )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers in a row."""
    return {key: float(value) for key, value in row.items() if is_number(value) and math.isfinite(value)}
