"""Values as people write them for other programs: `10k`, `50%`, `$2.50/h`, `2h30m`, `64..512`, `uniform(1,4)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_MOST_IN_RANGE = 50  # values that a range is written out to

_SPAN = r"(?:tune\.)?(?:q?log_?uniform|q?uniform|q?randint|logspace|linspace|interval)\((.+?),(.+?)(?:,.*)?\)"
"""A range as functions of Ray Tune, Optuna and NumPy write it."""

_LIMITS = r"\{(?:.*,)?min:(.+?),max:(.+?)(?:,.*)?\}"  # of W&B
_NUMBER = r"(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?"
_FACTORS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_CURRENCY = r"(?:[^\w.:\s%-]|[A-Z]{3}|dollars?|euros?|usd|eur)"


def is_money(text: str) -> bool:
    """Return whether a text is a number with the sign or the name of a currency."""
    return bool(re.fullmatch(rf"{_CURRENCY} ?{_NUMBER}.*|{_NUMBER} ?{_CURRENCY}.*", text))


def number_in(text: str) -> str | None:
    """Return the number in `50%`, `$2.50`, `2.50 EUR/h` or `10k`, as typed if it can be; None for other text."""
    if share := re.fullmatch(rf"({_NUMBER}) ?%", text):
        return f"{float(share[1]) / 100:g}"
    if large := re.fullmatch(rf"({_NUMBER}) ?([kmbgt])", text.lower()):
        return f"{float(large[1]) * _FACTORS[large[2]]:.15g}"
    price = re.fullmatch(rf"{_CURRENCY}? ?({_NUMBER}) ?{_CURRENCY}?(?:/ ?(?:gpu)?h(?:our)?)?", text)
    return price[1] if price else None


def values_in(text: str, *, every: bool = False) -> str:
    """Return the values that `64..512`, `up_to_8`, `1k,2k` or `[1,2]` stand for, with commas; other text as it is.

    A range has its powers of 2 of whole numbers, else of 10, or `every` whole number.
    """
    if drawn := re.fullmatch(_SPAN, text.replace(" ", "")) or re.fullmatch(_LIMITS, text.replace(" ", "")):
        text = f"{drawn[1]}..{drawn[2]}"
    text = re.sub(r"^(?:tune\.)?(?:choice|grid_search)(?=\()", "", text)
    inside = re.sub(r"^(?:up[ _]?to[ _]?|<=?) ?(?=\d)", "1..", text.strip("()[]{} "))
    span = re.fullmatch(rf"({_NUMBER}) ?(?:\.\.\.?|-|:|to) ?({_NUMBER})", inside.lower())
    if not span:
        values = [value.strip() for value in inside.split(",")]
        return ",".join(str(int(value[:-1]) * 1024) if re.fullmatch(r"\d+[kK]", value) else value for value in values)
    low, high = float(span[1]), float(span[2])
    if every and high - low < _MOST_IN_RANGE:
        return ",".join(map(str, range(int(low), int(high) + 1)))
    step = 2 if low >= 1 and low.is_integer() and high.is_integer() else 10
    values = [span[1]]
    while 0 < float(values[-1]) * step < high * (1 - 1e-9) and len(values) < _MOST_IN_RANGE:
        values.append(f"{float(values[-1]) * step:g}")
    return ",".join(dict.fromkeys([*values, span[2]]))


_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hr", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86400),
}


def seconds_in(text: str) -> float | None:
    """Return the seconds of a duration such as `90m`, `1.5h`, `1d12h` or `02:30:00`; None for other text."""
    # 1-12:00:00 of Slurm, 01:12:00:00 of Lightning.
    if clock := re.fullmatch(r"(?:(\d+)[-:])?(\d+):(\d\d):(\d\d)", text):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    part = r"(\d+(?:\.\d+)?) ?([a-z]+) ?"
    parts = [(float(number), unit.removesuffix("s") or unit) for number, unit in re.findall(part, text.lower())]
    if not re.fullmatch(f"(?:{part})+", text.lower()) or any(unit not in _SECONDS for _, unit in parts):
        return None
    return sum(number * _SECONDS[unit] for number, unit in parts)


def _hours_in(text: str) -> str | None:
    hours = re.fullmatch(rf"({_NUMBER}) ?(?:gpu[-_ ]?)?h(?:ours?|rs?)?", text.lower())
    return hours and hours[1]


def _whole_seconds_in(text: str) -> str | None:
    seconds = seconds_in(text)
    return None if seconds is None else f"{seconds:.15g}"


def gb_in(text: str) -> str | None:
    """Return the number in `40GB`, `40 g` or `40GiB`; None for other text."""
    size = re.fullmatch(rf"({_NUMBER}) ?gi?b?", text.lower())
    return size and size[1]


READERS: Mapping[str, Callable[[str], str | None]] = {
    "": number_in,
    "hours": _hours_in,
    "seconds": _whole_seconds_in,
    "GB": gb_in,
}
"""Functions that return the number in a text, by its unit; None if the text has none."""
