"""The step from overrides to a checked sweep: compose the config, check it, report all errors together.

The rules for single keys are in `orchestrator.config.schema`, those that concern several keys are here.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from orchestrator.cli.recorded_arguments import command_here
from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.config.commands import program, shell_command
from orchestrator.config.compose import Composition
from orchestrator.config.composition_errors import CompositionError
from orchestrator.config.fingerprint import code_in
from orchestrator.config.key_checks import (
    axis_value_errors,
    group_errors,
    name_errors,
    structure_errors,
    value_errors,
)
from orchestrator.config.overrides import FROM_PROGRAM, key_of, rewritten, script_name, with_command
from orchestrator.config.request import JSON, READING, RUNNING, Metric, Request
from orchestrator.config.schema import IDENTIFYING, OWN_SECTIONS, SCHEMA, may_be_axis, trainable_part, value_at
from orchestrator.config.search_path import primary_arguments, shipped_dirs
from orchestrator.config.settings import ReportSection
from orchestrator.config.suggestions import explained, with_known_choices
from orchestrator.config.trial_setup import device_of
from orchestrator.config.trust import UNSET
from orchestrator.config.value_types import is_text
from orchestrator.config.wrong_overrides import ALONE
from orchestrator.decision.recommendation import NO_OBJECTIVE
from orchestrator.schedule.cluster import Node
from orchestrator.store.cloud import is_uri, uri_errors
from orchestrator.trackers.tracking import tracker_errors, tracker_remarks
from sweeps.axes import Axes, axes_errors, flat
from sweeps.branch import BRANCH_TOKENS
from sweeps.cluster_address import cluster_address
from sweeps.errors import ConfigError, nearest
from sweeps.identity import axes_without_effect
from sweeps.metric import is_higher_better
from sweeps.probe import PROBE, REPETITION
from sweeps.sweep import STANDARD_AXES
from sweeps.trial import TrialSpec

_SOME_CLUSTER = Node(name="cluster", cpus=1024, gpus=64)
"""Stands in for a cluster that has not answered yet: a trial too large for this fits nowhere."""

_OF_A_TRIAL = tuple(key for key in SCHEMA if key.partition(".")[0] in (*IDENTIFYING, "budget"))
_OF_THE_SWEEP = tuple(key for key in SCHEMA if key not in _OF_A_TRIAL)


def composed(overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> Composition:
    """Compose the config. Raises ConfigError, also with the errors in the overrides that do compose."""
    try:
        return Composition(overrides, sections)
    except CompositionError as error:
        errors = list(error.errors)
        if error.composed is not None and is_text(mode := error.composed.get("mode")):
            if wrong_mode := list(value_errors({"mode": mode}, ["mode"])):
                # A word that says nothing by itself belongs to the mode: `mode=delete 3fa2`.
                errors = [*(line for line in errors if not line.endswith(ALONE)), *wrong_mode]
        # Without a sweep the rest would only produce consequences of that.
        names_a_sweep = any(override.startswith(("sweep=", "sweep.name=")) for override in error.fitting)
        # `sbatch nodes=2` means the nodes of the job.
        if "mode=launch" in error.corrected and "mode=launch" not in overrides:
            nodes = [override for override in overrides if override.startswith("nodes=")]
            errors += [f"{one!r} is that of each trial: write launch.{one}" for one in nodes]
            errors += [] if names_a_sweep else ["choose a sweep: sweep=NAME (mode=list shows them)"]
        if names_a_sweep and error.composed is not None:
            try:
                checked(Composition(error.fitting, sections, error.composed))
            except ConfigError as others:
                errors += [message for message in others.errors if not error.is_due_to_them(message)]
        wrong = [message for message in errors if not message.startswith(f"write {program()}")]
        # The line to type has what the other errors suggest, too.
        line, is_wrong = command_line(rewritten(error.corrected))
        raise ConfigError([*wrong, *([f"write {line}"] if is_wrong or len(wrong) < len(errors) else [])]) from None


def command_line(overrides: Sequence[str]) -> tuple[str, bool]:
    """Return the line to type for a sweep of a command behind `--`, and whether it differs from these overrides.

    It is what errors suggest: with a learning rate, or another name in braces. Other sweeps have none.
    """
    if "trainable.argv" not in map(key_of, overrides):
        return "", False
    try:
        checked(Composition(overrides))
    except ConfigError as error:
        lines = [line.removeprefix("write ") for line in error.errors if line.startswith(f"write {program()}")]
        if lines:
            return lines[-1], True
    return shell_command([*primary_arguments(), *overrides]), False


def checked(composition: Composition) -> CheckedSweep:
    """Check the sweep as far as possible before anything is started. Raises ConfigError with all errors."""
    from orchestrator.backends.backend_choice import known_nodes

    config = composition.config
    # Before anything else, because every other error would only puzzle a user without a sweep.
    _check_named(composition)
    if errors := list(structure_errors(config)):  # nothing else can be read
        raise ConfigError([*errors, *value_errors(config, SCHEMA), *composition.unread_errors(of_trials=False)])

    # What the config says to do.
    axes = composition.axes()
    request = Request.of(config, axes)
    sweep = CheckedSweep(request=request, composition=composition)
    # A mode that only reads results takes the settings of a report from the journal, and no trial's.
    errors += composition.unread_errors(of_trials=request.settings.mode not in READING)
    errors += [*value_errors(config, _OF_THE_SWEEP), *request_errors(config, axes)]
    if request.settings.mode not in READING:
        errors += margin_errors(composition)
    wrong_axes = [*axis_errors(config, axes), *axis_value_errors(axes)]
    errors += wrong_axes

    # What its trials are. A mode that only reads results makes none.
    trials: Sequence[TrialSpec] = ()
    nodes = None
    if request.settings.mode not in READING:
        nodes = known_nodes(request)
        trials, trial_errors = _trials_of(sweep, nodes, has_wrong_axes=bool(wrong_axes))
        errors += trial_errors
        errors += command_errors(composition, trial_errors)
    if errors:
        raise ConfigError(errors)

    # Only now, because a trainable's `_remarks_` may rely on a valid config.
    remarks: list[str] = []
    expanded_axes: Axes = {} if request.settings.mode in READING else sweep.axes(nodes or (_SOME_CLUSTER,))
    for variant in sweep.variants.values():
        remarks += setup_remarks(_on_nodes(variant, nodes), expanded_axes)
    remarks += [*sweep_remarks(config, trials), *tracker_remarks(config["tracker"])]
    return replace(sweep, remarks=tuple(dict.fromkeys(remarks)))


def _trials_of(
    sweep: CheckedSweep, nodes: Sequence[Node] | None, *, has_wrong_axes: bool
) -> tuple[Sequence[TrialSpec], list[str]]:
    """Return the trials, and the errors in what they are; `nodes` is None if only a cluster knows them."""
    config, request = sweep.config, sweep.request
    axes, grid = request.axes, request.settings.sweep

    def check(config: Mapping[str, Any], *, whole: bool = True) -> list[str]:
        runs_here = request.settings.mode in RUNNING and nodes is not None
        arguments = sweep.composition.arguments
        return list(_trial_errors(_on_nodes(config, nodes), arguments, whole=whole, runs_here=runs_here))

    # If config keys are axes, only a variant shows whether the trainable gets all it needs.
    errors = check(config, whole=all(axis in STANDARD_AXES for axis in axes))
    # A cluster may not have answered yet, and its grid can be checked all the same.
    grid_nodes = nodes or (_SOME_CLUSTER,)
    if has_wrong_axes:
        # An axis over a key of the whole sweep could replace `trusted_modules`, so no variant is made then.
        return (), [*errors, *axes_errors(sweep.axes(grid_nodes), grid.zip, grid.exclude)]
    if errors:
        return (), errors
    trials: Sequence[TrialSpec] = ()
    try:
        trials = sweep.trials(grid_nodes, guessed=nodes is None, check=check)
    except ConfigError as error:
        errors += error.errors
    return trials, [*errors, *received_errors(config, trials, axes)]


def _on_nodes(config: Mapping[str, Any], nodes: Sequence[Node] | None) -> Mapping[str, Any]:
    """Return the config with the device that trials have on these nodes; as it is if only a cluster knows them."""
    if nodes is None:
        return config
    return {**config, "resources": {**config["resources"], "device": device_of(config, nodes)}}


def _check_named(composition: Composition) -> None:
    """Raise ConfigError if no sweep was chosen or described by its axes, or the chosen one has no name."""
    sweep, mode = composition.config.get("sweep"), composition.config["mode"]
    if not isinstance(sweep, Mapping):
        return
    axes = sweep.get("axes")
    has_grid = composition.sweep or mode in READING or not isinstance(axes, Mapping) or any(axes.values())
    if has_grid and sweep.get("name") not in (None, "???"):
        return
    if composition.sweep:
        hint = "its file must begin with the line '# @package _global_' and set sweep: {name: …}"
        raise ConfigError([f"sweep={composition.sweep} gives no sweep.name: {hint}"])
    # A mode that does not exist would not be told otherwise: many people type one without a sweep.
    wrong_mode = list(value_errors(composition.config, ["mode"]))
    if not wrong_mode and (command := command_here(composition.arguments)):
        raise ConfigError([f"a folder names no sweep to run: write {command}"])
    choices = ", ".join(f"sweep={name}" for name in composition.groups.options("sweep"))
    raise ConfigError(wrong_mode or [f"choose a sweep: {choices} (mode=plan shows what it would run; see --help)"])


def _trial_errors(
    config: Mapping[str, Any], arguments: Sequence[str], *, whole: bool, runs_here: bool
) -> Iterator[str]:
    """Yield errors in what a trial is.

    `whole`: no axis can change this config any more; only then, and if all is trusted, its own checks run. `runs_here`:
    trials run on this machine, so that what they import must be installed here.
    """
    from orchestrator.config.content_hashes import import_errors
    from orchestrator.config.trust import trust_errors

    if errors := list(name_errors(config)):  # of an axis; nothing else can be looked up
        yield from errors
        return
    yield from value_errors(config, _OF_A_TRIAL)
    distrusted = list(trust_errors(config, arguments, shipped_dirs()))
    yield from distrusted
    yield from group_errors(config)
    yield from setup_errors(config, runs_checks=whole and not distrusted)
    yield from import_errors(code_in(trainable_part(config)), installed=runs_here)


_RATES = ("trainable.lr=0.1", "trainable.reference_batch_size=32")


def missing_rates(composition: Composition) -> list[str]:
    """Return the learning rate and its batch, as overrides, if neither the user nor a file of theirs gives them."""
    words, config = composition.arguments, composition.config
    given = {*map(key_of, words), *composition.axes()}
    rates = [rate for rate in _RATES if key_of(rate) not in given]
    is_shipped = value_at(composition.hydra, "runtime.choices.trainable") == "command"
    if not (rates and is_shipped):
        return []
    others = [word for word in words if not word.startswith(("-", "trainable")) and not word.endswith(FROM_PROGRAM)]
    with suppress(ConfigError):  # a file refers to other settings of the command
        # Other trainables have other rates: a file's stay the same.
        other = Composition([*others, "trainable=noop"]).config
        return [rate for rate in rates if value_at(other, key_of(rate)) != value_at(config, key_of(rate))]
    return []


_REPLACED = re.compile(r"trainable\.argv(?: names |: )(\S+?),? (?:is neither|and there is) .*: write (\S+)")


def command_errors(composition: Composition, errors: Sequence[str]) -> Iterator[str]:
    """Yield a line if a command behind `--` takes a learning rate that the user has not given.

    Then the whole line to type, also if it has names or files that do not exist, or lacks a value.
    """
    arguments, words = composition.arguments, value_at(composition.config, "trainable.argv")
    replaced = [match.groups() for line in errors if (match := _REPLACED.fullmatch(line))]
    is_fixed = any("so all values of sweep.axes" in line for line in errors)
    if not isinstance(words, list) or "trainable.argv" not in map(key_of, arguments):  # of a file
        return
    rates = missing_rates(composition)
    given = {key_of(rate): rate for rate in pkgutil.resolve_name("trainables.command.options:rates_in")(words)}
    rates = [given.get(key_of(rate), rate) for rate in rates]
    if is_without_rate := bool(rates) and "{lr}" in str(words):
        added = " ".join(_RATES)
        yield f"the command takes {{lr}}: add the rate and the global batch at which it was tuned, as in {added}"
    if not (replaced or is_fixed or is_without_rate):
        return
    own_name = f"sweep.name={script_name(words)}"
    for wrong, right in replaced:
        # A file's name may be part of another one.
        words = [word.replace(wrong, right) if word == wrong or "{" in wrong else word for word in words]
    if is_fixed:
        has_epochs = value_at(composition.config, "budget.epochs") is not None
        words = pkgutil.resolve_name("trainables.command.options:varied")(words, has_epochs=has_epochs)
    rates = rates if "{lr}" in str(words) else []
    # The sweep has the name of its script.
    kept = [word for word in arguments if key_of(word) not in ("trainable", "trainable.argv") and word != own_name]
    kept = with_known_choices(kept)
    if "mode=launch" in kept and any(line.startswith("nodes=") for line in errors):
        # A command that no node tells of the others: the nodes are those of the job.
        kept = [f"launch.{word}" if key_of(word) == "nodes" else word for word in kept]
    with suppress(ConfigError):
        yield f"write {shell_command(with_command([*kept, *rates, '--', *words]))}"


def request_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each key that contradicts another one, in the part of the config that says what to do."""
    sweep, cluster, tune = config["sweep"], config["cluster"], config["tune"]
    in_process = config["backend"] == "inprocess"
    if is_uri(str(config["results_dir"])):
        yield from uri_errors(config["results_dir"])
    if config["format"] == "json" and config["mode"] in READING and config["mode"] not in JSON:
        yield f"format=json is for mode={', '.join(JSON)}; a report's JSON is tables/recommendation.json"
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
    if BRANCH_TOKENS in axes or value_at(config, BRANCH_TOKENS) is not None:
        chosen = [f"sweep.{key}={sweep[key]}" for key in ("phases", "early_stop") if sweep[key]]
        chosen += ["mode=settle"] if config["mode"] == "settle" else []
        for key in chosen:
            yield f"{key} cannot be combined with branches ({BRANCH_TOKENS}), which all run after their base"
    if cluster["gpu_type"] and config["resources"]["device"] == "cpu" and "resources.device" not in axes:
        yield f"cluster.gpu_type={cluster['gpu_type']} and resources.device=cpu contradict each other: remove one"
    _, address = cluster_address(config["backend"], cluster["address"])
    if cluster["labels"] and config["mode"] in (*RUNNING, "plan") and not address:
        hint = "there is none: set cluster.address, or remove the labels (cluster.gpu_type works without a cluster)"
        yield f"cluster.labels={cluster['labels']} choose among the nodes of a cluster, but {hint}"
    metric = config["report"]["metric"]
    if isinstance(metric, str) and metric != "auto" and is_higher_better(metric) is None:
        yield (
            f"report.metric={metric}: the name does not tell whether more of it is better; write"
            f" 'report.metric={{name: {metric}, better: higher}}' (or lower)"
        )
    yield from tracker_errors(config["tracker"])
    if sweep["claims"]:
        yield from claim_errors(config, axes)


def margin_errors(composition: Composition) -> Iterator[str]:
    """Yield a line if the user chooses another metric than a sweep's file whose margin is in its metric's unit."""
    report, arguments = composition.config["report"], composition.arguments
    given = {key_of(argument) for argument in arguments}
    if "report.metric" not in given or "report.margin" in given or report["margin"] == ReportSection().margin:
        return
    others = [word for word in arguments if not word.startswith("-") and not word.endswith(FROM_PROGRAM)]
    others = [word for word in others if key_of(word) != "report.metric"]
    of_file, metric = Metric.of(Composition(others).config), Metric.of(composition.config)
    if metric != of_file:
        yield (
            f"report.metric={metric.name}: report.margin={report['margin']} is meant for {of_file.name}; give"
            f" report.margin in the unit of {metric.name}, too"
        )


_COLUMNS_OF_CELLS = ("device", "lr", "scaling", "status")
"""Columns that distinguish cells without being an axis."""


def claim_errors(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a line for each claim that cannot be read, and for each axis in it that does not exist."""
    from orchestrator.decision.claim_expressions import Claim, Claimed  # imports pandas

    # An axis that exists but is not swept has one value, and a claim may name it.
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
        # `trusted_modules[0]` would be a key of that section, too.
        if "[" in axis or "" in axis.split("."):
            yield f"axis {axis!r} must be a key with dots, such as optimizer.betas.0"
        elif not may_be_axis(axis):
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
        # The budget has a default, so that setting another kind leaves two unless the default is taken back.
        given = [f"{key}={value}" for key, value in config["budget"].items() if value is not None]
        if len(given) != 1:
            some = ", ".join(given) or "none"
            yield f"budget: give exactly one of epochs, samples, tokens, steps, seconds (the others null), not {some}"
    for key in (PROBE, REPETITION):
        changes = value_at(config, f"trainable.{key}") or {}
        if not isinstance(changes, Mapping) or not all(isinstance(change, Mapping) for change in changes.values()):
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
    if not runs_checks:
        return
    for key, value in flat(trainable_part(config)):
        if value == UNSET and key not in ("trainable._target_", "trainable.argv"):  # which have other messages
            yield f"{key} is not set: {key}=…"
    for key in ("_check_", "_remarks_"):  # `_remarks_` is called only once there are no errors
        if name := value_at(config, f"trainable.{key}"):
            try:
                function = pkgutil.resolve_name(name)
                for line in (function(config) or ()) if key == "_check_" else ():
                    yield explained(line)
            except (ImportError, AttributeError, ValueError) as error:
                yield f"trainable.{key}={name!r}: {error}"
            except (TypeError, ArithmeticError) as error:  # most checks calculate with values of the config
                yield f"trainable.{key}={name!r}: a value does not fit: {error}"


def setup_remarks(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield remarks on a valid config: on axes that the trainable ignores, then the trainable's own."""
    ignores = value_at(config, "trainable._ignores_") or ()
    # An axis with one value compares nothing that could come out alike.
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
