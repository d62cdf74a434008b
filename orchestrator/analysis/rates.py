"""Learning rates that commands used, compared between cells: rates that differ by another factor than the trials' own.

A command reports the rates of all parameter groups at the start, in the middle and near the end of its training. Within
a sweep they should differ by the ratio of the trials' rates. Otherwise the rate never reached the script, the script
scales it once more, or its schedule runs at another pace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from orchestrator.store.record import TrialRecord
from sweeps.lr_rule import RULES
from sweeps.status import Status

TOLERANCE = 0.1
"""A relative difference of rates that schedules of different numbers of steps explain."""

_LEAST = 1e-9
"""A ratio that stands for a rate of 0."""

_PARTS = ("at the start", "in the middle", "near the end")


def deviations(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return a note for each ok trial whose rates do not follow those of the sweep's trials, by its id.

    A trial is compared with the first one, by batch and GPUs, that has the same other axes and number of groups.
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
    scaling = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", "lr_multiplier", "seed")
    others = {axis: value for axis, value in record.axes.items() if axis not in scaling}
    others = {axis: value for axis, value in others.items() if not axis.endswith(".lr")}
    return json.dumps([others, len(_rates(record)[0])], sort_keys=True, default=str)


def _deviation(record: TrialRecord, first: TrialRecord) -> str:
    """Return in which part of the training the rates have another ratio than the trials'; empty if in none."""
    asked = record.lr / first.lr
    # A warm-up of a fixed number of steps ends at another part of a shorter training, so the start does not count.
    for part, rates, of_first in zip(_PARTS[1:], _rates(record)[1:], _rates(first)[1:], strict=True):
        ratio = _ratio(rates, of_first, asked)
        if not math.isclose(ratio, asked, rel_tol=TOLERANCE):
            return (
                f"learning rates: {ratio:.3g} times those of the trial with lr={first.lr:g} {part}, and {asked:.3g}"
                " times is meant"
            )
    return ""


def _ratio(rates: Sequence[float], of_first: Sequence[float], asked: float) -> float:
    """Return the ratio of the groups that differs most from the one asked for; that one if no group has a rate."""
    pairs = [(rate, other) for rate, other in zip(rates, of_first, strict=True) if rate > 0 or other > 0]
    ratios = [rate / max(other, _LEAST * rate) for rate, other in pairs]
    return max(ratios, key=lambda ratio: abs(math.log(max(ratio, _LEAST) / asked)), default=asked)


def _rates(record: TrialRecord) -> list[list[float]]:
    rates = record.metrics.get("rates")
    return rates if isinstance(rates, list) and len(rates) == len(_PARTS) else []
