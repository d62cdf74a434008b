"""Checks the part of a config that says what a trial is; one line per mistake.

Remarks on a valid sweep before it runs: worth knowing, but not mistakes. One line each.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.cli.schema import OF_SETUP, value_errors
from orchestrator.config.request import IDENTIFYING, OWN_SECTIONS, value_at
from orchestrator.config.trust import UNSET
from orchestrator.decision.recommendation import NO_OBJECTIVE
from sweeps.axes import Axes
from sweeps.errors import unknown
from sweeps.lr_rule import RULES
from sweeps.probe import PROBE, REPETITION
from sweeps.trial import TrialSpec


def axis_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each mistake in the form of the sweep section, before the axes themselves are read."""
    for entry in config["sweep"]["exclude"]:
        if not isinstance(entry, Mapping):
            yield f"sweep.exclude must list combinations like {{gpus: 2, lr_rule: linear}}, not {entry!r}"
    for group in config["sweep"]["zip"]:
        if not isinstance(group, list):
            yield f"sweep.zip must list groups of axes like [gpus, global_batch_size], not {group!r}"
    for axis in axes:
        section = axis.partition(".")[0]
        if section in OWN_SECTIONS and section not in IDENTIFYING:
            yield f"axis {axis!r} has no effect on any trial"
    for rule in axes.get("lr_rule") or ():
        if isinstance(rule, str) and rule not in RULES:
            yield unknown("lr_rule", rule, RULES)


def setup_errors(config: Mapping[str, Any], *, runs_checks: bool = True) -> Iterator[str]:
    """Yield a line for each mistake in what a trial is; with `runs_checks`, also those the trainable's code finds."""
    yield from value_errors(config, OF_SETUP)
    yield from _budget(config)
    yield from _stand_ins(config)
    target = value_at(config, "trainable._target_")
    if target == UNSET:
        yield "trainable._target_ is not set: give package.module:function"
    elif not isinstance(target, str) or not all(target.partition(":")):
        yield f"trainable._target_ must be package.module:function, not {target!r}"
    ignores = value_at(config, "trainable._ignores_")
    if not isinstance(ignores, list | None):
        yield f"trainable._ignores_ must be a list of axes, not {ignores!r}"
    yield from _trainables_own(config, runs_checks)


def _trainables_own(config: Mapping[str, Any], runs_checks: bool) -> Iterator[str]:
    """Yield the trainable's own findings: its config may name a check function, which must not start anything."""
    needed = value_at(config, "trainable.strategy")
    if needed and config["strategy"] not in ("auto", needed):
        yield f"strategy={config['strategy']} does not fit this trainable, which needs {needed}: use strategy=auto"
    if not runs_checks:
        return
    yield from _unset({key: value for key, value in config.items() if key not in OWN_SECTIONS})
    for key in ("_check_", "_remarks_"):  # called only once there are no mistakes
        if own := value_at(config, f"trainable.{key}"):
            try:
                found = pkgutil.resolve_name(own)
                yield from found(config) if key == "_check_" else ()
            except (ImportError, AttributeError, ValueError) as error:
                yield f"trainable.{key}={own!r}: {error}"


def _unset(value: Any, key: str = "") -> Iterator[str]:
    """Yield a line for every required key that is not set, except those with a message of their own."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unset(item, f"{key}.{name}" if key else str(name))
    elif value == UNSET and key not in ("trainable._target_", "trainable.argv"):
        yield f"{key} is not set: {key}=…"


def _budget(config: Mapping[str, Any]) -> Iterator[str]:
    budget = {key: value for key, value in (config.get("budget") or {}).items() if value is not None}
    if "budget" in config and len(budget) != 1:
        given = ", ".join(f"{key}={value}" for key, value in budget.items()) or "none"
        yield f"budget: give exactly one of epochs, samples, steps, seconds (the others null), not {given}"


def _stand_ins(config: Mapping[str, Any]) -> Iterator[str]:
    for key in (PROBE, REPETITION):
        changes = value_at(config, f"trainable.{key}") or {}
        if not isinstance(changes, Mapping) or not all(isinstance(each, Mapping) for each in changes.values()):
            yield f"trainable.{key} must say by section what is different, {{budget: {{epochs: 2}}}}, not {changes!r}"


def baseline_errors(baseline: Any, points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if the baseline has known axes but is not a cell of the grid."""
    if not isinstance(baseline, Mapping):
        return
    there = {axis: {repr(point[axis]): point[axis] for point in points if axis in point} for axis in baseline}
    absent = [axis for axis, value in baseline.items() if value not in there[axis].values()]
    for axis in filter(there.get, absent):
        yield f"sweep.baseline is not a cell: {unknown(axis, baseline[axis], map(str, there[axis].values()))}"
    if not absent and not any(all(point[axis] == value for axis, value in baseline.items()) for point in points):
        values = ", ".join(f"{axis}={value}" for axis, value in baseline.items())
        yield f"sweep.baseline is not a cell: each of {values} occurs, but never together"


def setup_remarks(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield remarks on a valid config, the trainable's own last, which is told the GPU counts of these axes."""
    yield from _ignored(config, axes)
    if own := value_at(config, "trainable._remarks_"):
        counts = {"gpus": axes["gpus"]} if "gpus" in axes else {}
        sweep = {**config["sweep"], "axes": {**config["sweep"]["axes"], **counts}}
        yield from pkgutil.resolve_name(own)({**config, "sweep": sweep})


def _ignored(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a remark on axes that the trainable ignores: their trials differ by chance alone."""
    ignores = value_at(config, "trainable._ignores_") or ()
    several = [axis for axis, values in axes.items() if not isinstance(values, str) and len(values or ()) > 1]
    found = [axis for axis in several if axis in ignores or axis.partition(".")[0] in ignores]
    if found:
        name = str(value_at(config, "trainable._target_")).partition(":")[0]
        which = "each" if len(found) > 1 else "it"
        yield f"{name} ignores {', '.join(found)}: all values of {which} give the same training"


def sweep_remarks(config: Mapping[str, Any], trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Yield remarks on the trials of a valid sweep as a whole."""
    batches = {trial.batch.global_batch_size for trial in trials}
    if len(batches) > 1 and value_at(config, "report.objective") != NO_OBJECTIVE:
        yield from _without_reference(config, trials, batches)
        yield from _unequal_work(config)


def _without_reference(config: Mapping[str, Any], trials: Sequence[TrialSpec], batches: set[int]) -> Iterator[str]:
    """Yield a remark if a sweep over batch sizes lacks the one that accuracies are compared with."""
    references = {trial.lr.reference_batch_size for trial in trials}
    by_batch = not {"device_batch_size", "global_batch_size"} & set(value_at(config, "trainable._ignores_") or ())
    if by_batch and len(references) == 1 and not references & batches:
        remark = f"no trial has the reference batch of {references.pop()} (trainable.reference_batch_size)"
        yield f"{remark}, with which accuracies are compared: the most accurate cell stands in for it"


def _unequal_work(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark on a fixed number of steps: more GPUs then do more work instead of finishing sooner."""
    if (steps := value_at(config, "budget.steps")) is not None:
        yield (
            f"budget.steps={steps} is the same number of steps at every batch size: a larger batch (more GPUs with the "
            "same batch each) trains on more samples and ends no sooner; to compare equal work, set budget.samples or "
            "budget.epochs"
        )
