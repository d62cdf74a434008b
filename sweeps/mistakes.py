"""Everything that is wrong with a request, found before anything starts and told at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MistakesError(ValueError):
    """The request is wrong in one or more ways; `mistakes` has a line for each, without repeats."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(dict.fromkeys(mistakes))
        super().__init__("\n".join(self.mistakes))


def nearest(name: str, valid: Iterable[str]) -> str:
    """` (did you mean 'batch'?)`, or nothing where no valid name is close."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(valid)), n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def unknown(what: str, name: object, valid: Iterable[str]) -> str:
    """One line naming a wrong choice and the right ones."""
    choices = list(valid)
    return f"unknown {what} {name!r}{nearest(str(name), choices)}; valid: {', '.join(choices)}"
