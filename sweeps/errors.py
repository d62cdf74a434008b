"""Errors in a request: all are found before anything starts, and reported together."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sweeps.printable import printable


class ConfigError(ValueError):
    """The request is invalid; `errors` has one line for each reason, without repeats."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(dict.fromkeys(map(printable, errors)))
        super().__init__("\n".join(self.errors))


@contextmanager
def collected(errors: list[str]) -> Iterator[None]:
    """Add what is wrong in this context to the errors, so that all are reported at once."""
    try:
        yield
    except ValueError as error:
        errors += error.errors if isinstance(error, ConfigError) else [str(error)]


def close_to(name: object, valid: Iterable[str], most: int = 4) -> list[str]:
    """Return the valid names that may be meant: in other letters, misspelt, or of which this is a part."""
    names, given = list(dict.fromkeys(valid)), str(name)
    if same := [valid_name for valid_name in names if _letters(valid_name) == _letters(given)]:
        return same
    close = difflib.get_close_matches(given, names, n=2, cutoff=0.75)
    # `resnet34` is no misspelt `resnet18`.
    number = _last_number(given)
    close = [near for near in close if number is None or _last_number(near) in (None, number)]
    starts = [near for near in names if any(part.startswith(given.lower()) for part in re.split(r"[-_/]", near))]
    return list(dict.fromkeys([*close, *(starts if len(given) > 1 else [])]))[:most]


def _last_number(name: str) -> str | None:
    digits = re.search(r"\d+$", name)
    return digits and digits[0]


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return ` (did you mean 'batch'?)`, or an empty string if no valid name is similar."""
    close = close_to(name, valid)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


class UnknownChoice(str):
    """A line with a wrong choice and the valid ones; `key` and `value` let its printer add what people mean by them."""

    key: str
    value: object

    def __new__(cls, key: str, value: object, valid: Iterable[str]) -> UnknownChoice:
        """Return the line."""
        choices = list(valid)
        line = super().__new__(cls, f"unknown {key} {value!r}{nearest(value, choices)}; valid: {', '.join(choices)}")
        line.key, line.value = key, value
        return line
