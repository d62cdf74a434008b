"""JSON objects, printed dictionaries and lines of tables in a command's output, as mappings of keys to values."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from sweeps.metric import usual_name
from trainables.command.numbers import as_number

POSITION = ("epoch", "epochs", "step", "steps", "samples")
"""Keys with the position in the training; a JSON line with `epoch` is a row of the learning curve."""

_SEPARATORS = re.compile(r"[^a-z0-9]+")


class Row:
    """A JSON object or a line of a table, whose nested keys are joined: `val/acc`."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._values = dict(_flattened(mapping))
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


def _flattened(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


_WRAPPED = re.compile(r"\b(?:np\.\w+|torch\.tensor|tensor|Array|DeviceArray)\(([^(),\[\]]+)(?:,[^()]*(?:\(\))?)?\)")
"""Numbers as numpy, torch and JAX print them within a dictionary."""

_OBJECT = re.compile(r"<[^<>]*>")
"""An object that Python prints within a dictionary."""

_BARE = re.compile(r"(?<=[:,\[] )-?(?:nan|inf)\b")


def mapping_in(line: str) -> dict[str, Any] | None:
    """Return the JSON object or printed dictionary with which a line ends, perhaps behind a prefix of logging."""
    text = line.rstrip()
    # The pairs of an OrderedDict, which is no literal. A regular expression would take quadratic time.
    begin, end = text.find("OrderedDict([("), text.rfind(")])")
    has_pairs = 0 <= begin < end
    if has_pairs:
        text = f"{{'pairs': {text[begin + len('OrderedDict(') : end + 2]}}}"
    begin = text.find("{")
    if begin < 0 or "}" not in text or ":" not in text:
        return None
    text = text[begin : text.rfind("}") + 1]
    # Python prints these numbers bare, which is no literal.
    quoted = _OBJECT.sub("None", _BARE.sub(lambda match: repr(match[0]), _WRAPPED.sub(r"\1", text)))
    for read, source in ((json.loads, text), (ast.literal_eval, quoted)):
        try:
            value = read(source)
            if has_pairs:
                return dict(value["pairs"])
        # A TypeError comes from keys such as lists.
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict) else None
    return None
