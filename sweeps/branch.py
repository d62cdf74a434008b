"""Branches: trials that continue another trial, their base, from one of its checkpoints at another batch and rate.

The base of a branch is the same trial at the reference batch, under rule `none`. Branches of all batches and rules
share it, so that what they have in common is trained once (Merrill et al. 2025, "Critical batch size revisited").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from sweeps.errors import ConfigError
from sweeps.lr_rule import RULES
from sweeps.sweep import STANDARD_AXES
from sweeps.trial import TrialSpec

BRANCH_TOKENS = "trainable.branch_tokens"
"""The key, and usually an axis, that makes a trial a branch: the tokens after which it leaves its base."""


def point_of(trial: TrialSpec) -> int | None:
    """Return the tokens after which a branch leaves its base; None for other trials."""
    tokens: int | None = trial.settings.get("branch_tokens")
    return tokens


def base_of(trial: TrialSpec) -> str:
    """Return the id of a branch's base; empty for other trials."""
    return str(trial.settings.get("branch_base", ""))


def with_bases(trials: Iterable[TrialSpec], at: Callable[[Mapping[str, Any]], TrialSpec]) -> list[TrialSpec]:
    """Return the trials, and the bases of the branches among them first; `at` returns the trial at a point.

    Each branch is given the id of its base, and each base the points at which it saves a checkpoint. Neither changes an
    id: a branch's axes and config determine its base. Raises ConfigError for branches that cannot be compared.
    """
    known = {trial.trial_id: trial for trial in trials}
    branches = {key: trial for key, trial in known.items() if point_of(trial) is not None}
    if errors := list(_errors(branches.values())):
        raise ConfigError(errors)
    bases: dict[str, TrialSpec] = {}  # by their axes
    base_ids: dict[str, str] = {}  # by branch
    points: dict[str, set[int]] = {}  # by base
    for key, branch in branches.items():
        axes = _axes_of_base(branch)
        # To make a trial takes a composition.
        base = bases[repr(axes)] = bases.get(repr(axes)) or at(axes)
        base_ids[key] = base.trial_id
        points.setdefault(base.trial_id, set()).add(point_of(branch) or 0)
    # A base may be a trial of the sweep itself, which then runs once for both purposes.
    first = {base.trial_id: known.get(base.trial_id, base) for base in bases.values()}
    return [
        *(base.with_settings(branch_points=sorted(points[key])) for key, base in first.items()),
        *(
            trial.with_settings(branch_base=base_ids[key]) if key in base_ids else trial
            for key, trial in known.items()
            if key not in first
        ),
    ]


def _axes_of_base(branch: TrialSpec) -> dict[str, Any]:
    """Return the axes of a branch's base: what branches share must not depend on their own rule, rate or batch."""
    without_rule = {axis: STANDARD_AXES[axis] for axis in ("lr_rule", "lr_multiplier") if axis in branch.axes}
    reference = branch.lr.reference_batch_size
    return {**branch.axes, **without_rule, "global_batch_size": reference, BRANCH_TOKENS: None}


def _errors(branches: Collection[TrialSpec]) -> Iterator[str]:
    """Yield a line for each reason why the losses of these branches could not be compared."""
    for branch in branches:
        yield from _errors_of(branch, point_of(branch) or 0)
    batches = {branch.batch.global_batch_size for branch in branches}
    for reference in {branch.lr.reference_batch_size for branch in branches} - batches:
        yield f"sweep.axes.global_batch_size lacks the reference batch {reference}, with which others are compared"


def _errors_of(trial: TrialSpec, point: int) -> Iterator[str]:
    """Yield a line for each reason why a branch's loss could not be compared with that of others."""
    data, model, budget = (trial.config.get(section) or {} for section in ("data", "model", "budget"))
    window, whole = trial.settings.get("branch_window_tokens"), budget.get("tokens")
    epoch, length = data.get("epoch_tokens"), data.get("sequence_length") or model.get("sequence_length")
    if window is None:
        yield f"{BRANCH_TOKENS}={point} needs trainable.branch_window_tokens, the tokens that a branch trains"
    if BRANCH_TOKENS not in trial.axes:
        yield f"{BRANCH_TOKENS}={point} must be an axis: 'sweep.axes.\"{BRANCH_TOKENS}\"=[{point}]'"
    schedule = (trial.config.get("schedule") or {}).get("name")
    if RULES[trial.lr.rule].in_training or "name" in trial.lr.optimizer or schedule == "increase_batch":
        yield f"{BRANCH_TOKENS}={point} cannot be combined with lr_rule={trial.lr.rule} and schedule={schedule}"
    if trial.axes.get("device_batch_size") is not None:
        yield f"{BRANCH_TOKENS}={point} needs sweep.axes.global_batch_size in place of sweep.axes.device_batch_size"
    # Without these numbers the divisibility below cannot be checked.
    if epoch is None or length is None or whole is None:
        yield f"{BRANCH_TOKENS}={point} needs budget.tokens, and data.epoch_tokens, after which losses are measured"
        return
    for name, tokens in ((BRANCH_TOKENS, point), ("trainable.branch_window_tokens", window)):
        if tokens is not None and tokens % epoch:
            yield f"{name}={tokens} is not a multiple of data.epoch_tokens={epoch}, after which checkpoints are saved"
    if point + (window or 0) > whole:
        yield f"{BRANCH_TOKENS}={point} and trainable.branch_window_tokens={window} go beyond budget.tokens={whole}"
    for batch in (trial.batch.global_batch_size, trial.lr.reference_batch_size):
        if epoch % (batch * length):
            yield f"data.epoch_tokens={epoch} is not a multiple of a batch of {batch} × {length} tokens"
