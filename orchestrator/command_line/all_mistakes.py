"""A composition, or everything that is wrong with it: with overrides that do not fit, and with what the others ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.composition.composition import Composition
from orchestrator.composition.misfits import CompositionError
from sweeps.mistakes import MistakesError


def composed(overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> Composition:
    """The composition; MistakesError, also with what is wrong with the overrides that do fit."""
    try:
        return Composition(overrides, sections)
    except CompositionError as error:
        raise MistakesError([*error.mistakes, *_further(error, sections)]) from None


def _further(error: CompositionError, sections: Mapping[str, Mapping[str, Any]] | None) -> Iterator[str]:
    from orchestrator.command_line.question import Question  # not for --help, which is to come quickly

    if not any(override.startswith(("sweep=", "sweep.name=")) for override in error.fitting):
        return
    try:
        Question.checked(Composition(error.fitting, sections))
    except MistakesError as further:
        yield from (each for each in further.mistakes if not error.is_due_to_them(each))
