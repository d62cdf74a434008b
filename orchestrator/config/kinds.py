"""The kinds of values that a config key may have: numbers in a range, choices, flags, texts, lists and sections."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.axes import is_number, is_whole
from sweeps.errors import UnknownChoice

_MOST_IN_RANGE = 50  # values that a range is written out to


@dataclass(frozen=True, kw_only=True)
class KeyKind:
    """The values that a key may have."""

    form: str = ""  # the allowed values in words, without `words` and null
    words: tuple[str, ...] = ()  # words that are allowed besides
    null: bool = False  # whether null is allowed besides

    def admits(self, value: Any) -> bool:
        """Return whether the key may have this value."""
        if value is None:
            return self.null
        return (isinstance(value, str) and value in self.words) or self._fits(value)

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the key may not have this value."""
        if not self.admits(value):
            others = "".join(f" or {other}" for other in (*self.words, *["null"] * self.null))
            yield f"{key} must be {self.form}{others}, not {'null' if value is None else repr(value)}"

    def _fits(self, value: Any) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Number(KeyKind):
    """A finite number in a range."""

    above: float = -math.inf
    at_least: float = -math.inf
    below: float = math.inf
    whole: bool = False
    unit: str = ""
    hint: str = ""  # what an error adds if the value is text

    def __post_init__(self) -> None:
        """Put the range in words."""
        bounds = {"above": self.above, "of at least": self.at_least, "below": self.below}
        limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
        unit = f" ({self.unit})" if self.unit else ""
        object.__setattr__(self, "form", f"a {'whole ' * self.whole}number{limits and f' {limits}'}{unit}")

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the value is not a number in the range."""
        number = self.number_in(str(value)) if isinstance(value, str | float) else ""
        hint = f": write {key}={number}" if number else self.hint if isinstance(value, str) else ""
        yield from (f"{line}{hint}" for line in super().errors(key, value))

    def number_in(self, text: str) -> str:
        """Return the number in `$2.50`, `1%` or `10k`, or the seconds in `10m`; empty if there is none of this kind."""
        # People copy prices with their currency, and write durations as in other tools.
        text = text.strip()
        number = None if self.unit else _number_in(text)
        if self.unit == "hours" and (
            hours := re.fullmatch(rf"({_NUMBER}) ?(?:gpu[-_ ]?)?h(?:ours?|rs?)?", text.lower())
        ):
            number = hours[1]
        if self.unit == "seconds":
            seconds = seconds_in(text)
            number = None if seconds is None else f"{seconds:.15g}"
        elif self.unit == "GB" and (size := re.fullmatch(rf"({_NUMBER}) ?gi?b?", text.lower())):
            number = size[1]
        if number is None:
            return ""
        value = float(number)
        value = int(value) if value.is_integer() else value
        # As typed, but for `1e6` where a whole number is needed.
        return (str(value) if self.whole else number) if self._fits(value) else ""

    def _fits(self, value: Any) -> bool:
        if not (is_whole(value) if self.whole else is_number(value)) or not math.isfinite(value):
            return False
        return bool(self.above < value < self.below and value >= self.at_least)


_SPAN = r"(?:tune\.)?(?:q?log_?uniform|q?uniform|q?randint|logspace|linspace|interval)\((.+?),(.+?)(?:,.*)?\)"
"""A range as functions of Ray Tune, Optuna and NumPy write it."""

_LIMITS = r"\{(?:.*,)?min:(.+?),max:(.+?)(?:,.*)?\}"  # of W&B
_NUMBER = r"(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?"
_FACTORS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_CURRENCY = r"(?:[^\w.:\s%-]|[A-Z]{3}|dollars?|euros?|usd|eur)"


def is_money(text: str) -> bool:
    """Return whether a text is a number with the sign or the name of a currency."""
    return bool(re.fullmatch(rf"{_CURRENCY} ?{_NUMBER}.*|{_NUMBER} ?{_CURRENCY}.*", text))


def _number_in(text: str) -> str | None:
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


@dataclass(frozen=True, kw_only=True)
class OneOf(KeyKind):
    """One of the `words`."""

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line with the choices."""
        if not self.admits(value):
            yield UnknownChoice(key, value, (*self.words, *["null"] * self.null))


@dataclass(frozen=True, kw_only=True)
class Described(KeyKind):
    """Values of a form that is described in words."""

    form: str
    fits: Callable[[Any], bool]

    def _fits(self, value: Any) -> bool:
        return self.fits(value)


@dataclass(frozen=True, kw_only=True)
class Flag(KeyKind):
    """True or false. Hydra reads `no` as text, which would count as true."""

    form: str = "true or false"

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the value is neither, with the one that `no`, `on` or 1 stands for."""
        word = next((name for name, words in FLAG_WORDS.items() if str(value).lower() in words), "")
        yield from (f"{line}: write {key}={word}" if word else line for line in super().errors(key, value))

    def _fits(self, value: Any) -> bool:
        return isinstance(value, bool)


FLAG_WORDS = {"true": ("yes", "on", "1", "y"), "false": ("no", "off", "0", "n", "none")}
FLAG = Flag()


@dataclass(frozen=True, kw_only=True)
class Structure(Described):
    """A list or a section: as long as it is something else, nothing below it can be read."""

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the value is something else; a single item may be meant as a list."""
        in_list = f": write '{key}=[{value}]'" if is_scalar(value) and self.fits([value]) else ""
        yield from (f"{line}{in_list}" for line in super().errors(key, value))


@dataclass(frozen=True, kw_only=True)
class Parsed(KeyKind):
    """Values with a special grammar, which `parse` checks."""

    parse: Callable[[Any], Iterator[str]]

    def admits(self, value: Any) -> bool:
        """Return whether the grammar has this value."""
        return not any(self.parse(value))

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield what the grammar refuses; these lines name the key."""
        yield from self.parse(value)


def is_text(value: Any) -> bool:
    """Return whether a value is text."""
    return isinstance(value, str)


def is_scalar(value: Any) -> bool:
    """Return whether a value is text, or a number that Hydra read from one."""
    return isinstance(value, str | int | float)


def is_mapping(value: Any) -> bool:
    """Return whether a value is a section."""
    return isinstance(value, Mapping)


def names_code(value: Any) -> bool:
    """Return whether a value is a section with the dotted path of some code."""
    return isinstance(value, Mapping) and "_target_" in value


def is_metric(value: Any) -> bool:
    """Return whether a value is the name of a metric, or its name and direction."""
    if isinstance(value, Mapping):
        return set(value) == {"name", "better"} and is_text(value["name"]) and value["better"] in ("higher", "lower")
    return is_text(value)


def is_folder_name(name: Any) -> bool:
    """Return whether the name makes a visible folder directly inside its parent."""
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        return False
    # The name becomes a folder that a later command may be told to delete or to read.
    return name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


def choice(*words: str, null: bool = False) -> OneOf:
    """Return the kind of a key that has one of these words."""
    return OneOf(words=words, null=null)


def text(form: str) -> Described:
    """Return the kind of an optional text."""
    return Described(form=form, fits=is_text, null=True)


def name(form: str) -> Described:
    """Return the kind of an optional name; Hydra reads some names as numbers."""
    return Described(form=form, fits=is_scalar, null=True)


def list_of(form: str, item: Callable[[Any], bool]) -> Structure:
    """Return the kind of a list whose items all satisfy `item`."""
    return Structure(form=form, fits=lambda value: isinstance(value, list) and all(map(item, value)))


def count(at_least: int = 1, *, null: bool = False) -> Number:
    """Return the kind of a whole number."""
    return Number(at_least=at_least, whole=True, null=null)
