"""Learning rates that commands used, compared between cells: rates that differ by another factor than the trials' own.

A command reports the rates of all parameter groups at the start, in the middle and near the end of its training. Within
a sweep they should differ by the ratio of the trials' rates. Otherwise the rate never reached the script, the script
scales it once more, or its schedule runs at another pace. The start is not compared: a warm-up of a fixed number of
steps ends at another part of a shorter training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from orchestrator.store.record import TrialRecord
from sweeps.lr_rule import RULES
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

TOLERANCE = 0.1
"""A relative difference of rates that schedules of different numbers of steps explain."""

_LEAST = 1e-9
"""A ratio that stands for a rate of 0."""

_COMPARED = ("in the middle", "near the end")
"""The parts of a training whose rates are compared: all that a command reports after those at the start."""


def deviations(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return a note for each ok trial whose rates do not follow those of the sweep's trials, by its id.

    A trial is compared with the first one, by batch and GPUs, that has the same further axes and number of groups.
    """
    firsts: dict[str, TrialRecord] = {}
    notes: dict[str, str] = {}
    with_rates = [record for record in records if record.status is Status.OK and _rates(record)]
    for record in sorted(with_rates, key=lambda trial: (trial.gpus, trial.global_batch_size, trial.lr_multiplier)):
        # A rule that sets the rate during the training has no ratio.
        if record.lr_rule in RULES and RULES[record.lr_rule].in_training:
            continue
        first = firsts.setdefault(_comparable_with(record), record)
        note = _deviation(record, first)
        if note:
            notes[record.trial_id] = note
    return notes


def _comparable_with(record: TrialRecord) -> str:
    """Return a key of trials whose rates differ by their own rates alone."""
    other_axes = {
        axis: value for axis, value in record.axes.items() if axis not in STANDARD_AXES and not axis.endswith(".lr")
    }
    return json.dumps([other_axes, len(_rates(record)[0])], sort_keys=True, default=str)


def _deviation(record: TrialRecord, first: TrialRecord) -> str:
    """Return the first part of the training whose rates have another ratio than the trials'; empty if none has."""
    meant = record.lr / first.lr
    for part, rates, of_first in zip(_COMPARED, _rates(record)[1:], _rates(first)[1:], strict=True):
        ratio = _ratio(rates, of_first, meant)
        if not math.isclose(ratio, meant, rel_tol=TOLERANCE):
            return (
                f"learning rates: {ratio:.3g} times those of the trial with lr={first.lr:g} {part}, and {meant:.3g}"
                " times is meant"
            )
    return ""


def _ratio(rates: Sequence[float], of_first: Sequence[float], meant: float) -> float:
    """Return the ratio of the groups that differs most from the one that is meant; that one if no group has a rate."""
    pairs = [(rate, other) for rate, other in zip(rates, of_first, strict=True) if rate > 0 or other > 0]
    ratios = [rate / max(other, _LEAST * rate) for rate, other in pairs]
    return max(ratios, key=lambda ratio: abs(math.log(max(ratio, _LEAST) / meant)), default=meant)


def _rates(record: TrialRecord) -> list[list[float]]:
    """Return the rates of all groups at the start and in each part compared; empty if the command reported none."""
    rates = record.metrics.get("rates")
    return rates if isinstance(rates, list) and len(rates) == 1 + len(_COMPARED) else []
