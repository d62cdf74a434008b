"""Numbers in a command's output: each is read whole, with its exponent, separators and unit, or not at all."""

from __future__ import annotations

import math
import re
from typing import Any

NOT_FINITE = re.compile(r"[-+]?(?:nan|inf(?:inity)?)", re.IGNORECASE)

_SIGN = r"(?<![\w.)\]])[-+\u2212]?"
_WITH_COMMAS = r"\d{1,3}(?:[,'_\u00a0\u202f]\d{3})+(?!\d)(?:\.\d+)?"
_WITH_DOTS = r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}(?!\d)"
_PLAIN = r"\d+,\d+|\d+\.?\d*|\.\d+"
_CLOCK = r"(?:\d+ days?, )?(?:\d+:)?\d+:\d\d(?:\.\d+)?"
_SECONDS_PART = r"\d+(?:\.\d+)?\s?s(?:ec)?"
_MINUTES_PART = r"\d+\s?m(?:in)?"
_HOURS_PART = rf"\d+\s?h\s?{_MINUTES_PART}(?:\s?{_SECONDS_PART})?"
_PARTS = rf"(?:\d+d\s?\d+\s?h|(?:\d+d\s?)?(?:{_HOURS_PART}|{_MINUTES_PART}\s?{_SECONDS_PART}))(?![A-Za-z])"
_EXPONENT = r"(?:[eE][-+\u2212]?\d+|[dD][-+\u2212]?\d+(?!\w))"
_DIGITS = rf"{_SIGN}(?:{_WITH_COMMAS}|{_WITH_DOTS}|{_PLAIN}){_EXPONENT}?"
_WHOLE = re.compile(rf"(?P<parts>{_PARTS})|(?P<clock>{_CLOCK}(?!\w))|(?P<number>{_DIGITS})")
"""A duration as `1m02s`, a clock as `1:02:03`, or a number."""

_MORE = re.compile(r"\s?[×·*]\s?10\s?(?:\^|\*\*|[-+\u2212]\d|[⁻⁺⁰¹²³⁴-⁹])|#")
"""More of a number behind its digits: a power of ten, or what `1.#INF` stands for. A dot may also separate numbers."""

_UNIT = re.compile(r"\s?(%|[A-Za-zµμ]+)?(/[A-Za-z]+)?")
_ENDING = re.compile(r"[\s,;:.!)\]}>|\"']*")
"""Characters that may follow a number and its unit, and are not part of it."""

_SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_SECONDS = {
    "ns": 1e-9,
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e-3),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_LARGEST = 2**63  # tables cannot hold larger whole numbers

_LARGE = re.compile(r"_per_s|samples|tokens|steps|n_params|energy_j")
"""Parts of the names of numbers that often exceed 1,000: only they have separators of thousands."""


class UnclearNumberError(ValueError):
    """Text that is a number, but not clearly which."""


def number_at(line: str, start: int, end: int, column: str = "", *, has_scale: bool = False) -> float | None:
    """Return the number whose text holds or touches line[start:end], which must hold nothing else; None if none does.

    `column` says which units and separators are possible; with `has_scale` the config converts units. Raises
    UnclearNumberError.
    """
    inner = line[start:end]
    begin = start + len(inner) - len(inner.lstrip())
    if NOT_FINITE.fullmatch(inner.strip()):
        return float(inner)
    match = next((match for match in _WHOLE.finditer(line) if match.start() <= begin < match.end()), None)
    # A pattern that begins before its number, as `loss (.+)` in "loss about 3", has not found it.
    if match is None:
        return None
    if _MORE.match(line, match.end()):
        raise UnclearNumberError(f"{line[match.start() : match.end() + 8]!r} is only in part a number")
    unit = _UNIT.match(line, match.end())
    rest = max(match.end(), unit.end() if unit is not None and unit.end() <= end else match.end())
    if not _ENDING.fullmatch(line[rest:end] if rest < end else ""):
        return None
    if match["number"] is None:
        return _seconds(match[0])
    name, per = (unit[1] or "", unit[2] or "") if unit is not None else ("", "")
    number = _plain(match[0], is_large=_LARGE.search(column) is not None, has_suffix=name in _SUFFIXES)
    if has_scale:
        return number * _SUFFIXES.get(name, 1.0)
    return number * _factor(name, per, column)


def as_number(value: Any, column: str = "", *, has_scale: bool = False) -> float | None:
    """Return a number, also from text such as `1.2K` or `1:02:03`; None for others. Raises UnclearNumberError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return math.inf if value > 0 else -math.inf
    if not isinstance(value, str):
        return value
    text = value.strip()
    return number_at(text, 0, len(text), column, has_scale=has_scale) if text else None


def _seconds(text: str) -> float:
    """Return the seconds of `1:02:03` or `1h02m03s`."""
    numbers = [float(part) for part in re.findall(r"\d+(?:\.\d+)?", text)]
    if ":" in text:
        days = numbers.pop(0) if "day" in text else 0.0
        seconds = 0.0
        for part in numbers:
            seconds = seconds * 60 + part
        return days * 86400 + seconds
    units = [unit[0] for unit in re.findall(r"[a-z]+", text)]
    factors = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    return sum(number * factors[unit] for number, unit in zip(numbers, units, strict=True))


def _plain(text: str, *, is_large: bool, has_suffix: bool) -> float:
    """Return the number in a text of digits, separators, sign and exponent. Raises UnclearNumberError."""
    plain = re.sub(r"['_\u00a0\u202f]", "", text).replace("\u2212", "-")
    plain = re.sub("[dD]", "e", plain)  # as Fortran prints an exponent
    commas, dots = plain.count(","), plain.count(".")
    if commas and dots:
        # Of two kinds of separators the last one separates decimals.
        thousands = "," if plain.rfind(",") < plain.rfind(".") else "."
        plain = plain.replace(thousands, "").replace(",", ".")
    elif commas > 1 or dots > 1:
        plain = plain.replace(",", "").replace(".", "")
    elif commas:
        is_grouped = re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", plain) is not None
        if is_grouped and not is_large:
            raise UnclearNumberError(f"{text!r} may be {plain.replace(',', '.')} or {plain.replace(',', '')}")
        plain = plain.replace(",", "" if is_grouped and not has_suffix else ".")
    number = float(plain)
    return int(plain) if plain.lstrip("+-").isdigit() and abs(number) < _LARGEST else number


def _factor(unit: str, per: str, column: str) -> float:
    """Return what converts a number with this unit into the column's own unit. Raises UnclearNumberError."""
    if column.endswith("_s") and not column.endswith("_per_s"):
        if per == "/s" and unit not in ("", "s", "ms", "us"):
            raise UnclearNumberError(f"{unit}{per} is a rate, and {column} a time: set invert: true")
        return _SECONDS.get(unit) or _SUFFIXES.get(unit, 1.0)
    if unit == "%" and column in ("accuracy", "val_accuracy"):
        return 0.01
    return _SUFFIXES.get(unit, 1.0)
