"""How the config says to read each metric: from a key of JSON lines, by a regular expression, or from progress bars."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.axes import is_number
from trainables.command.printed_mappings import Row
from trainables.command.printed_numbers import as_number, number_at

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
"""How repeated values become one; `steady`: the median from the second on."""

_DEFAULT_TAKES = {"epoch_s": "steady", "samples_per_s": "steady", "step_s": "steady", "peak_memory_gb": "max"}
_KEYS = ("json", "regex", "scale", "invert", "take")
PROGRESS_BAR = "tqdm"  # the declaration of `step_s` that reads the states of progress bars


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How one column of the summary is read from the output."""

    column: str
    key: str | None = None  # key of a JSON line; None if a pattern is given
    pattern: re.Pattern[str] | None = None
    scale: float = 1.0  # factor on the number: 0.01 turns a percentage into a fraction
    invert: bool = False
    """If set, take one over the number, before `scale`: seconds per step from steps per second."""
    take: str = "last"
    progress_bar: bool = False  # whether progress bars give the number, and no line by itself

    @staticmethod
    def of(column: str, given: Any) -> Reading:
        """Read from the config: null, a regular expression, {json or regex, scale, …}, or `tqdm`. Raises ValueError."""
        if column == "step_s" and given == PROGRESS_BAR:
            return Reading(column=column, progress_bar=True)
        long = {"regex": given} if isinstance(given, str) else given or {}
        subject = f"trainable.metrics.{column}"
        if not isinstance(long, Mapping) or not set(long) <= set(_KEYS) or len({"json", "regex"} & set(long)) > 1:
            raise ValueError(
                f"{subject} takes null, a regular expression, or json or regex, {', '.join(_KEYS[2:])}; not {given}"
            )
        take, scale = long.get("take", _DEFAULT_TAKES.get(column, "last")), long.get("scale", 1.0)
        if take not in TAKES:
            raise ValueError(f"{subject}.take={take!r} is not one of {', '.join(TAKES)}")
        if not is_number(scale) or not scale:
            raise ValueError(f"{subject}.scale must be a number other than 0, not {scale!r}")
        if not isinstance(invert := long.get("invert", False), bool):
            raise ValueError(f"{subject}.invert must be true or false, not {invert!r}")
        try:
            pattern = with_any_number(str(long["regex"])) if "regex" in long else None
        except re.error as error:
            raise ValueError(f"{subject}={long['regex']!r} is not a regular expression: {error}") from error
        key = None if pattern else str(long.get("json", column))
        return Reading(column=column, key=key, pattern=pattern, scale=scale, invert=invert, take=take)

    def of_line(self, line: str) -> float | None:
        """Return the number in a line of output; None if the line has none. Raises UnclearNumberError."""
        match = self.pattern.search(line) if self.pattern else None
        if match is None:
            return None
        # The first group, or the whole match of a pattern without groups.
        start, end = match.span(1 if match.re.groups else 0)
        if start < 0:
            return None
        return self._scaled(number_at(line, start, end, self.column, has_scale=self.scale != 1 or self.invert))

    def of_row(self, row: Row) -> float | None:
        """Return the number in a JSON object; None if the object has none. Raises UnclearNumberError."""
        value = row.value(self.key, self.column) if self.key else None
        return self._scaled(as_number(value, self.column, has_scale=self.scale != 1 or self.invert))

    def _scaled(self, number: float | None) -> float | None:
        if number is None or (self.invert and not number):
            return None
        if self.invert:
            number = 1 / number
        return number if self.scale == 1 else number * self.scale


_LIKELY = re.compile(
    r"""(?ix) (?<![\w/.-]) (?P<quote>["']?)
    (?P<label> (?P<set> (?:val(?:id(?:ation)?)?|eval(?:uation)?|dev|test) [ _./-]?)?
    (?P<what> acc(?:uracy)?(?:@1)?|top-?1|loss)) (?P=quote)
    (?P<gap> [\s:=|]{1,3}) (?P<number> \d*\.\d+|\d+) (?!\s?[/\d]) (?P<percent> \s?%)?"""
)
"""What looks like an accuracy or a loss: `val_acc 61.20%`, `Validation loss: 0.31`, `"eval_accuracy": 0.8`."""


class LikelyMetric:
    """The metric that a command prints and its config does not declare: an accuracy or a loss of validation."""

    def __init__(self) -> None:
        self._order = math.inf
        self.declaration = ""  # the override that reads it, as a shell takes it; empty if nothing was found

    def look(self, line: str) -> None:
        """Look for it in a line; of equally likely ones the last counts."""
        for match in _LIKELY.finditer(line):
            of_set, is_loss = (match["set"] or "").lower(), match["what"].lower() == "loss"
            is_of_test = of_set.startswith("test")
            # A validation set's accuracy, any accuracy, a validation set's loss; the test set should not decide.
            order = 3 if is_of_test else 2 if is_loss else 0 if of_set else 1
            # Behind "train", a figure that names no set is of the training, as are losses that name none.
            is_of_training = not of_set and (is_loss or "train" in line[: match.start()].lower())
            if is_of_training or (is_of_test and is_loss):
                continue
            if order <= self._order:
                self._order, self.declaration = order, _declaration(match, is_loss=is_loss)


def _declaration(match: re.Match[str], *, is_loss: bool) -> str:
    label = match["label"]
    # In a pattern a bar would separate two of them; a dot stands for any sign.
    before = re.sub(r"[|\t]", ".", label + match["gap"])
    long = f"json: {label}" if match["quote"] else f"regex: '{before}([0-9.]+)'"
    # A number with a percent sign is read as a fraction.
    scale = ", scale: 0.01" if not is_loss and float(match["number"]) > 1 and not match["percent"] else ""
    return f'"trainable.metrics.{"val_loss" if is_loss else "val_accuracy"}={{{long}{scale}}}"'


def declared(metrics: Mapping[str, Any]) -> Iterable[str]:
    """Yield a line for each metric with an invalid declaration."""
    for column, given in metrics.items():
        try:
            Reading.of(column, given)
        except ValueError as error:
            yield str(error)


_SPECIAL = r"[-+]?(?:\d[\d.,]*[eE][-+]?\d+|nan|inf(?:inity)?)|[-+]\.?\d[\d.,]*"
"""Numbers that groups such as `([0-9.]+)` cannot match."""

_DIGITS = re.compile(r"\[(?:0-9|\\d)\.\]\+|\\d\+\\\.\\d\+")  # the usual ways to write a number in a pattern

_ANY = rf"(?:[0-9.]+|(?i:{_SPECIAL}))".replace("\\", r"\\")

_OF_NUMBERS = re.compile(r"(?:\\[dDS.+*-]|[\[\]0-9.,:eE+*?{}()|^KMBkT_-]|nan|inf|NaN|Inf|\?:)+")
"""The inside of a group that matches numbers only."""

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\((?:\?P<\w+>|(?!\?)))|\(|\)", re.DOTALL)
"""Escaped signs, classes, and the begin and end of groups in a pattern; a `group` captures."""


def with_any_number(pattern: str) -> re.Pattern[str]:
    """Return the pattern with a first group that also matches any form of a number, `nan` and `inf` among them.

    Otherwise the value of an earlier line would stand for a line with `nan` or `9.8e-05`. Raises re.error.
    """
    compiled = re.compile(pattern)
    begin, end = _first_group_span(pattern)
    if not _OF_NUMBERS.fullmatch(pattern[begin:end]):
        return compiled
    before, after = (_DIGITS.sub(_ANY, part) for part in (pattern[:begin], pattern[end:]))
    try:
        return re.compile(f"{before}(?:{pattern[begin:end]})|(?i:{_SPECIAL}){after}")
    except re.error:
        return compiled


def _first_group_span(pattern: str) -> tuple[int, int]:
    """Return where the inside of the first capturing group begins and ends; (0, 0) if there is none."""
    begin = depth = 0
    for part in _PARTS.finditer(pattern):
        if not begin:
            begin = part.end() if part["group"] else 0
        elif part[0].startswith("("):
            depth += 1
        elif part[0] == ")" and depth == 0:
            return begin, part.start()
        elif part[0] == ")":
            depth -= 1
    return 0, 0
