"""Composes and checks a sweep; all mistakes are reported together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.composition.composition import Composition
from orchestrator.composition.composition_error import CompositionError
from orchestrator.scheduling.node import Node
from sweeps.mistakes import MistakesError

if TYPE_CHECKING:
    from orchestrator.command_line.configured_sweep import ConfiguredSweep

_SOME_CLUSTER = Node(name="cluster", cpus=1024, gpus=64)
"""Stands in for a cluster not yet asked: a trial too large for this fits nowhere; other misfits show up later."""


def composed(overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> Composition:
    """Compose the config. Raises MistakesError, which also lists mistakes in the overrides that do compose."""
    try:
        return Composition(overrides, sections)
    except CompositionError as error:
        raise MistakesError([*error.mistakes, *_further(error, sections)]) from None


def checked(composition: Composition) -> ConfiguredSweep:
    """Check the sweep as far as possible before anything is started. Raises MistakesError."""
    from orchestrator.backends.choice import known_nodes
    from orchestrator.command_line.configured_sweep import ConfiguredSweep
    from orchestrator.command_line.key_checks import key_mistakes  # imported here so that --help stays quick
    from orchestrator.command_line.request_checks import request_mistakes
    from orchestrator.config.request import READING
    from orchestrator.telemetry.machine import this_machine

    configured = ConfiguredSweep(composition)
    config, request = configured.config, configured.request
    mistakes = [*key_mistakes(config), *request_mistakes(config, request.sweep.axes)]
    if request.mode not in READING:
        try:
            nodes = _SOME_CLUSTER if request.cluster.address else this_machine()
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
