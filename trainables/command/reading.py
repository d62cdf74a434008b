"""How one figure is read from what a command says: a key of its JSON lines, or a regular expression."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainables.number import is_number

TAKES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "max": max,
    "min": min,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
    "steady": lambda values: statistics.median(values[1:] or values),
}
"""What counts of a figure that comes again and again; `steady`: the median from the second on."""

_USUALLY = {"epoch_s": "steady", "samples_per_s": "steady", "step_s": "steady", "peak_memory_gb": "max"}
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_KEYS = ("json", "regex", "scale", "invert", "take")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How one column is read."""

    column: str
    key: str | None = None
    """Of a JSON line; None where a pattern is given."""
    pattern: re.Pattern[str] | None = None
    scale: float = 1.0
    """What the number is multiplied by: 0.01 makes a share of a percentage."""
    invert: bool = False
    """Whether one over the number counts: seconds a step where steps a second are printed. Before `scale`."""
    take: str = "last"

    @staticmethod
    def of(column: str, given: Any) -> Reading:
        """From the config: null, a regular expression, or {json or regex, scale, …}. ValueError in one line."""
        long = {"regex": given} if isinstance(given, str) else given or {}
        subject = f"trainable.metrics.{column}"
        if not isinstance(long, Mapping) or not set(long) <= set(_KEYS) or len({"json", "regex"} & set(long)) > 1:
            raise ValueError(
                f"{subject} takes null, a regular expression, or json or regex, {', '.join(_KEYS[2:])}; not {given}"
            )
        take, scale = long.get("take", _USUALLY.get(column, "last")), long.get("scale", 1.0)
        if take not in TAKES:
            raise ValueError(f"{subject}.take={take!r} is not one of {', '.join(TAKES)}")
        if not is_number(scale) or not scale:
            raise ValueError(f"{subject}.scale must be a number other than 0, not {scale!r}")
        if not isinstance(invert := long.get("invert", False), bool):
            raise ValueError(f"{subject}.invert must be true or false, not {invert!r}")
        pattern = _compiled(subject, long["regex"]) if "regex" in long else None
        key = None if pattern else str(long.get("json", column))
        return Reading(column=column, key=key, pattern=pattern, scale=scale, invert=invert, take=take)

    def of_line(self, line: str) -> float | None:
        """The number in a line of output; None where it is not there."""
        found = self.pattern.search(line) if self.pattern else None
        return self._scaled(found[1] if found and found.groups() else found[0] if found else None)

    def of_row(self, row: Mapping[str, Any]) -> float | None:
        """The number in a JSON object; None where it is not there."""
        return self._scaled(row.get(self.key)) if self.key else None

    def _scaled(self, value: Any) -> float | None:
        number = as_number(value)
        if number is None or (self.invert and not number):
            return None
        if self.invert:
            number = 1 / number
        return number if self.scale == 1 else number * self.scale


def as_number(value: Any) -> float | None:
    """A number, or text that is one (`1,234.5`; `1:02:03`, as a clock shows seconds); None for anything else.

    Whole numbers stay whole.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return value
    text = value.replace(",", "").strip()
    if clock := _CLOCK.fullmatch(text):
        return int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None


def _compiled(subject: str, pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(str(pattern))
    except re.error as error:
        raise ValueError(f"{subject}={pattern!r} is not a regular expression: {error}") from error
