"""Numbers formatted for people, and text escaped for tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

Form = Callable[[float], str]
"""How to write a number."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_BLANKS = dict.fromkeys([*range(32), *range(127, 160)], " ")
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_LINK = re.compile(r"!(?=\[)|](?=[(\[])|^\[[^\]]*](?=:)")
"""Characters that start an image, a link or a link definition in Markdown; other brackets are not escaped."""


def number(value: float) -> str:
    """Three significant digits, but all digits before the decimal point: `0.0123`, `98.7`, `12,345`."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def times(value: float) -> str:
    """A ratio without its sign: `1.87`."""
    return f"{value:.2f}"


def percent(value: float) -> str:
    """A fraction as a percentage without its sign: `93`."""
    return f"{100 * value:.0f}"


def with_interval(point: float, lo: float, hi: float, form: Form, sign: str = "") -> str:
    """`1.87× [1.71, 2.04]`, with `sign` after the point; no brackets without an interval, empty without a point."""
    if math.isnan(point):
        return ""
    text = f"{form(point)}{sign}"
    return text if math.isnan(lo) or math.isnan(hi) else f"{text} [{form(lo)}, {form(hi)}]"


def plus_minus(point: float, lo: float, hi: float) -> str:
    """`0.971 ± 0.004`, or `0.971 [0.962, 0.974]` for an asymmetric interval, such as a bootstrapped one."""
    if math.isnan(point) or math.isnan(lo) or math.isnan(hi):
        return "" if math.isnan(point) else f"{point:.3f}"
    if math.isclose(point - lo, hi - point, rel_tol=1e-6, abs_tol=1e-12):
        return f"{point:.3f} ± {hi - point:.3f}"
    return f"{point:.3f} [{lo:.3f}, {hi:.3f}]"


def counted(count: int, one: str, many: str) -> str:
    """`1 cell`, `3 cells`; empty for 0."""
    return f"{count} {one if count == 1 else many}" if count else ""


def asked(value: Any) -> Any:
    """An axis's value as in a config: `null` for None, which a frame holds as a missing value."""
    return "null" if value is None or value != value else value


def fact(value: Any) -> str:
    """A frame's value as text: counts are floats in columns with missing values."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def plain(value: Any) -> str:
    """A value as text on one line, without markup and control sequences."""
    text = _CONTROL.sub(" ", str(value)).strip().replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return _LINK.sub(lambda found: f"{found[0]}\\", text)


def one_line(text: str, most: int = 80) -> str:
    """Text on one line, valid in XML, and cut to `most` characters."""
    line = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text.translate(_BLANKS))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def not_a_formula(value: Any) -> Any:
    """Text that a spreadsheet would evaluate gets a leading apostrophe; numbers are unchanged."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
