"""The kinds of values that a config key may have: numbers in a range, choices, flags, texts, lists and sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.value_notations import READERS
from sweeps.axes import is_number, is_whole
from sweeps.errors import UnknownChoice


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
            others = "".join(f" or {other}" for other in self._words_or_null)
            yield f"{key} must be {self.form}{others}, not {'null' if value is None else repr(value)}"

    @property
    def _words_or_null(self) -> tuple[str, ...]:
        return (*self.words, "null") if self.null else self.words

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
        object.__setattr__(self, "form", f"a {'whole ' if self.whole else ''}number{limits and f' {limits}'}{unit}")

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the value is not a number in the range."""
        number = self.number_in(str(value)) if isinstance(value, str | float) else ""
        hint = f": write {key}={number}" if number else self.hint if isinstance(value, str) else ""
        yield from (f"{line}{hint}" for line in super().errors(key, value))

    def number_in(self, text: str) -> str:
        """Return the number in `$2.50`, `1%` or `10k`, or the seconds in `10m`; empty if there is none of this kind."""
        # People copy prices with their currency, and write durations as in other tools.
        read = READERS.get(self.unit)
        number = read(text.strip()) if read else None
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


@dataclass(frozen=True, kw_only=True)
class OneOf(KeyKind):
    """One of the `words`."""

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line with the choices."""
        if not self.admits(value):
            yield UnknownChoice(key, value, self._words_or_null)


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
        instead = f": write '{key}=[{value}]'" if is_scalar(value) and self.fits([value]) else ""
        yield from (f"{line}{instead}" for line in super().errors(key, value))


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
