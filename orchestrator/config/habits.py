"""Replies to words that people write from habit, as for other programs: what to write instead, from `habits.yaml`."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.kinds import FLAG, FLAG_WORDS, KeyKind, Number, OneOf, is_money, seconds_in, values_in
from orchestrator.config.schema import SCHEMA, may_be_axis, options_with
from orchestrator.store import files
from sweeps.errors import UnknownChoice
from sweeps.rerun import label_axes

_SAY_NOTHING = {"num", "n", "number", "of", "count", "max", "train", "training", "per", "the", "size", "use", "enable"}
_MOST_SEEDS = 50
_MOST_OFFERED = 3
_MOST_LISTED = 8
_NAMED_BY_VALUES = ("strategy", "report.objective", "launch.target")
_LIKELY = ("budget.epochs", "sweep.budget.gpu_hours", "sweep.budget.cost")
BLANK = re.compile(r"…|=[A-Z]{3,}\b|= one of|: METRIC|\{[\w.]+\|")
"""Where a suggested line has a value still to be filled in."""

_IN_MAPPING = ("launch.options", "model.lora", "model.config")


@dataclass(frozen=True, kw_only=True)
class Habits:
    """The tables of `habits.yaml` by the words that people write; `~batch` stands for all words with this stem."""

    replacements: dict[str, list[Replacement]] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)  # what to do where no override does it
    synonyms: dict[str, dict[str, str]] = field(default_factory=dict)  # {key: {word: value}}
    remarks: dict[str, Mapping[str, str]] = field(default_factory=dict)  # by the text of a replacement
    places: Collection[str] = ()  # the places for what the user has written: `{results_dir|results}`

    @staticmethod
    @functools.cache
    def read() -> Habits:
        """Read the file, which only an error needs."""
        tables = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
        content, places = files.load(tables), {place[0] for place in _PLACE.finditer(tables)}
        values = {f"{key}={value}": entry for key, part in content["values"].items() for value, entry in part.items()}
        entries = {**content["keys"], **values}
        remarks = {text: entry for text, entry in entries.items() if not isinstance(entry, str)}
        habits = Habits(remarks=remarks, places=places)
        for text, entry in content["keys"].items():
            for word in _words_of(entry):
                replacements = habits.replacements.setdefault(word, [])
                if Replacement(text) not in replacements:  # else another word has the same stem
                    replacements.append(Replacement(text))
        for action in content["actions"]:
            for word in _with_stems(action["words"]):
                habits.actions.setdefault(word, action["do"])
        for text, entry in values.items():
            key, _, value = text.partition("=")
            for word in _words_of(entry):
                habits.synonyms.setdefault(key, {}).setdefault(word, value)
        return habits


def _words_of(entry: str | Mapping[str, str]) -> Iterable[str]:
    return _with_stems(entry if isinstance(entry, str) else entry.get("words", ""))


@dataclass(frozen=True, kw_only=True)
class Known:
    """The facts that a suggestion for a wrong word relies on."""

    names: Collection[str] = ()  # the keys and groups of the config; empty: all keys of all choices count
    fits: Callable[[str], bool] = lambda line: True  # tells whether a line that may be suggested works


ANYTHING = Known()


def _with_stems(words: str) -> Iterable[str]:
    for word in words.split():
        name, equals, value = word.partition("=")
        yield from (word, f"~{_stem(name)}{equals}{value}")


def _stem(name: str) -> str:
    """Return a name's words in the singular, in one order, without those that say nothing; the name if none is left."""
    words = [word if word.endswith("ss") else word.removesuffix("s") for word in name.split("_")]
    return "_".join(sorted({*words} - _SAY_NOTHING - {""})) or name


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
        entry = Habits.read().remarks.get(self.text, {})
        beside = f" {entry['with']}" if "with" in entry else ""
        return beside + (f" ({entry['remark']})" if "remark" in entry else "")

    def exists(self, known: Known) -> bool:
        """Return whether the config has it."""
        key = self.settable
        return not known.names or key in SCHEMA or key in known.names or key.startswith("sweep.")

    def override(self, key: str = "", value: str = "") -> str:
        """Return what to write instead of KEY=VALUE, and the remark on it."""
        if "=" in self.text:
            return self.text + self.remark
        value = synonym_of(self.text, value) or value
        kind = SCHEMA.get(self.text)
        section, _, name = self.text.rpartition(".")
        if value == "true" and kind is not FLAG:  # a flag for a key that takes a value
            value = "…"
        if section == "model.config":  # keys of a file of the user's, which Hydra does not know
            return f"+{self.text}={value}"
        if self.settable in _IN_MAPPING:
            option = name if section in _IN_MAPPING else key.rpartition(".")[2]
            return f"'{self.settable}={{{option}: {_option_value(option, value)}}}'{self.remark}"
        if section == "sweep.axes":
            value = f"<={value}" if key.rpartition(".")[2].startswith("max_") and value.isdecimal() else value
            is_count = key.endswith(("seeds", "repeats")) and value.isdecimal() and 0 < int(value) <= _MOST_SEEDS
            return copyable(self.text, ",".join(map(str, range(int(value)))) if is_count else value) + self.remark
        is_several = value.startswith("[") or values_in(value) != value
        if may_be_axis(self.text) and (is_several or key.startswith("sweep.axes.")):
            axis = f'"{self.text}"' if "." in self.text else self.text
            return f"'sweep.axes.{axis}={_in_brackets(self.text, value)}'{self.remark}"
        if isinstance(kind, OneOf) and not kind.admits(value):
            # Such as `cuda` for `cuda:0`.
            near = [word for word in kind.words if value.lower().startswith(word)]
            return f"{self.text}={near[0]}" if near else f"{self.text}= one of {', '.join(kind.words)}"
        return copyable(self.text, _value_of(kind, value)) + self.remark


def _option_value(option: str, value: str) -> str:
    """Return the value of an option of a launch as its template takes it."""
    if option == "memory_gb":
        return Number(unit="GB").number_in(value) or value
    seconds = seconds_in(value) if option == "time_limit" and ":" in value else None
    return f"{math.ceil(seconds / 60)}m" if seconds else value


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


_PLACE = re.compile(r"\{([\w.]+(?:\|[\w.]+)+)\}")
"""A place in the tables for what the user has written under one of some keys: `{results_dir|results}`."""


def filled(lines: Iterable[str], arguments: Iterable[str]) -> list[str]:
    """Return the lines with the values of these arguments in them; the last word of a place stands for no value."""
    parts = [argument.lstrip("+-").partition("=") for argument in arguments]
    given = {key: value for key, _, value in parts if re.fullmatch(r"[\w./+:-]+", value)}
    places = Habits.read().places

    def value_of(place: re.Match[str]) -> str:
        if place[0] not in places:  # text of the user's, such as a pattern
            return place[0]
        *names, default = place[1].split("|")
        return next((given[name] for name in names if name in given), default)

    return [_PLACE.sub(value_of, line) for line in lines]


def explained(line: str) -> str:
    """Return an error line; for an unknown choice that people write from habit, with what to do instead."""
    if not isinstance(line, UnknownChoice):
        return line
    value = str(line.value).lower() if isinstance(line.value, bool) else str(line.value)
    instead = instead_of_choice(line.key, value)
    return f"unknown {line.key} {line.value!r}: {instead}" if instead else line


def instead_of_choice(key: str, value: str) -> str:
    """Return what to do instead of KEY=VALUE, where the key exists and this is none of its choices; else empty."""
    words = [f"{name}={reading}" for name in (key, key.rpartition(".")[2]) for reading in _readings(value)]
    return _instead(key, value, words) or _write_choice(key, value)


def instead_of_key(key: str, value: str, known: Known = ANYTHING) -> str:
    """Return what to do instead of KEY=VALUE, where the key does not exist; empty if nothing is known.

    Also keys in a section are recognised by their last part: `model.lr`, `budget.wall_s`, `sweep.axes.lr`.
    """
    if settings := _SETTINGS.fullmatch(value):
        items = [item.partition(":") for item in re.split(r",(?=\s*[\w.]+\s*:)", settings[1])]
        given = {name.strip(): item.strip() for name, _, item in items}
        meant = [SCHEMA.get(replacement.text) for replacement in Habits.read().replacements.get(_plain(key), ())]
        # Otherwise they are the limits of one setting, or one value.
        if not ({"min", "max"} <= {*given} or any(kind and kind.admits(given) for kind in meant)):
            lines = [instead_of_key(f"{key}.{name}", item, known) for name, item in given.items()]
            return "; ".join(filter(None, lines))
    # Other programs have words around a key: `parameters.lr.values=[…]`; `metric.name=val_loss` is no sweep's name.
    around = ("parameters", "values", "value", "type", *["name"] * (not key.startswith("sweep")))
    key = ".".join(part for part in key.split(".") if part not in around) or key
    section, _, name = key.rpartition(".")
    name = _plain(re.sub("(?<=[a-z])(?=[A-Z])", "_", name))
    readings = _readings(value)
    # `cost.gpu_hour` is also known as `cost_gpu_hour`.
    spellings = (key, key.replace(".", "_")) if section else ()
    dotted = [word for spelling in spellings for word in (*(f"{spelling}={text}" for text in readings), spelling)]
    if instead := _instead(key, value, dotted, known):
        return instead
    if within := [name for name in known.names if section and name.endswith(f".{key}")]:  # `wandb.project`
        return f"write {Replacement(within[0]).override(key, value)}"
    words = []
    for base in (name, f"~{_stem(name)}"):
        words += [*(f"{base}={reading}" for reading in readings), base]
    if instead := _instead(key, value, words, known):
        return instead
    if "true" in readings and (mode := _mode(name)):
        return mode
    # A value is in place of its key: `fsdp=true`, `deepspeed=ds.json`.
    for owner in _NAMED_BY_VALUES:
        if choice := _write_choice(owner, name):
            return choice
    # The unit is in the name: `max_hours=3`.
    rest, _, unit = name.rpartition("_")
    if not re.fullmatch(r"[\d.]+", value) or not unit.isalpha() or seconds_in(f"{value}{unit}") is None:
        return ""
    name = rest if rest.replace("_", "") and _stem(rest) not in _SAY_NOTHING else "time"
    return _instead(key, f"{value}{unit[0]}", (name, f"~{_stem(name)}"), known)


def instead_of_word(word: str, known: Known = ANYTHING) -> str:
    """Return what to do instead of a word without `=`: a mode, a flag, or a key without its value; empty if unknown."""
    name = _plain(word)
    return _mode(name) or instead_of_key(name, "true", known)


def instead_of_section(section: str, value: str) -> str:
    """Return what to do instead of a value in place of a section: its keys that take it, if they are few.

    Such as `budget.seconds=7200` for `budget=2h`, and `tracker.wandb.enabled=true` for `tracker=wandb`.
    """
    if f"{section}.{value}.enabled" in SCHEMA:
        return f"write {section}.{value}.enabled=true"
    if instead := instead_of_choice(section, value):
        return instead
    # A budget of the whole sweep is as likely to be meant as one of each trial.
    beside = (section, f"sweep.{section}")
    kinds = {key: kind for key, kind in SCHEMA.items() if key.rpartition(".")[0] in beside}
    values = {key: kind.number_in(value) for key, kind in kinds.items() if isinstance(kind, Number)}
    if is_money(value):
        values = {key: number for key, number in values.items() if key.endswith("cost")}
    elif seconds_in(value):
        values = {key: number for key, number in values.items() if key.rpartition(".")[2] in ("seconds", "wall_s")}
    values |= {key: value for key, kind in kinds.items() if value in kind.words}
    values |= {key: synonym for key in kinds if (synonym := synonym_of(key, value))}
    values = {key: word for key, word in values.items() if word}
    if len(values) > _MOST_OFFERED:  # a plain number
        values = {key: word for key, word in values.items() if key in _LIKELY}
    offered = [f"{key}={word}{Replacement(key).remark}" for key, word in values.items()]
    return f"write {' or '.join(offered)}" if offered else _mode(_plain(value))  # `cluster=slurm`


def kept(text: str, axes: Mapping[str, Any]) -> str:
    """Return the line that keeps one value of some axes: `2x32`, `2×32 sqrt`, `sqrt` or `{gpus: 2}`; else empty."""
    values = dict(re.findall(r"([\w.]+): *([^,{}]+)", text)) or label_axes(text)
    lists = {name: list(map(str, given)) for name, given in axes.items() if isinstance(given, list)}
    values = values or {name: text for name, given in lists.items() if text in given}
    lines = [copyable(f"sweep.axes.{axis}", value) for axis, value in values.items()]
    return f"write {' '.join(lines)}" if lines else ""


def left_out(text: str, axes: Mapping[str, Any], axis: str = "") -> str:
    """Return the line that leaves out values of an axis: `sqrt`, `lr_rule=sqrt` or `{lr_rule: sqrt}`; else empty."""
    values = re.sub(r"""['"\[\] ]""", "", text).strip("{}")
    names = re.findall(r"([\w.]+):", values)
    if len(names) > 1 and {*names} <= {*axes}:  # one combination: `{gpus: 2, lr_rule: sqrt}`
        return f"write 'sweep.exclude=[{{{values.replace(':', ': ').replace(',', ', ')}}}]'"
    if named := re.fullmatch(r"([\w.]+)[:=](.+)", values):
        axis, values = named[1], named[2]
    there = {name: list(map(str, given)) for name, given in axes.items() if isinstance(given, list)}
    having = [name for name, given in there.items() if {*values.split(",")} <= {*given}]
    excluded = f"[{values}]" if "," in values else values
    lines = [f"'sweep.exclude=[{{{name}: {excluded}}}]'" for name in having if axis in ("", name)]
    return f"write {' or '.join(lines)}" if lines else ""


def group_for(key: str) -> str:
    """Return the config group that a key that does not exist is a synonym of; empty if there is none."""
    names = [replacement.text for replacement in Habits.read().replacements.get(_plain(key), ())]
    return next((name for name in names if not set(name) & set(".=") and name not in SCHEMA), "")


def synonym_of(key: str, value: str) -> str:
    """Return the value of a key that another word stands for; empty if none is known."""
    values = Habits.read().synonyms.get(key, {})
    return next((values[reading] for reading in _readings(value) if reading in values), "")


def _plain(word: str) -> str:
    return word if len(word) == 1 else word.lower().replace("-", "_")  # `-N` is not `-n`


_TRUE = ("true", "", *FLAG_WORDS["true"])
_FALSE = ("false", "null", *FLAG_WORDS["false"])
_FORMATS = "json csv tsv md markdown html pdf parquet excel xlsx yaml text latex".split()
_SETTINGS = re.compile(r"\{(\s*[\w.]+\s*:.*)\}")
"""Several settings in one value: `{cpu: 2, gpu: 1}`."""


def _readings(value: str) -> list[str]:
    """Return what a value may stand for in the tables: itself, `true`, `n`, `FORMAT`, `IDS`, `FILE`, `TEXT`, …"""
    value = _plain(value)
    readings = [value, *["true"] * (value in _TRUE), *["false"] * (value in _FALSE), *["n"] * value.isdecimal()]
    is_name = value[:1].isalpha() and value not in (*_TRUE, *_FALSE, "auto", "all", "max") and values_in(value) == value
    # GPUs are counted from 0; `cuda:0` is just a kind of device.
    readings += ["FORMAT"] * (value.rpartition(".")[2] in _FORMATS)
    readings += ["IDS"] * bool(re.fullmatch(r"\[?(cuda:)?0(,(cuda:)?\d+)+\]?|cuda:[1-9]\d*", value.replace(" ", "")))
    return [*readings, *["FILE"] * bool(re.search(r"\.[a-z]{2,5}$", value)), *["TEXT"] * is_name]


def _mode(name: str) -> str:
    """Return what to do instead of the name of a mode, or a synonym of one."""
    return Habits.read().actions.get(f"mode={name}") or _write_choice("mode", name)


def _write_choice(key: str, word: str) -> str:
    """Return the line that sets a key to a choice, or to the one that the word is a synonym of; else empty."""
    kind = SCHEMA.get(key)
    choice = word if kind and word in kind.words else synonym_of(key, word)
    return f"write {Replacement(f'{key}={choice}').override()}" if choice else ""


def _instead(key: str, value: str, words: Iterable[str], known: Known = ANYTHING) -> str:
    """Return what to do instead of KEY=VALUE by the first of these words that the tables have; else empty."""
    return next(filter(None, (_by_word(key, value, word, known) for word in words)), "")


def _by_word(key: str, value: str, word: str, known: Known) -> str:
    habits = Habits.read()
    if action := habits.actions.get(word):
        name = key.rpartition(".")[2].replace("_", "-")
        ids = re.findall(r"\d+", value)
        counts = values_in(f"1..{max(1, len(ids))}")
        action = action.replace("{ids}", ",".join(ids) or "0").replace("{counts}", counts)
        if value == "true":  # a flag
            return action.replace("{name}={value}", name).replace("{value}", "")
        return action.replace("{name}", name).replace("{value}", value)
    replacements = [replacement for replacement in habits.replacements.get(word, ()) if replacement.text != key]
    there = [replacement for replacement in replacements if replacement.exists(known)]
    section = key.rpartition(".")[0]
    there = [replacement for replacement in there if section and replacement.text.startswith(f"{section}.")] or there
    if replacements and not there:
        return elsewhere(replacements[0].settable, value, known)
    texts = [text for replacement in there if known.fits(text := replacement.override(key, value))]
    # A text without a value says only which key it is.
    complete = [text for text in texts if not BLANK.search(text)]
    return f"write {' or '.join(complete or texts)}" if texts else ""


def elsewhere(key: str, value: str, known: Known) -> str:
    """Return which choices of a group have a key that the chosen one lacks; empty if none has it."""
    group = key.partition(".")[0]
    if not (options := options_with(key)):
        return ""
    if group == "schedule":  # any schedule fits any training
        return f"write schedule={options[0]} {key}={value}{Replacement(key).remark}"
    beside = [dotted for dotted in known.names if dotted.startswith(f"{group}.") and dotted != f"{group}.name"]
    own = [dotted.partition(".")[2] for dotted in beside]
    has = f", which has {', '.join(own)}" if 0 < len(own) <= _MOST_LISTED else ""
    return f"{key} is a setting of {group}={', '.join(options)}, not of the chosen {group}{has}"
