"""The step from overrides to a checked sweep: compose the config, check it, report all errors together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.compose import Composition
from orchestrator.config.config_files import shipped_dirs
from orchestrator.config.request import READING, RUNNING, Request
from orchestrator.config.schema import (
    IDENTIFYING,
    SCHEMA,
    axis_value_errors,
    group_errors,
    key_errors,
    structure_errors,
    trainable_part,
    value_errors,
)
from orchestrator.config.setup import CheckedSweep, Grid, code_in
from orchestrator.config.wrong_overrides import CompositionError
from orchestrator.schedule.cluster import Node
from sweeps.axes import axes_errors
from sweeps.errors import ConfigError
from sweeps.sweep import STANDARD_AXES

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
        names_a_sweep = any(override.startswith(("sweep=", "sweep.name=")) for override in error.fitting)
        if names_a_sweep and error.composed is not None:
            try:
                checked(Composition(error.fitting, sections, error.composed))
            except ConfigError as others:
                errors += [message for message in others.errors if not error.is_due_to_them(message)]
        raise ConfigError(errors) from None


def checked(composition: Composition) -> CheckedSweep:
    """Check the sweep as far as possible before anything is started. Raises ConfigError with all errors."""
    from orchestrator.backends.choose import asks_cluster
    from orchestrator.cli.checks import axis_errors, received_errors, request_errors, setup_remarks, sweep_remarks
    from orchestrator.telemetry.cpu import this_machine  # imported here so that --help stays quick

    config = composition.config
    _check_named(composition)
    errors = [*structure_errors(config)]
    if errors:  # nothing else can be read
        raise ConfigError([*errors, *value_errors(config, SCHEMA), *key_errors(config)])
    axes = composition.axes()
    request = Request.of(config, axes, composition.arguments)
    grid = Grid(request, composition)
    errors += [*key_errors(config), *value_errors(config, _OF_THE_SWEEP), *request_errors(config, axes)]
    wrong_axes = list(axis_errors(config, axes))
    errors += [*wrong_axes, *axis_value_errors(axes)]
    remarks: list[str] = []
    if request.settings.mode not in READING:
        elsewhere = asks_cluster(request)

        def check(config: Mapping[str, Any], *, whole: bool = True) -> list[str]:
            runs_here = request.settings.mode in RUNNING and not elsewhere
            return list(_trial_errors(config, composition.arguments, whole=whole, runs_here=runs_here))

        # If config keys are axes, only a variant shows whether the trainable gets all it needs.
        wrong = check(config, whole=all(axis in STANDARD_AXES for axis in axes))
        errors += wrong
        nodes = (_SOME_CLUSTER if request.cluster.address else this_machine(),)
        if wrong_axes:
            # An axis over a key of the whole sweep could replace `trusted_modules`, so no variant is made then.
            errors += axes_errors(grid.axes(nodes), request.sweep.zip, request.sweep.exclude)
        elif not wrong:
            try:
                trials = grid.trials(nodes, guessed=elsewhere, check=check)
            except ConfigError as error:
                errors += error.errors
            else:
                remarks += [
                    remark
                    for variant in grid.configs
                    if not errors
                    for remark in setup_remarks(variant, grid.axes(nodes))
                ]
                remarks += sweep_remarks(config, trials)
                errors += received_errors(config, trials, axes)
    if errors:
        raise ConfigError(errors)
    return CheckedSweep(
        config=config,
        request=request,
        grid=grid,
        secrets=composition.secrets,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _check_named(composition: Composition) -> None:
    """Raise ConfigError if no sweep was chosen, or the chosen one has no name."""
    sweep = composition.config.get("sweep")
    if not isinstance(sweep, Mapping) or sweep.get("name") not in (None, "???"):
        return
    if composition.sweep:
        hint = "its file must begin with the line '# @package _global_' and set sweep: {name: …}"
        raise ConfigError([f"sweep={composition.sweep} gives no sweep.name: {hint}"])
    choices = ", ".join(f"sweep={name}" for name in composition.groups.options("sweep"))
    raise ConfigError([f"choose a sweep: {choices} (mode=plan shows what it would run; see --help)"])


def _trial_errors(
    config: Mapping[str, Any], arguments: Sequence[str], *, whole: bool, runs_here: bool
) -> Iterator[str]:
    """Yield errors in what a trial is; nothing that the config names runs unless it is all trusted and `whole`."""
    from orchestrator.cli.checks import setup_errors
    from orchestrator.config.fingerprint import import_errors
    from orchestrator.config.trust import trust_errors

    yield from value_errors(config, _OF_A_TRIAL)
    distrusted = list(trust_errors(config, arguments, shipped_dirs()))
    yield from distrusted
    yield from group_errors(config)
    yield from setup_errors(config, runs_checks=whole and not distrusted)
    yield from import_errors(code_in(trainable_part(config)), installed=runs_here)
