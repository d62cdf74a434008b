"""Errors in a request: all are found before anything starts, and reported together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sweeps.printable import printable


class ConfigError(ValueError):
    """The request is invalid; `errors` has one line for each reason, without repeats."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(dict.fromkeys(map(printable, errors)))
        super().__init__("\n".join(self.errors))


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return ` (did you mean 'batch'?)`, or an empty string if no valid name is similar."""
    close = difflib.get_close_matches(str(name), list(dict.fromkeys(valid)), n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def unknown(what: str, name: object, valid: Iterable[str]) -> str:
    """Return a line with a wrong choice and the valid ones."""
    choices = list(valid)
    return f"unknown {what} {name!r}{nearest(name, choices)}; valid: {', '.join(choices)}"
