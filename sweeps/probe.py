"""Short trials in place of others: a probe measures a trial's speed before it runs, a repetition times it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweeps.identity import digest
from sweeps.trial import Purpose, TrialSpec

PROBE, REPETITION = "probe", "repetition"
"""Keys in the section `trainable`: {section: values that differ in such a trial}; absent or null if none do."""


def probe_of(trial: TrialSpec) -> TrialSpec | None:
    """Return a trial that only measures speed and memory of this one; None if its trainable defines none."""
    changes = trial.settings.get(PROBE)
    return replace(_in_place_of(trial, PROBE, changes), purpose=Purpose.PROBE) if changes else None


def repetition_of(trial: TrialSpec) -> TrialSpec:
    """Return a trial that times this one again, alone; it ends after its window if the trainable says how."""
    shorter = trial.settings.get(REPETITION)
    purpose = Purpose.WINDOW if shorter else Purpose.REPETITION
    return replace(_in_place_of(trial, REPETITION, shorter or {}), timing="exclusive", purpose=purpose)


def probe_id(trial_id: str) -> str:
    """Return the id of a trial's probe."""
    return digest([trial_id, PROBE])


def _in_place_of(trial: TrialSpec, key: str, changes: Mapping[str, Mapping[str, Any]]) -> TrialSpec:
    shorter = {section: {**(trial.config.get(section) or {}), **values} for section, values in changes.items()}
    return replace(
        trial,
        trial_id=digest([trial.trial_id, key]),
        axes={**trial.axes, key: True},
        config={**trial.config, **shorter},
        measures=trial.trial_id,
    )
