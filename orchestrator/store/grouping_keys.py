"""Which trials are alike: keys that are equal for trials that have the same answer to one question.

Each key compares all axes except those that hardly change its answer. Three other relations are not about axes:
`sweeps.identity.equivalent_cells` compares all that the ranks receive, `plan.rehearsals.kind_of` the part of the config
that decides memory and pace, and `analysis.baseline` and `decision.eligibility` columns of a frame, where a cell is set
against the one that differs from it in one respect only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.store.record import TrialRecord
from sweeps.layout import is_independent
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.sweep import STANDARD_AXES
from sweeps.trial import TrialSpec

_MARKS = {"probe", "repetition"}  # the marks of probes and repetitions, which are no axes of the sweep
_GPUS = {"gpus", "seed"}
_BATCH = {"device_batch_size", "global_batch_size"}


def _fixed(axes: Mapping[str, Any], free: Collection[str]) -> list[tuple[str, Any]]:
    return sorted((axis, value) for axis, value in axes.items() if axis not in free)


def same_speed(axes: Mapping[str, Any]) -> str:
    """Return a key that trials of about the same speed have in common."""
    return repr(_fixed(axes, {*_MARKS, "seed", "lr_rule", "lr_multiplier"}))


def same_steps_and_seed(row: TrialRecord | TrialSpec) -> str:
    """Return a key that is equal for trials with the same steps and the same seed; they differ in the rate of a step.

    It is empty for a rule that changes what the optimizer or the training loop does in a step.
    """
    rule = row.lr.rule if isinstance(row, TrialSpec) else row.lr_rule
    return f"{same_speed(row.axes)} {row.seed}" if rule in SAME_AT_REFERENCE else ""


def same_timing(record: TrialRecord) -> str:
    """Return a key that is equal for trials with the same steps and seed on the same hardware; empty like the above.

    In the project's own loop their steps take equally long.
    """
    steps = same_steps_and_seed(record)
    return f"{steps} {record.machines} {record.provenance.get('device_model')}" if steps else ""


def same_steps(row: TrialRecord) -> str:
    """Return a key that is equal for all seeds of a cell, and for cells whose steps differ only in their rate."""
    return same_speed(row.axes) if row.lr_rule in SAME_AT_REFERENCE else row.cell_id


def same_memory(axes: Mapping[str, Any], device_batch_size: int) -> str:
    """Return a key that is equal for trials that need the same memory on each device."""
    return repr((device_batch_size, _fixed(axes, {*_MARKS, *STANDARD_AXES})))


def but_for_gpus(trial: TrialSpec | TrialRecord) -> str:
    """Return a key that is equal for trials that differ only in GPUs and seed."""
    return repr((trial.device, _fixed(trial.axes, _GPUS)))


def but_for_batch(trial: TrialSpec | TrialRecord) -> str:
    """Return a key that is equal for trials that differ only in GPUs, batch and seed."""
    return repr((trial.device, _fixed(trial.axes, _GPUS | _BATCH)))


def same_work(record: TrialRecord) -> str:
    """Return a key that is equal for trials that were asked for the same work on the same data."""
    # Each independent replica does the whole budget, so that the samples of the trial are those of several trainings.
    replicas = record.gpus if is_independent(record.strategy) else 1
    # Another data set or length has other samples, so that only like is compared with like.
    return repr((sorted(record.budget.items()), _fixed(record.axes, STANDARD_AXES), replicas))
