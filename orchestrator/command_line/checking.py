"""A composition, and the sweep that it configures; or everything that is wrong with them, told at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.composition.composition import Composition
from orchestrator.composition.composition_error import CompositionError
from orchestrator.composition.search_path import config_dir
from sweeps.feasibility import Node
from sweeps.mistakes import MistakesError

if TYPE_CHECKING:
    from orchestrator.command_line.configured_sweep import ConfiguredSweep

_SOME_CLUSTER = Node(name="cluster", cpus=1024, gpus=64)
"""Stands for a cluster that was not asked yet: what does not fit it fits none, or is found once it is asked."""


def composed(overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> Composition:
    """The composition; MistakesError, also with what is wrong with the overrides that do fit."""
    try:
        return Composition(overrides, sections)
    except CompositionError as error:
        raise MistakesError([*error.mistakes, *_further(error, sections)]) from None


def checked(composition: Composition) -> ConfiguredSweep:
    """The configured sweep, which makes sense as far as can be known before anything is started; else MistakesError."""
    from orchestrator.backends.choice import known_nodes
    from orchestrator.command_line.configured_sweep import ConfiguredSweep
    from orchestrator.command_line.known_keys import key_mistakes  # all not for --help, which is to come quickly
    from orchestrator.command_line.request_checks import request_mistakes
    from orchestrator.config.request import READING
    from orchestrator.telemetry.machine import this_machine

    configured = ConfiguredSweep(composition)
    config, request = configured.config, configured.request
    mistakes = [*key_mistakes(config, config_dir()), *request_mistakes(config, request.axes)]
    if request.mode not in READING:
        try:
            nodes = _SOME_CLUSTER if request.address else this_machine()
            configured.trials_on((nodes,), guessed=known_nodes(request) is None)
        except MistakesError as error:
            mistakes += error.mistakes
    if mistakes:
        raise MistakesError(mistakes)
    return configured


def _further(error: CompositionError, sections: Mapping[str, Mapping[str, Any]] | None) -> Iterator[str]:
    if not any(override.startswith(("sweep=", "sweep.name=")) for override in error.fitting):
        return
    try:
        checked(Composition(error.fitting, sections))
    except MistakesError as further:
        yield from (each for each in further.mistakes if not error.is_due_to_them(each))
