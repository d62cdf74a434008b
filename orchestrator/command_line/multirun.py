"""Checks all sweeps of a multirun before the first one starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from orchestrator.command_line.checking import checked, composed
from orchestrator.composition.composition import Composition
from orchestrator.composition.expansion import expanded, meaning
from sweeps.mistakes import MistakesError

MANY = 10
"""Above this many sweeps the check is announced: each takes some tenths of a second."""

Compositions = dict[frozenset[str], Composition]
"""Compositions by the meaning of each sweep's overrides."""


def check_each(overrides: Sequence[str]) -> Compositions:
    """The sweeps. Raises MistakesError with all mistakes in any of them, and if two would share a folder.

    Values that use the job's number (`${hydra:job.num}`) are known only when its turn comes.
    """
    found: Compositions = {}
    if any("${hydra:" in override for override in overrides):
        return found
    mistakes: list[str] = []
    asked: dict[str, tuple[list[str], Any]] = {}
    sweeps = expanded(overrides)
    if len(sweeps) > MANY:
        print(f"checking {len(sweeps)} sweeps before the first one starts", file=sys.stderr)
    for sweep in sweeps:
        own = [each for each in sweep if each not in overrides]
        whose = f"with {' '.join(own)}: " if own else ""
        try:
            composition = composed(sweep)
            configured = checked(composition)
        except MistakesError as error:
            mistakes += [f"{whose}{mistake}" for mistake in error.mistakes]
            continue
        found[meaning(sweep)] = composition
        request = configured.request
        place = request.store or str(request.results_dir)
        now = configured.asked()
        first, before = asked.setdefault(place, (own, now))
        if request.mode == "run" and not request.allow_changed and now != before:
            mistakes.append(
                f"{whose}its results would go where those with {' '.join(first)} go, to {place}, and"
                " answer another question: give each a folder, as with 'results_dir=results/${hydra:job.num}'"
            )
    if mistakes:
        raise MistakesError(mistakes)
    return found
