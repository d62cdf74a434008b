"""Short trials in place of others: probes, before a trial has run, and repetitions, which time it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweeps.identity import digest
from sweeps.trial import TrialSpec

PROBE, REPETITION = "probe", "repetition"
"""Keys in the section `trainable`: by section, what differs in such a trial; absent or null if nothing does."""


def probe_of(trial: TrialSpec) -> TrialSpec | None:
    """A trial that only measures how fast this one is and whether it fits; None if its trainable defines none."""
    return _in_place_of(trial, PROBE)


def repetition_of(trial: TrialSpec) -> TrialSpec | None:
    """A trial that only times this one again, alone on its nodes; None if only the whole trial can do that.

    Such are trials whose trainable does not say how, and those with a target accuracy: the time to it is one of the
    whole training.
    """
    if _settings(trial).get("target_accuracy") is not None:
        return None
    shorter = _in_place_of(trial, REPETITION)
    return shorter and replace(shorter, timing="exclusive", repeats=True)


def stand_ins(trial_id: str) -> list[str]:
    """The ids that the probe and the repetition of a trial have."""
    return [digest([trial_id, key]) for key in (PROBE, REPETITION)]


def _in_place_of(trial: TrialSpec, key: str) -> TrialSpec | None:
    changes: Mapping[str, Mapping[str, Any]] = _settings(trial).get(key) or {}
    if not changes:
        return None
    shorter = {section: {**(trial.config.get(section) or {}), **values} for section, values in changes.items()}
    return replace(
        trial,
        trial_id=digest([trial.trial_id, key]),
        axes={**trial.axes, key: True},
        config={**trial.config, **shorter},
        probes=trial.trial_id,
    )


def _settings(trial: TrialSpec) -> Mapping[str, Any]:
    return trial.config.get("trainable") or {}
