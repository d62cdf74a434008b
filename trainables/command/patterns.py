"""Regular expressions for lines of output: those of the config, completed, and those that need no config."""

from __future__ import annotations

import re

_NUMBER = r"[\s:#=\[(|]{0,4}(\d+)(?![\d.,]*\d)(?!\s?(?:s|sec|ms|min)\b)"
"""A whole number behind a name; no time."""

NAMED_EPOCH = rf"(?i)(?<!\w)(?<!best )(?<!total )(?<!max )ep(?:och)?\b\.?{_NUMBER}"
"""`Epoch: [3][10/50]`, `epoch 3/90`; no times and settings such as `epoch 3.2 s`, `epochs=90`."""

NAMED_STEP = rf"(?i)(?<![\w/])(?:global[ _])?(?:step|iter(?:ation)?)\b{_NUMBER}"
"""`step 120/390`, `iter 120:`"""

OTHER_PROCESS = re.compile(r"(?i)\s*\[?(?:rank|default|worker|proc(?:ess)?|gpu)[ :=_]{0,2}(\d+)\]?\s*[:|\]-]")
"""The mark of a process at the begin of its lines: `[rank1]:`, `[default1]:`, `Rank 1 |`."""

_SPECIAL = r"[-+]?(?:\d[\d.,]*[eE][-+]?\d+|nan|inf(?:inity)?)|[-+]\.?\d[\d.,]*"
"""Numbers that groups such as `([0-9.]+)` cannot match."""

_DIGITS = re.compile(r"\[(?:0-9|\\d)\.\]\+|\\d\+\\\.\\d\+")
"""The usual ways to write a number in a pattern."""

_ANY = rf"(?:[0-9.]+|(?i:{_SPECIAL}))".replace("\\", r"\\")

_OF_NUMBERS = re.compile(r"(?:\\[dDS.+*-]|[\[\]0-9.,:eE+*?{}()|^KMBkT_-]|nan|inf|NaN|Inf|\?:)+")
"""The inside of a group that matches numbers only."""


def with_any_number(pattern: str) -> re.Pattern[str]:
    """Return the pattern with a first group that also matches any form of a number, `nan` and `inf` among them.

    Otherwise the value of an earlier line would stand for a line with `nan` or `9.8e-05`. Raises re.error.
    """
    compiled = re.compile(pattern)
    span = _first_group_span(pattern)
    if span is None or not _OF_NUMBERS.fullmatch(pattern[slice(*span)]):
        return compiled
    begin, end = span
    before, after = (_DIGITS.sub(_ANY, part) for part in (pattern[:begin], pattern[end:]))
    try:
        return re.compile(f"{before}(?:{pattern[begin:end]})|(?i:{_SPECIAL}){after}")
    except re.error:
        return compiled


def _first_group_span(pattern: str) -> tuple[int, int] | None:
    """Return where the inside of the first capturing group begins and ends; None if there is none."""
    begin, depth, in_class = None, 0, False
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        if sign == "\\":
            place += 2
            continue
        if in_class:
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
            # A bracket that comes first belongs to the class.
            place += len(re.match(r"\[\^?\]?", pattern[place:])[0]) - 1  # type: ignore[index]
        elif sign == "(":
            depth += 1
            name = re.match(r"\((?:\?P<\w+>|(?!\?))", pattern[place:])
            if name is not None and begin is None:
                begin, depth = place + len(name[0]), 0
        elif sign == ")" and begin is not None and depth == 0:
            return begin, place
        elif sign == ")":
            depth -= 1
        place += 1
    return None
