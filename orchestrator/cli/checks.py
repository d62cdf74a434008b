"""Rules that concern several keys of the config, and remarks on a valid one; a line for each.

The rules for single keys are in `orchestrator.config.schema`. Errors refuse a request; remarks are printed before it
runs.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.request import RUNNING
from orchestrator.config.schema import IDENTIFYING, OWN_SECTIONS, trainable_part, value_at
from orchestrator.config.trust import UNSET
from orchestrator.decision.recommendation import NO_OBJECTIVE
from orchestrator.store.cloud import is_uri, uri_errors
from orchestrator.trackers.tracking import tracker_errors
from sweeps.axes import Axes
from sweeps.branch import POINT
from sweeps.errors import nearest
from sweeps.identity import axes_without_effect
from sweeps.probe import PROBE, REPETITION
from sweeps.sweep import STANDARD_AXES
from sweeps.trial import TrialSpec


def request_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each key that contradicts another one, in the part of the config that says what to do."""
    sweep, cluster, tune = config["sweep"], config["cluster"], config["tune"]
    in_process = config["backend"] == "inprocess"
    if is_uri(str(config["results_dir"])):
        yield from uri_errors(config["results_dir"])
    if config["mode"] == "predict" and not config["predict"]["gpus"]:
        yield "mode=predict needs predict.gpus, a list of GPU counts like [8, 16, 32]"
    if in_process and cluster["address"]:
        yield "backend=inprocess uses no cluster: remove cluster.address"
    if in_process and sweep["early_stop"]:
        yield f"sweep.early_stop={sweep['early_stop']} needs Ray Tune: remove backend=inprocess"
    if in_process and (tune["callbacks"] or tune["storage_path"]):
        yield "backend=inprocess does not use Ray Tune: remove the section tune"
    if sweep["phases"] and config["report"]["objective"] == NO_OBJECTIVE:
        yield "sweep.phases chooses by report.objective, which is none: set it to time, energy or cost"
    if sweep["budget"]["cost"] is not None and config["report"]["price_per_gpu_hour"] is None:
        yield "sweep.budget.cost needs report.price_per_gpu_hour"
    if POINT in axes or value_at(config, POINT) is not None:
        chosen = [f"sweep.{key}={sweep[key]}" for key in ("phases", "early_stop") if sweep[key]]
        for key in [*chosen, *["mode=settle"] * (config["mode"] == "settle")]:
            yield f"{key} cannot be combined with branches ({POINT}), which all run after their base"
    if cluster["gpu_type"] and config["resources"]["device"] == "cpu" and "resources.device" not in axes:
        yield f"cluster.gpu_type={cluster['gpu_type']} and resources.device=cpu contradict each other: remove one"
    has_cluster = not in_process and (cluster["address"] or os.environ.get("RAY_ADDRESS"))
    if cluster["labels"] and config["mode"] in (*RUNNING, "plan") and not has_cluster:
        hint = "there is none: set cluster.address, or remove the labels (cluster.gpu_type works without a cluster)"
        yield f"cluster.labels={cluster['labels']} choose among the nodes of a cluster, but {hint}"
    yield from tracker_errors(config["tracker"])
    if sweep["claims"]:
        yield from claim_errors(config, axes)


_COLUMNS_OF_CELLS = ("device", "lr", "scaling", "status")
"""Columns that distinguish cells without being an axis."""


def claim_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each claim that cannot be read, and for each axis in it that does not exist."""
    from orchestrator.decision.claims import Claim, Claimed  # imports pandas

    known = (*axes, *STANDARD_AXES, *_COLUMNS_OF_CELLS)
    for claim in config["sweep"]["claims"]:
        expression = claim.get("expression") if isinstance(claim, Mapping) else claim
        try:
            selected_by = Claimed.parse(Claim.of(claim).expression).selected_by
        except ValueError as error:
            yield f"sweep.claims: {expression!r}: {error}"
            continue
        for axis in sorted(selected_by):
            if axis not in known and value_at(config, axis) is None:
                yield f"sweep.claims: {expression!r}: there is no axis {axis!r}{nearest(axis, known)}"


def axis_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each axis that changes no trial, and each axis of the baseline that cells do not have."""
    for axis in axes:
        section = axis.partition(".")[0]
        if section in OWN_SECTIONS and section not in IDENTIFYING:
            yield f"axis {axis!r} has no effect on any trial"
    cell_axes = [axis for axis in axes if axis != "seed"]
    baseline = config["sweep"]["baseline"]
    for axis in baseline if isinstance(baseline, Mapping) else ():
        if axis not in cell_axes:
            known = ", ".join(cell_axes)
            yield f"sweep.baseline names {axis!r}, which is no axis of cells{nearest(axis, cell_axes)}; axes: {known}"


def setup_errors(config: Mapping[str, Any], *, runs_checks: bool = True) -> Iterator[str]:
    """Yield a line for each error in what a trial is; with `runs_checks`, also those found by the trainable."""
    if "budget" in config:
        given = [f"{key}={value}" for key, value in config["budget"].items() if value is not None]
        if len(given) != 1:
            some = ", ".join(given) or "none"
            yield f"budget: give exactly one of epochs, samples, tokens, steps, seconds (the others null), not {some}"
    for key in (PROBE, REPETITION):
        changes = value_at(config, f"trainable.{key}") or {}
        if not isinstance(changes, Mapping) or not all(isinstance(each, Mapping) for each in changes.values()):
            yield f"trainable.{key} must give changes by section, {{budget: {{epochs: 2}}}}, not {changes!r}"
    target = value_at(config, "trainable._target_")
    if target == UNSET:
        yield "trainable._target_ is not set: give package.module:function"
    elif not isinstance(target, str) or not all(target.partition(":")):
        yield f"trainable._target_ must be package.module:function, not {target!r}"
    ignores = value_at(config, "trainable._ignores_")
    if not isinstance(ignores, list | None):
        yield f"trainable._ignores_ must be a list of axes, not {ignores!r}"
    needed = value_at(config, "trainable.strategy")
    if needed and config["strategy"] not in ("auto", needed):
        yield f"strategy={config['strategy']} does not fit this trainable, which needs {needed}: use strategy=auto"
    if runs_checks:
        yield from _unset(trainable_part(config))
        yield from _found_by_trainable(config)


def _found_by_trainable(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the trainable's `_check_` function finds; it must not start anything."""
    for key in ("_check_", "_remarks_"):  # `_remarks_` is called only once there are no errors
        if name := value_at(config, f"trainable.{key}"):
            try:
                found = pkgutil.resolve_name(name)
                yield from found(config) if key == "_check_" else ()
            except (ImportError, AttributeError, ValueError) as error:
                yield f"trainable.{key}={name!r}: {error}"


def _unset(value: Any, key: str = "") -> Iterator[str]:
    """Yield a line for every required key that is not set, except those with another message."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unset(item, f"{key}.{name}" if key else str(name))
    elif value == UNSET and key not in ("trainable._target_", "trainable.argv"):
        yield f"{key} is not set: {key}=…"


def setup_remarks(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield remarks on a valid config: on axes that the trainable ignores, then the trainable's own."""
    ignores = value_at(config, "trainable._ignores_") or ()
    several = [axis for axis, values in axes.items() if not isinstance(values, str) and len(values or ()) > 1]
    if ignored := [axis for axis in several if axis in ignores or axis.partition(".")[0] in ignores]:
        name = str(value_at(config, "trainable._target_")).partition(":")[0]
        which = "each" if len(ignored) > 1 else "it"
        yield f"{name} ignores {', '.join(ignored)}: all values of {which} give the same training"
    if own := value_at(config, "trainable._remarks_"):
        counts = {"gpus": axes["gpus"]} if "gpus" in axes else {}
        sweep = {**config["sweep"], "axes": {**config["sweep"]["axes"], **counts}}
        yield from pkgutil.resolve_name(own)({**config, "sweep": sweep})


def received_errors(config: Mapping[str, Any], trials: Sequence[TrialSpec], axes: Axes) -> Iterator[str]:
    """Yield a line for each axis over a config key whose values do not reach the trainable."""
    ignores = value_at(config, "trainable._ignores_") or ()
    left_out = {*STANDARD_AXES, *OWN_SECTIONS, *ignores}
    own = [axis for axis in axes if not {axis, axis.partition(".")[0]} & left_out]
    for axis in axes_without_effect(trials, own):
        section, _, key = axis.partition(".")
        hint = "remove it"
        if section == "optimizer" and (declared := value_at(config, "trainable.optimizer")):
            listed = ",".join(map(str, axes[axis]))
            hint = f"trainable.optimizer={declared} takes the place of that section; for a key that your code reads: "
            name = key or "optimizer_name"
            hint += f"""+trainable.{name}={listed.partition(",")[0]} 'sweep.axes."trainable.{name}"=[{listed}]'"""
        yield f"axis {axis!r} does not reach the trainable, all of its values train alike: {hint}"


def sweep_remarks(config: Mapping[str, Any], trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Yield remarks on the trials of a valid sweep over several batch sizes that recommends a cell."""
    batches = {trial.batch.global_batch_size for trial in trials}
    if len(batches) < 2 or config["report"]["objective"] == NO_OBJECTIVE:
        return
    references = {trial.lr.reference_batch_size for trial in trials}
    by_batch = not {"device_batch_size", "global_batch_size"} & set(value_at(config, "trainable._ignores_") or ())
    if by_batch and len(references) == 1 and not references & batches:
        remark = f"no trial has the reference batch of {references.pop()} (trainable.reference_batch_size)"
        yield f"{remark}: accuracies are compared with the most accurate cell instead"
    if (steps := value_at(config, "budget.steps")) is not None:
        yield (
            f"budget.steps={steps} is the same number of steps at every batch size, so a larger batch trains on more "
            "samples and takes no less time; to compare equal work, set budget.samples, budget.tokens or budget.epochs"
        )
