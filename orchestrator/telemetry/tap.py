"""Figures from sources that may not offer all of them, and may fail at any moment: what fails is empty, never 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Read = Callable[[], Mapping[str, float]]
"""One look at a source: its figures by column name."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Something that is read in one go."""

    name: str
    """As a warning calls it."""
    read: Read
    counts: bool = False
    """Whether its figures only ever grow, so that nothing is lost by looking now and then."""


class Tap:
    """Reads several sources again and again. One that fails is read no more, and its columns stay empty from there on.

    `not_offered` are the errors by which a source says that it does not exist here; any other one is a failure, and the
    first of these is told in `failure`.
    """

    def __init__(self, sources: Sequence[Source], not_offered: tuple[type[Exception], ...]) -> None:
        self.sources = list(sources)
        """Those that are still read."""
        self._not_offered = not_offered
        self.failure = ""

    def read(self, *, counters: bool = True) -> dict[str, float]:
        """What all sources that are left say now, those that count only with `counters`; never raises."""
        found: dict[str, float] = {}
        for source in [each for each in self.sources if counters or not each.counts]:
            try:
                found |= source.read()
            except self._not_offered:
                self.sources.remove(source)
            except Exception as error:
                self.sources.remove(source)
                self.failure = self.failure or f"{source.name}: {error or type(error).__name__}"
        return found
