"""Formats numbers for people in readable units (`0.188 worker-seconds`), and escapes text for tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.axes import is_number
from sweeps.identity import COMMAND, LOOPS
from sweeps.printable import printable
from sweeps.trial import BUDGET_UNITS

Format = Callable[[float], str]  # a function that formats a number

_BREAKS = re.compile(r"[\t-\r]+")
_BLANKS = dict.fromkeys([*range(32), *range(127, 160)], " ")
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_LINK = re.compile(r"!(?=\[)|](?=[(\[])|^\[[^\]]*](?=:)")
"""Characters that start an image, a link or a link definition in Markdown; other brackets are not escaped."""


def number(value: float) -> str:
    """Return three significant digits, but all digits before the decimal point: `0.0123`, `98.7`, `12,345`."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def short_number(value: object) -> str:
    """Return four significant digits, or an integer from 1,000 on; never an exponent such as 1.066e+04.

    Fractions have four decimals, so that those of a column can be compared: `0.8750`.
    """
    if not isinstance(value, (int, float)):
        return ""
    if 0.001 <= abs(value) < 1:
        return f"{value:.4f}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:,.4g}"


def times(value: float) -> str:
    """Return a ratio without its sign: `1.87`."""
    return f"{value:.2f}"


def percent(value: float) -> str:
    """Return a fraction as a percentage without its sign: `93`."""
    return f"{100 * value:.0f}"


def with_interval(point: float, lo: float, hi: float, form: Format, sign: str = "") -> str:
    """Return `1.87× [1.71, 2.04]`, with `sign` after the point; no brackets without an interval."""
    if math.isnan(point):
        return ""
    text = f"{form(point)}{sign}"
    return text if math.isnan(lo) or math.isnan(hi) else f"{text} [{form(lo)}, {form(hi)}]"


def plus_minus(point: float, lo: float, hi: float) -> str:
    """Return `0.971 ± 0.004`, or `0.971 [0.962, 0.974]` for an asymmetric interval, such as a bootstrapped one."""
    if math.isnan(point) or math.isnan(lo) or math.isnan(hi):
        return "" if math.isnan(point) else f"{point:.3f}"
    # Bootstrapped intervals and those cut off at 0 or 1 are not symmetric.
    if math.isclose(point - lo, hi - point, rel_tol=1e-6, abs_tol=1e-12):
        return f"{point:.3f} ± {hi - point:.3f}"
    return f"{point:.3f} [{lo:.3f}, {hi:.3f}]"


def counted(count: int, one: str, many: str) -> str:
    """Return `1 cell`, `3 cells`; empty for 0."""
    return f"{count} {one if count == 1 else many}" if count else ""


def duration(seconds: float) -> str:
    """Return `45s`, `5m49s`, `2h05m`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def config_value(value: Any) -> Any:
    """Return an axis's value as in a config: `null` for None, which a frame holds as a missing value."""
    return "null" if value is None or value != value else value


def fact(value: Any) -> str:
    """Return a frame's value as text: counts are floats in columns with missing values."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def plain(value: Any) -> str:
    """Return a value as text on one line, without markup and control sequences."""
    # Control characters first, because the escapes of Markdown must survive.
    text = printable(_BREAKS.sub(" ", str(value)).strip())
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return _LINK.sub(lambda match: f"{match[0]}\\", text)


def one_line(text: str, most: int = 80) -> str:
    """Return text on one line, valid in XML, and cut to `most` characters."""
    line = printable(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text.translate(_BLANKS)))
    return line if len(line) <= most else f"{line[: most - 1]}…"


_FORMULA = tuple("=+-@\t\uff1d\uff0b\uff0d\uff20")
"""Signs with which a formula begins in a spreadsheet, also those of full width."""


def not_a_formula(value: Any) -> Any:
    """Return text for CSV: printable, with an apostrophe if a spreadsheet would evaluate it; numbers are unchanged."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


_TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
_SPANS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}  # no days: GPUs have their price by the hour
_FAMILIES = (
    _TIMES,
    {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9},
    *({f"{whose}-{span}": size for span, size in _SPANS.items()} for whose in ("worker", "GPU")),
)
"""Families of units with their sizes, smallest first."""

_LEAST = 2.0  # values are written in the largest unit in which they are at least this: 90 s, but 2 min


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit for writing values."""

    name: str
    size: float  # relative to the unit that the values have

    def number(self, value: float) -> str:
        """Return the number without the unit, for columns with the unit in their heading; empty for NaN."""
        return "" if math.isnan(value) else number(value / self.size)

    def text(self, value: float) -> str:
        """Return the number with the unit."""
        return f"{self.number(value)} {self.name}"


def suited(unit: str, *values: float) -> Unit:
    """Return the common unit for these values, given in `unit`: it suits the smallest value; NaN is ignored."""
    # The smallest value decides: in a larger unit it would lose its digits.
    family = next((sizes for sizes in _FAMILIES if unit in sizes), {unit: 1.0})
    known = [abs(value) for value in values if not math.isnan(value) and value]
    if not known:
        return Unit(name=unit, size=1.0)
    least = min(known) * family[unit]
    name, size = next(iter(family.items()))
    for larger, its_size in family.items():
        if least >= _LEAST * its_size * (1 - 1e-9):  # 119.99999999999997 s is two minutes
            name, size = larger, its_size
    return Unit(name=name, size=size / family[unit])


def listed(names: Sequence[str]) -> str:
    """Return `2, 4 and 8`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def training(fixed: Callable[[str], Any], most: int = 80) -> str:
    """Return what trials train and for how long: `small_cnn on digits, 10 epochs`; `fixed` gives a key's value.

    It gives None for a key that differs between trials. A command is cut to `most` characters.
    """
    # A command is its own description; a function of the user's has only its name.
    words, target = fixed("trainable.argv"), fixed("trainable._target_")
    if target == COMMAND and words:
        what = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    else:
        names = (fixed("model.name"), fixed("data.name")) if target in LOOPS else (target,)
        what = " on ".join(map(str, filter(None, names)))
        sequence = fixed("model.sequence_length")
        what += f" in sequences of {sequence:,}" if is_number(sequence) else ""
    lengths = ((unit, fixed(f"budget.{unit}")) for unit in BUDGET_UNITS)
    length = next((f"{n:,.12g} {unit if n != 1 else unit[:-1]}" for unit, n in lengths if is_number(n)), "")
    return ", ".join(filter(None, (one_line(what, most), length)))
