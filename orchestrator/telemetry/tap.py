"""Reads figures from sources that may be missing or fail at any time; a missing figure is empty, never 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Read = Callable[[], Mapping[str, float]]
"""Reads a source once; returns figures by column name."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source that is read with one call."""

    name: str
    """The name used in warnings."""
    read: Read
    counts: bool = False
    """Whether its figures are counters, which may be read less often."""


class Tap:
    """Reads several sources repeatedly. A source that fails is not read again, and its columns stay empty.

    Errors in `not_offered` mean that a source does not exist here; any other error is a failure, and `failure` holds
    the first one.
    """

    def __init__(self, sources: Sequence[Source], not_offered: tuple[type[Exception], ...]) -> None:
        self.sources = list(sources)
        """The sources that are still read."""
        self._not_offered = not_offered
        self.failure = ""

    def read(self, *, counters: bool = True) -> dict[str, float]:
        """The current figures of all remaining sources, counters only if asked for. Never raises."""
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
