"""The tables of `synonyms.yaml`: words that people write from habit, and what to write instead."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.config.schema import SCHEMA, may_be_axis
from orchestrator.config.value_notations import gb_in, seconds_in, values_in
from orchestrator.config.value_types import FLAG, FLAG_WORDS, KeyKind, Number, OneOf
from orchestrator.store import files
from orchestrator.store.results_folder import JOURNAL

BLANK = re.compile(r"…|=[A-Z]{3,}\b|= one of|: METRIC")
"""Where a suggested line has a value still to be filled in."""

SAY_NOTHING = {"num", "n", "number", "of", "count", "max", "train", "training", "per", "the", "size", "use", "enable"}
_AROUND = ("parameters", "values", "value", "type")  # words around a key: `parameters.lr.values=[…]`
_MOST_SEEDS = 50
_IN_MAPPING = ("launch.options", "model.lora", "model.config")
_TRUE = ("true", "", *FLAG_WORDS["true"])
_FALSE = ("false", "null", *FLAG_WORDS["false"])
_FORMATS = "json csv tsv md markdown html pdf parquet excel xlsx yaml text latex".split()
_IDS = re.compile(r"\[?(cuda:)?0(,(cuda:)?\d+)+\]?|cuda:[1-9]\d*")
"""Several GPUs, which are counted from 0; `cuda:0` is just a kind of device."""

_PLACE = re.compile(r"\{([\w.]+(?:\|[\w.]+)+)\}")
"""A place in the tables for what the user has written under one of some keys: `{results_dir|results}`."""

_given: ContextVar[Mapping[str, str]] = ContextVar("given")
"""What the user has written in the request, by key."""


@contextmanager
def given_in(arguments: Iterable[str]) -> Iterator[None]:
    """Context in which the places of the tables are filled with the values of these arguments."""
    parts = [argument.lstrip("+-").partition("=") for argument in arguments]
    typed = {key: value for key, is_key, value in parts if is_key}
    # A word may be a folder of results; so may the value of results_dir, unless a sweep has a folder in it.
    words = [word for word, is_key, _ in parts if not is_key]
    words += [typed.get("results_dir", "")] if typed.keys().isdisjoint(("sweep", "sweep.name")) else []
    folders = [os.path.split(word.rstrip("/")) for word in words if os.path.isfile(os.path.join(word, JOURNAL))]
    of_folder = {"results_dir": folders[0][0] or ".", "sweep.name": folders[0][1]} if folders else {}
    before = _given.set({key: value for key, value in typed.items() if re.fullmatch(r"[\w./+:-]+", value)} | of_folder)
    try:
        yield
    finally:
        _given.reset(before)


def given(key: str) -> str:
    """Return what the user has written for a key in the request; empty if nothing."""
    return _given.get({}).get(key, "")


def _filled(text: str) -> str:
    """Return a text of the tables with what the user has written; the last word of a place stands for no value."""

    def value_of(place: re.Match[str]) -> str:
        *names, default = place[1].split("|")
        return next(filter(None, map(given, names)), default)

    return _PLACE.sub(value_of, text)


def plain(word: str) -> str:
    """Return a word as the tables have it."""
    return word if len(word) == 1 else word.lower().replace("-", "_")  # `-N` is not `-n`


def stem(name: str) -> str:
    """Return a name's words in the singular, in one order, without those that say nothing; the name if none is left."""
    words = [word if word.endswith("ss") else word.removesuffix("s") for word in name.split("_")]
    return "_".join(sorted({*words} - SAY_NOTHING - {""})) or name


@dataclass(frozen=True)
class Typed:
    """KEY=VALUE as a user has typed it; a word alone is a flag, whose value is `true`."""

    key: str
    value: str = "true"

    @cached_property
    def section(self) -> str:
        """The key without its last part; empty if there is one part only."""
        return self.key.rpartition(".")[0]

    @cached_property
    def last(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]

    @cached_property
    def name(self) -> str:
        """The last part of the key as the tables have it."""
        return plain(re.sub("(?<=[a-z])(?=[A-Z])", "_", self.last))

    @cached_property
    def core(self) -> Typed:
        """The same without the words that other programs have around a key; `sweep.name` is one of ours."""
        around = _AROUND if self.key.startswith("sweep") else (*_AROUND, "name")
        return Typed(".".join(part for part in self.key.split(".") if part not in around) or self.key, self.value)

    @cached_property
    def readings(self) -> list[str]:
        """All that the value may stand for in the tables: itself, `true`, `n`, `FORMAT`, `IDS`, `FILE`, `TEXT`, …"""
        value = plain(self.value)
        is_word = value not in (*_TRUE, *_FALSE, "auto", "all", "max") and values_in(value) == value
        applies = {
            value: True,
            "true": value in _TRUE,
            "false": value in _FALSE,
            "n": value.isdecimal(),
            "FORMAT": value.rpartition(".")[2] in _FORMATS,
            "IDS": _IDS.fullmatch(value.replace(" ", "")),
            "FILE": re.search(r"\.[a-z]{2,5}$", value),
            "TEXT": value[:1].isalpha() and is_word,
        }
        return [reading for reading, is_one in applies.items() if is_one]

    def words(self, *names: str) -> list[str]:
        """Return the words of the tables for these names of the key: with the value, then alone."""
        return [word for name in names for word in (*(f"{name}={reading}" for reading in self.readings), name)]


class Surroundings:
    """The facts about a config on which suggestions rely. Here nothing is known, and all that is suggested fits."""

    keys: Collection[str] = ()
    groups: Collection[str] = ()
    names: Collection[str] = ()  # keys and groups; empty if unknown
    axes: Mapping[str, Any] = MappingProxyType({})  # the axes of the sweep with their values

    def fits(self, line: str) -> bool:
        """Return whether a line works as typed into a shell, or has a value still to be filled in."""
        return True

    def options(self, group: str) -> Sequence[str]:
        """Return the choices in a group; none for any other key."""
        return ()


UNKNOWN = Surroundings()


@dataclass(frozen=True, kw_only=True)
class Synonyms:
    """The tables of `synonyms.yaml` by the words that people write; `~batch` stands for all words with this stem."""

    replacements: dict[str, list[Replacement]] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)  # what to do where no override does it
    synonyms: dict[str, dict[str, str]] = field(default_factory=dict)  # {key: {word: value}}
    remarks: dict[str, Mapping[str, str]] = field(default_factory=dict)  # by the text of a replacement

    @staticmethod
    @functools.cache
    def read() -> Synonyms:
        """Read the file, which only an error needs."""
        content = files.load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
        tables = Synonyms()
        for text, entry in content["keys"].items():
            for word in tables._words_of(text, entry):
                replacements = tables.replacements.setdefault(word, [])
                if Replacement(text) not in replacements:  # else another word has the same stem
                    replacements.append(Replacement(text))
        for key, values in content["values"].items():
            for value, entry in values.items():
                for word in tables._words_of(f"{key}={value}", entry):
                    tables.synonyms.setdefault(key, {}).setdefault(word, value)
        for action in content["actions"]:
            for word in _with_stems(action["words"]):
                tables.actions.setdefault(word, action["do"])
        return tables

    def _words_of(self, text: str, entry: str | Mapping[str, str]) -> Iterable[str]:
        """Return the words of an entry, and keep its remark."""
        if isinstance(entry, str):
            return _with_stems(entry)
        self.remarks[text] = entry
        return _with_stems(entry.get("words", ""))

    def action(self, word: str, typed: Typed) -> str:
        """Return what to do for a word of the tables where no override does it; empty if the tables have none."""
        text = _filled(self.actions.get(word, ""))
        ids = re.findall(r"\d+", typed.value)
        given = {
            "{ids}": ",".join(ids) or "0",
            "{counts}": values_in(f"1..{max(1, len(ids))}"),
            "{name}={value}": "{name}" if typed.value == "true" else "{name}={value}",  # a flag
            "{value}": "" if typed.value == "true" else typed.value,
            "{name}": typed.last.replace("_", "-"),
        }
        for place, value in given.items():
            text = text.replace(place, value)
        return text


def _with_stems(words: str) -> Iterable[str]:
    for word in words.split():
        name, equals, value = word.partition("=")
        yield from (word, f"~{stem(name)}{equals}{value}")


def synonym_of(key: str, value: str) -> str:
    """Return the value of a key that another word stands for; empty if none is known."""
    values = Synonyms.read().synonyms.get(key, {})
    return next((values[reading] for reading in Typed(key, value).readings if reading in values), "")


@dataclass(frozen=True)
class Replacement:
    """A key to write instead (`budget.epochs`), or a key with one value (`mode=plan`)."""

    text: str

    @property
    def settable(self) -> str:
        """The key that it sets: its section, if that is a value as a whole."""
        key = self.text.partition("=")[0]
        section = key.rpartition(".")[0]
        return section if section in _IN_MAPPING else key

    @property
    def remark(self) -> str:
        """The override that it needs beside it, and the remark on it in brackets; empty if there is none."""
        entry = Synonyms.read().remarks.get(self.text, {})
        beside = f" {_filled(entry['with'])}" if "with" in entry else ""
        tracker = re.fullmatch(r"tracker\.(\w+)\.enabled=true", self.text)
        is_missing = tracker is not None and find_spec(tracker[1]) is None
        remarks = [entry["remark"]] if "remark" in entry else []
        remarks += [f"after pip install 'sweep-orchestrator[{tracker[1]}]'"] if tracker and is_missing else []
        return beside + (f" ({'; '.join(remarks)})" if remarks else "")

    def exists(self, config: Surroundings) -> bool:
        """Return whether the config has it."""
        key = self.settable
        return not config.names or key in SCHEMA or key in config.names or key.startswith("sweep.")

    def override(self, typed: Typed) -> str:
        """Return what to write instead, and the remark on it."""
        return (self.text if "=" in self.text else self._with_value_of(typed)) + self.remark

    def _with_value_of(self, typed: Typed) -> str:
        key, kind = self.text, SCHEMA.get(self.text)
        value = synonym_of(key, typed.value) or typed.value
        if value == "true" and kind is not FLAG:  # a flag for a key that takes a value
            value = "…"
        section, _, name = key.rpartition(".")
        if section == "model.config":  # keys of a file of the user's, which Hydra does not know
            return f"+{key}={value}"
        if self.settable in _IN_MAPPING:  # partition=gpu → 'launch.options={partition: gpu}'
            option = name if section in _IN_MAPPING else typed.last
            return f"'{self.settable}={{{option}: {_option_value(option, value)}}}'"
        if section == "sweep.axes":  # seeds=3 → 'sweep.axes.seed=[0,1,2]'
            return copyable(key, _values_of_axis(typed.last, value))
        # lr=0.1,0.2 → 'sweep.axes."trainable.lr"=[0.1,0.2]'
        is_several = value.startswith("[") or values_in(value) != value
        if may_be_axis(key) and (is_several or typed.key.startswith("sweep.axes.")):
            axis = f'"{key}"' if section else key
            return f"'sweep.axes.{axis}={_in_brackets(key, value)}'"
        if isinstance(kind, OneOf) and not kind.admits(value):
            # Such as `cuda` for `cuda:0`.
            near = [word for word in kind.words if value.lower().startswith(word)]
            return f"{key}={near[0]}" if near else f"{key}= one of {', '.join(kind.words)}"
        return copyable(key, _value_of(kind, value))


def _option_value(option: str, value: str) -> str:
    """Return the value of an option of a launch as its template takes it."""
    if option == "memory_gb":
        return gb_in(value) or value
    seconds = seconds_in(value) if option == "time_limit" and ":" in value else None
    return f"{math.ceil(seconds / 60)}m" if seconds else value


def _values_of_axis(name: str, value: str) -> str:
    """Return the values of a standard axis under the name that the user has typed: `max_gpus`, `seeds`."""
    if not value.isdecimal():
        return value
    if name.endswith(("seeds", "repeats")) and 0 < int(value) <= _MOST_SEEDS:
        return ",".join(map(str, range(int(value))))
    return f"<={value}" if name.startswith("max_") else value


def _value_of(kind: KeyKind | None, value: str) -> str:
    """Return a value as this kind of key takes it; for a number that it is not, its unit: SECONDS."""
    if not isinstance(kind, Number):
        return value
    if kind.null and value.lower() in ("-1", "inf", "unlimited", "none"):
        return "null"
    number = kind.number_in(value)
    if number or value == "…" or re.fullmatch(r"[\d.e+-]+", value):
        return number or value
    return (kind.unit or "number").partition(" ")[0].upper()  # `deadline=tomorrow`


def copyable(key: str, value: str) -> str:
    """Return KEY=VALUE as it can be copied into a shell: an axis takes a list, and brackets need quotes."""
    if not key.startswith("sweep.axes."):
        return f"'{key}={value}'" if set(value) & set("[]{}$ ") else f"{key}={value}"
    if key == "sweep.axes.gpus" and value.lower() in ("auto", "all", "max", "-1", "available", "gpu"):
        return "sweep.axes.gpus=auto"
    if value.startswith("range("):
        return f"\"{key}='{value}'\""
    return f"'{key}={_in_brackets(key, value)}'"


def _in_brackets(key: str, value: str) -> str:
    # `4` of `gpu:4` and `gpu:h100:4`, which Slurm takes.
    count = re.fullmatch(r"gpu:(?:\w+:)?(\d+)", value)
    return f"[{values_in(count[1] if count else value, every=key.endswith('seed')) or '…'}]"
