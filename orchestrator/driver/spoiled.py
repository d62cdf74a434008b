"""Trials whose timing something spoiled, and which are therefore run once more, alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.journal.record import TrialRecord
from orchestrator.telemetry.timing_gate import disturbed
from sweeps.trial import TrialSpec


def once_more(
    ran: Sequence[TrialSpec], ends: Mapping[str, TrialRecord], *, share: float, planned: int
) -> list[TrialSpec]:
    """Of the trials that just ran those to run again, with the node to themselves; at most `share` of all planned ones.

    At least one may be, however few are planned, unless `share` is 0. A timing that is too short, or that was shared as
    asked, would be no better for it; and nothing is run a third time.
    """
    most = max(1, int(share * planned)) if share > 0 else 0
    disturbances = disturbed(list(ends.values()))
    again = [trial for trial in ran if disturbances.get(trial.trial_id) and ends[trial.trial_id].attempt == 1]
    return [replace(trial, timing="exclusive") for trial in again[:most]]
