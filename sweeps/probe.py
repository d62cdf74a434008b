"""Probes: short trials that only measure how fast another one is and whether it fits into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sweeps.identity import digest
from sweeps.trial import TrialSpec

KEY = "probe"
"""Key in the section `trainable`: by section, what differs in a probe; absent or null if nothing does."""


def probe_of(trial: TrialSpec) -> TrialSpec | None:
    """The trial's probe; None if its trainable defines none."""
    trainable: Mapping[str, Any] = trial.config.get("trainable") or {}
    changes: Mapping[str, Mapping[str, Any]] = trainable.get(KEY) or {}
    if not changes:
        return None
    shorter = {section: {**(trial.config.get(section) or {}), **values} for section, values in changes.items()}
    return replace(
        trial,
        trial_id=digest([trial.trial_id, KEY]),
        axes={**trial.axes, "probe": True},
        config={**trial.config, **shorter},
        probes=trial.trial_id,
    )
