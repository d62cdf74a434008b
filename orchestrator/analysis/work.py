"""The work and the learning rates of trials, compared with what was asked: this module says which trials are short.

A trial's work is compared with its budget and with the work of the other cells. The time for the budget follows from a
trial's rate, so that cells whose lengths differ are compared over the same work.

A command reports the rates of all parameter groups at the start, in the middle and near the end of its training.
Within a sweep they should differ by the ratio of the trials' rates. Otherwise the rate never reached the script, the
script scales it once more, or its schedule runs at another pace. The start is not compared: a warm-up of a fixed number
of steps ends at another part of a shorter training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.store.grouping_keys import same_work
from orchestrator.store.record import TrialRecord
from orchestrator.store.trial_metrics import metric_value
from sweeps.lr_rule import RULES
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

TOLERANCE = 0.02
"""The share of the work that may be missing. Samples may also lack less than one global batch."""

_UNITS = ("samples", "tokens", "epochs")
"""The units in which cells are compared, most exact first."""

RATE_TOLERANCE = 0.1
"""A relative difference of rates that schedules of different numbers of steps explain."""

_LEAST = 1e-9
"""A ratio that stands for a rate of 0."""

_COMPARED = ("in the middle", "near the end")
"""The parts of a training whose rates are compared: all that a command reports after those at the start."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work that a trial did and the work that was asked, both in `unit`."""

    unit: str
    done: float
    asked: float
    step: float = 0.0
    """The work of one optimizer step, which cannot be divided; 0 if unknown."""

    @property
    def share(self) -> float:
        """Return the part of the work that was done, at most 1; work within the tolerance counts as whole."""
        missing = self.asked - self.done
        return 1.0 if missing <= TOLERANCE * self.asked or missing < self.step else self.done / self.asked

    @property
    def note(self) -> str:
        """Return `4 of 8 epochs`; an empty string if nothing is missing."""
        return "" if self.share == 1.0 else f"{_amount(self.done)} of {_amount(self.asked)} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Account:
    """A trial's work, and the samples that its budget means."""

    work: Work | None = None
    """None if a length in steps or seconds, or of the command's own choice, cannot be compared."""
    budget_samples: float | None = None
    """The samples whose time is that of the budget; None if the trial does not report its samples."""

    @property
    def share(self) -> float | None:
        """Return the share of the work that was done; None if unknown."""
        return self.work.share if self.work is not None else None

    @property
    def note(self) -> str:
        """Return `4 of 8 epochs`; an empty string if nothing is known to be missing."""
        return self.work.note if self.work is not None else ""


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def is_short(work_done: pd.Series[Any]) -> pd.Series[bool]:
    """Return for each trial or cell whether it is known to have done less than its work, from `work_done`."""
    return work_done.lt(1.0).fillna(False).astype(bool)


def accounts(records: Sequence[TrialRecord]) -> dict[str, Account]:
    """Return the account of each ok trial, by its id.

    Trials whose budget or work is unknown have none. Neither have trials that a rule of the sweep ended at a target.
    """
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.status is Status.OK and record.budget and metric_value(record.metrics, "time_to_target_s") is None:
            groups.setdefault(same_work(record), []).append(record)
    by_id: dict[str, Account] = {}
    for group in groups.values():
        yardsticks = {unit: yardstick for unit in _UNITS if (yardstick := _yardstick(group, unit)) is not None}
        has_equal_lengths = _has_equal_lengths(group)
        for record in group:
            account = _account(record, yardsticks, has_equal_lengths=has_equal_lengths)
            if account is not None:
                by_id[record.trial_id] = account
    return by_id


def _yardstick(group: Sequence[TrialRecord], unit: str) -> Work | None:
    """Return the budget's work in this unit, from the trial that shows the most of it; None if no trial reports it.

    A trial may do up to one step more than its budget, which is little for the smallest batch.
    """
    # A learning-rate rule that sets its own length says nothing about the budget.
    works = [_in_budget(record, unit) for record in group if not _sets_its_length(record)]
    return max((work for work in works if work is not None), key=lambda work: work.asked - work.step, default=None)


def _in_budget(record: TrialRecord, unit: str) -> Work | None:
    """Return the trial's work in this unit and what it implies for its whole budget."""
    done, of_budget = metric_value(record.metrics, unit), _of_budget(record)
    if not done:
        return None
    # Four of eight epochs imply twice their samples.
    share = of_budget.share if of_budget is not None else 1.0
    return Work(unit=unit, done=done, asked=done / share if share else done, step=_step(record, unit))


def _has_equal_lengths(group: Sequence[TrialRecord]) -> bool:
    """Return whether the trials of a group can do the same work; fixed steps or seconds give each cell its own."""
    budget = group[0].budget
    steps = {metric_value(record.metrics, "steps") for record in group}
    batches = {record.global_batch_size for record in group}
    # A script with a fixed number of steps does more work with a larger batch.
    has_same_steps = None not in steps and len(steps) == 1 < len(batches)
    return not ("seconds" in budget or "steps" in budget or has_same_steps)


def _account(record: TrialRecord, yardsticks: Mapping[str, Work], *, has_equal_lengths: bool) -> Account | None:
    own_length = _sets_its_length(record)
    of_budget = _of_budget(record)
    of_cells = _of_cells(record, yardsticks) if has_equal_lengths and not own_length else None
    work = min((work for work in (of_budget, of_cells) if work is not None), key=lambda work: work.share, default=None)
    samples = _in_budget(record, "samples")
    if samples is None:
        return Account(work=work) if work is not None else None
    return Account(work=work, budget_samples=samples.asked if own_length else yardsticks["samples"].asked)


def _of_budget(record: TrialRecord) -> Work | None:
    """Return the trial's work in the unit of its budget; None if the budget is in seconds or did not reach the trial.

    A count of lines that may not be epochs is only compared with the same count of other cells.
    """
    unit, asked = next(iter(record.budget.items()))
    done = metric_value(record.metrics, unit)
    # Lines may come with every second epoch, in all cells alike.
    is_assumed = unit == "epochs" and record.metrics.get("work_source") == "assumed"
    if done is None or unit == "seconds" or is_assumed or record.metrics.get("own_length"):
        return None
    return Work(unit=unit, done=done, asked=float(asked), step=_step(record, unit))


def _of_cells(record: TrialRecord, yardsticks: Mapping[str, Work]) -> Work | None:
    """Return the trial's work against that of all cells, in the first unit that it reports; None if unknown."""
    for unit, yardstick in yardsticks.items():
        done = metric_value(record.metrics, unit)
        if done is not None:
            return Work(unit=unit, done=done, asked=yardstick.asked, step=_step(record, unit) + yardstick.step)
    return None


def _step(record: TrialRecord, unit: str) -> float:
    """Return the work of one optimizer step, by which a trial may miss its budget; 0 if unknown."""
    samples, done = metric_value(record.metrics, "samples"), metric_value(record.metrics, unit)
    if unit == "steps" or not samples or not done:
        return 0.0
    return record.global_batch_size * done / samples


def _sets_its_length(record: TrialRecord) -> bool:
    """Return whether the learning-rate rule decides during the training how much work it takes, as AdaScale does."""
    return record.lr_rule in RULES and RULES[record.lr_rule].in_training


def rate_deviations(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return a note for each ok trial whose rates do not follow those of the sweep's trials, by its id.

    A trial is compared with the first one, by batch and GPUs, that has the same further axes and number of groups.
    """
    firsts: dict[str, TrialRecord] = {}
    notes: dict[str, str] = {}
    with_rates = [record for record in records if record.status is Status.OK and _rates(record)]
    for record in sorted(with_rates, key=lambda trial: (trial.gpus, trial.global_batch_size, trial.lr_multiplier)):
        # A rule that sets the rate during the training has no ratio.
        if _sets_its_length(record):
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
        if not math.isclose(ratio, meant, rel_tol=RATE_TOLERANCE):
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
