"""Overrides in Hydra's grammar: from Python values, and from what a person types."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from numbers import Real
from pathlib import Path, PurePath
from typing import Any

from sweeps.errors import ConfigError
from sweeps.sweep import STANDARD_AXES
from sweeps.trial import BUDGET_UNITS

WHOLE: Mapping[str, str] = {
    "trainable": "_target_",
    "model": "name",
    "data": "name",
    "optimizer": "name",
    "schedule": "name",
}
"""Sections replaced as a whole if they have this key: keys left over from another choice would make no sense."""

ALTERNATIVES: Mapping[str, tuple[str, ...]] = {
    "sweep.axes": ("device_batch_size", "global_batch_size"),
    "budget": BUDGET_UNITS,
}
"""Keys of a section of which at most one may be set: setting one resets the others."""

FROM_PROGRAM = "=<of the program>"
"""Follows the name of a section that a program gave as a whole, which no override can express."""

_PLAIN = re.compile(r"(?:[A-Za-z_/]|\.{1,2}(?=/|$))[\w./-]*")
_WORDS = {"null", "true", "false", "nan", "inf"}


def overrides_of(config: Mapping[Any, Any]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Split a mapping, or a dataclass, into overrides and sections that replace whole ones. Raises ValueError."""
    config = {
        key: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for key, value in config.items()
    }
    sections = {
        str(key): dict(value) for key, value in config.items() if isinstance(value, Mapping) and WHOLE.get(key) in value
    }
    rest = {key: value for key, value in config.items() if key not in sections}
    return [f"{key}={literal(value)}" for key, value in _flat(rest)], sections


def literal(value: Any) -> str:
    """Return a value in Hydra's grammar; text is quoted if it could be read as anything else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Real):  # numpy's numbers, too
        return str(value)  # not repr: that of numpy's floats is a call
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        # A backslash needs escaping only before a quote and at the end.
        escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", value)
        return "'" + re.sub(r"(\\+)$", lambda match: match[1] * 2, escaped) + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(literal(item) for item in value) + "]"
    raise ValueError(f"{value!r} is a {type(value).__name__}; a config has numbers, strings, lists and mappings")


def key_of(override: str) -> str:
    """Return the key of an override, without the marks that add or remove it."""
    return override.partition("=")[0].lstrip("+~")


def is_search_path(override: str) -> bool:
    """Return whether an override adds config folders of the user."""
    return override.lstrip("+").startswith("hydra.searchpath=")


def folder_of(place: str) -> Path | None:
    """Return the folder named by a search path entry; None for other kinds of entry (`pkg://…`)."""
    kind, scheme, path = place.strip("'\"").rpartition("://")
    return Path(path) if kind in ("file", "") and path else None


def with_search_path(overrides: Sequence[str], folder: str | None) -> list[str]:
    """Return the overrides with one more config folder. Raises ConfigError for missing folders."""
    paths = [override.partition("=")[2].strip("[]") for override in overrides if is_search_path(override)]
    # Hydra only warns of a missing folder, and then misses what is in it.
    folders = [place for path in paths for place in map(folder_of, path.split(",")) if place]
    missing = [f"hydra.searchpath: {place}" for place in folders if not place.is_dir()]
    if folder is not None and not Path(folder).is_dir():
        missing.append(f"-cd {folder}")
    if missing:
        raise ConfigError([f"{place}: there is no such config folder" for place in missing])
    if folder is None:
        return list(overrides)
    # Hydra accepts one search path. The folder of the flag comes first, as with Hydra's own `--config-dir`.
    others = [override for override in overrides if not is_search_path(override)]
    return [*others, f"hydra.searchpath=[{','.join([literal(f'file://{folder}'), *paths])}]"]


def alternatives(dotted: str) -> list[str]:
    """Return the keys that are reset when this one is set."""
    section, _, key = dotted.rpartition(".")
    keys = ALTERNATIVES.get(section, ())
    return [f"{section}.{other}" for other in keys if other != key] if key in keys else []


def with_command(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with everything after `--` as the command that the trials run. Raises ConfigError."""
    if "--" not in arguments:
        return list(arguments)
    place = arguments.index("--")
    own, words = arguments[:place], arguments[place + 1 :]
    given = {key_of(argument): argument.partition("=")[2] for argument in own}
    errors = []
    if not words:
        errors.append("-- is followed by no command: -- torchrun --nproc_per_node={gpus} train.py --lr {lr}")
    if given.get("trainable", "command") != "command" or "trainable.argv" in given:
        errors.append("the words after -- are the command: leave out trainable= and trainable.argv=")
    if errors:
        raise ConfigError(errors)
    # The words are data: Hydra would replace an interpolation in them.
    argv = [word.replace("${", "\\${") for word in words]
    named = [] if "sweep.name" in given else [f"sweep.name={literal(script_name(words))}"]
    return [*own, *named, "trainable=command", f"trainable.argv={literal(argv)}"]


def script_name(words: Sequence[str]) -> str:
    """Return the name of a command's sweep: that of its script, or of its module or program."""
    scripts = [word for word in words if PurePath(word).suffix in (".py", ".sh", ".ipynb")]
    modules = [module for option, module in zip(words, words[1:], strict=False) if option == "-m"]
    return re.sub(r"[^\w.-]", "_", PurePath([*scripts, *modules, words[0]][0]).stem) or "command"


_AXIS = re.compile(r"""^\+{0,2}sweep\.axes\.(?P<quote>["']?)(?P<key>[\w./@-]+)(?P=quote)=(?P<value>.*)$""", re.DOTALL)

_HOME = re.compile(r"(?P<key>[\w.+-]+)=(?P<place>~[\w.-]*/.*)")
"""An unquoted path in a home; a quoted value is a text, and `~` alone may be YAML's null."""

_ID = re.compile(r"""(?<=[=\[,\s])\d[\da-f]*(?=[\],\s]|$)""")
"""The start of a trial's id in a list, which Hydra may read as a number: `12e4`."""

FREELY_NAMED = re.compile(r"(trainable\.env|cluster\.labels|launch\.options)(\.|=\s*\{)")
"""The start of an override in a section whose keys have any name."""


def rewritten(arguments: Sequence[str]) -> list[str]:
    """Return the arguments in Hydra's own grammar; setting one of several alternatives sets the others to null."""
    sweep = next((argument.removeprefix("sweep=") for argument in arguments if argument.startswith("sweep=")), "")
    plain = [_in_grammar(_with_home(argument), sweep) for argument in arguments]
    if not {"-m", "--multirun"} & {*arguments}:  # which would run a sweep for each value of a range
        plain = [re.sub(r"^(sweep\.axes\.\w+)=(range\(.*\))$", r"\1='\2'", argument) for argument in plain]
    given = {argument.lstrip("+").partition("=")[0] for argument in plain}
    result: list[str] = []
    for argument in plain:
        # Next to the override that implies them, because Hydra's parser wants all overrides in one place.
        nulls = [key for key in alternatives(argument.lstrip("+").partition("=")[0]) if key not in given]
        result += [argument, *(f"{key}=null" for key in nulls)]
        given.update(nulls)
    return result


def _with_home(argument: str) -> str:
    """Return KEY=~/FOLDER with the home that a shell leaves in place. Raises ConfigError if there is no such user."""
    if not (place := _HOME.fullmatch(argument)):
        return argument
    expanded = os.path.expanduser(place["place"])
    if expanded.startswith("~"):
        raise ConfigError([f"{argument!r}: there is no user {place['place'].partition('/')[0][1:]!r}"])
    return f"{place['key']}={literal(expanded)}"


def with_alternatives(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return {dotted key: value} with the alternatives of set keys added as None."""
    return {**{key: None for given in values for key in alternatives(given)}, **values}


def _in_grammar(argument: str, sweep: str) -> str:
    """Return one argument in Hydra's own grammar; `sweep` is the chosen sweep config."""
    # `sweep.axes."optimizer.lr"=[.1,.2]`, quoted or not, names an axis with dots, which Hydra can say as a dictionary.
    if axis := _AXIS.match(argument):
        key, value = axis["key"], axis["value"]
        if key in STANDARD_AXES:
            return f"sweep.axes.{key}={value}"
        # In a dictionary Hydra takes neither a list without brackets nor a range without quotes. An interpolation
        # (`${…}`) may contain commas.
        if "," in value and value[0] not in "[{'\"$":
            if value.startswith("range("):  # range(0,5) → 'range(0,5)'
                value = f"'{value}'"
            elif "(" not in value:  # .1,.2 → [.1,.2], but choice(.1,.2) stays
                value = f"[{value}]"
        return f"++sweep.axes={{{key}:{value}}}"
    if argument.lstrip("+").startswith("rerun="):
        # The ids in `rerun=[12e4,3fa2]` look like numbers; those in `{axis: value}` are numbers.
        parts = re.split(r"(\{[^{}]*\})", argument)
        return "".join(part if part.startswith("{") else _ID.sub(r"'\g<0>'", part) for part in parts)
    if sweep and argument.startswith("scale="):
        return f"sweep/{sweep}={argument.removeprefix('scale=')}"
    # Environment variables, labels and options may have any name without a `+`, which users would forget.
    return f"++{argument}" if FREELY_NAMED.match(argument) else argument


def _flat(config: Mapping[Any, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        path = (*prefix, str(key))
        dotted = ".".join(path)
        # Some mappings are values: a baseline is a cell, a metric has its pattern, and labels have dots.
        is_value = dotted in ("rerun", "sweep.baseline", "cluster.labels", "report.metric") or dotted.startswith(
            "trainable.metrics."
        )
        if isinstance(value, Mapping) and value and not is_value:
            yield from _flat(value, path)
        elif prefix[:2] == ("sweep", "axes") and "." in str(key):
            yield f'sweep.axes."{key}"', value
        else:
            yield dotted, value
