"""Several whole sweeps of one command: what is wrong with any of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.command_line.all_mistakes import checked, composed
from orchestrator.composition.composition import Composition
from orchestrator.composition.expansion import expanded, meaning
from sweeps.mistakes import MistakesError

SILENT_S = 2.0
"""Seconds that nobody minds to wait without a word."""

COMPOSED_AGAIN = 0.6
"""What Hydra's own composing of all sweeps, before the first, takes beside a check of them, as measured."""

Compositions = dict[frozenset[str], Composition]
"""By the meaning of each sweep's overrides."""


def check_each(overrides: Sequence[str]) -> Compositions:
    """The sweeps; MistakesError with whatever is wrong with any of them, and for those that would share a folder.

    What names its own number (`${hydra:job.num}`) is not known before its turn.
    """
    found: Compositions = {}
    if any("${hydra:" in override for override in overrides):
        return found
    mistakes: list[str] = []
    asked: dict[str, tuple[list[str], Any]] = {}
    sweeps = expanded(overrides)
    patience = Patience(len(sweeps))
    for sweep in sweeps:
        patience.one_more()
        own = [each for each in sweep if each not in overrides]
        whose = f"with {' '.join(own)}: " if own else ""
        try:
            composition = composed(sweep)
            question = checked(composition)
        except MistakesError as error:
            mistakes += [f"{whose}{mistake}" for mistake in error.mistakes]
            continue
        found[meaning(sweep)] = composition
        request = question.request
        place = request.store or str(request.results_dir)
        now = question.asked()
        first, before = asked.setdefault(place, (own, now))
        if request.mode == "run" and not request.allow_changed and now != before:
            mistakes.append(
                f"{whose}its results would go where those with {' '.join(first)} go, to {place}, and"
                " answer another question: give each a folder, as with 'results_dir=results/${hydra:job.num}'"
            )
    if mistakes:
        raise MistakesError(mistakes)
    return found


class Patience:
    """Says once, to stderr, how long the checks of many sweeps will take; those of a few say nothing."""

    def __init__(self, sweeps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._sweeps, self._clock = sweeps, clock
        self._begun, self._began, self._told = 0, clock(), False

    def one_more(self) -> None:
        """Another sweep is about to be looked at."""
        passed_s = self._clock() - self._began
        if passed_s > SILENT_S and not self._told:
            self._told = True
            whole_s = passed_s / self._begun * self._sweeps * (1 + COMPOSED_AGAIN)
            print(f"checking {self._sweeps} sweeps before the first begins: about {whole_s:.0f} s", file=sys.stderr)
        self._begun += 1
