"""JSON objects, printed dictionaries and lines of tables in a command's output, as mappings of keys to values."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from sweeps.metric import usual_name
from trainables.command.printed_numbers import as_number

POSITION = ("epoch", "epochs", "step", "steps", "samples")
"""Keys with the position in the training; a JSON line with `epoch` is a row of the learning curve."""

_SEPARATORS = re.compile(r"[^a-z0-9]+")


class Row:
    """A JSON object or a line of a table, whose nested keys are joined: `val/acc`."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        values = dict(_flattened(mapping))
        self._values = {_unwrapped(key): value for key, value in values.items()} | values
        self._by_words = {_SEPARATORS.sub("_", key.lower()): value for key, value in reversed(self._values.items())}

    @cached_property
    def _by_usual_name(self) -> dict[str, Any]:
        # Slow, and most keys are the columns' own names.
        return {usual_name(key): value for key, value in reversed(self._values.items())}

    def value(self, key: str, column: str) -> Any:
        """Return the value at a key, however it is separated; for the column's own name, that of any usual name."""
        if key in self._values:
            return self._values[key]
        words = _SEPARATORS.sub("_", key.lower())
        if words in self._by_words or key != column:
            return self._by_words.get(words)
        return self._by_usual_name.get(column)

    @property
    def position(self) -> dict[str, float]:
        """The position in the training, by `POSITION`."""
        numbers = {name: as_number(self._by_words.get(name), "steps") for name in POSITION}
        return {name: number for name, number in numbers.items() if number is not None and math.isfinite(number)}


_WRAPPERS = frozenset("data payload message msg record results result summary stats".split())
"""Keys of structured logs around an object of metrics."""


def _unwrapped(key: str) -> str:
    """Return `val/acc` for `payload/val/acc`."""
    *above, last = key.split("/")
    return "/".join([*(part for part in above if part.lower() not in _WRAPPERS), last])


def _flattened(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in mapping.items():
        # The message of a structured log may hold an object as text.
        if isinstance(value, str) and value.startswith("{"):
            value = mapping_in(value) or value
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
            value = value[0]
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


_WRAPPED = re.compile(r"\b(?:np\.\w+|torch\.tensor|tensor|Array|DeviceArray)\(([^(),\[\]]+)(?:,[^()]*(?:\(\))?)?\)")
"""Numbers as numpy, torch and JAX print them within a dictionary."""

_OBJECT = re.compile(r"<[^<>]*>")  # an object that Python prints within a dictionary

_BARE = re.compile(r"(?<=[:,\[] )-?(?:nan|NaN|inf|Infinity)\b")

_MOST_BRACES = 2  # braces of a line at which an object may begin


def mapping_in(line: str) -> dict[str, Any] | None:
    """Return the JSON object or printed dictionary with which a line ends, perhaps behind a prefix of logging."""
    text = line.rstrip()
    # The pairs of an OrderedDict, which is no literal. A regular expression would take quadratic time.
    begin, end = text.find("OrderedDict([("), text.rfind(")])")
    has_pairs = 0 <= begin < end
    if has_pairs:
        text = f"{{'pairs': {text[begin + len('OrderedDict(') : end + 2]}}}"
    end = text.rfind("}") + 1
    if not end or ":" not in text:
        return None
    # The prefix may have a brace as well.
    begin = text.find("{")
    for _ in range(_MOST_BRACES):
        value = _read(text[begin:end]) if begin >= 0 else None
        if isinstance(value, dict):
            with suppress(ValueError, TypeError):  # other pairs than those of a mapping
                return dict(value["pairs"]) if has_pairs else value
            return None
        begin = text.find("{", begin + 1)
    return None


def _read(text: str) -> Any:
    """Return the value that a text of JSON or Python stands for; None if it is neither."""
    # Python prints these numbers bare, which is no literal.
    quoted = _OBJECT.sub("None", _BARE.sub(lambda match: repr(match[0]), _WRAPPED.sub(r"\1", text)))
    for read, source in ((json.loads, text), (ast.literal_eval, quoted)):
        try:
            return read(source)
        # A TypeError comes from keys such as lists.
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return None
