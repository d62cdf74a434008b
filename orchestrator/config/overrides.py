"""Overrides in Hydra's grammar: from Python values, from what a person types, and back; commands for more seeds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path, PurePath
from typing import Any

from sweeps.errors import ConfigError
from sweeps.sweep import STANDARD_AXES

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
    "budget": ("epochs", "samples", "tokens", "steps", "seconds"),
}
"""Keys of a section of which at most one may be set: setting one resets the others."""

FROM_PROGRAM = "=<of the program>"
"""Follows the name of a section that a program gave as a whole, which no override can express."""

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = {"null", "true", "false", "nan", "inf"}


def overrides_of(config: Mapping[Any, Any]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Split a mapping into overrides and sections that replace whole ones.

    Dataclass instances count as mappings. Raises ValueError for a value that no override can express.
    """
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
    if isinstance(value, int | float):
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


def folders(overrides: Sequence[str]) -> list[Path]:
    """Return the user's config folders named in the overrides."""
    return [folder for path in _paths(overrides) for folder in map(folder_of, path.split(",")) if folder]


def with_search_path(overrides: Sequence[str], folder: str | None) -> list[str]:
    """Return the overrides with one more config folder. Raises ConfigError for missing folders."""
    # Hydra only warns of a missing folder, and then misses what is in it.
    missing = [f"hydra.searchpath: {place}" for place in folders(overrides) if not place.is_dir()]
    if folder is not None and not Path(folder).is_dir():
        missing.append(f"-cd {folder}")
    if missing:
        raise ConfigError([f"{place}: there is no such config folder" for place in missing])
    if folder is None:
        return list(overrides)
    # Hydra accepts one search path. The folder of the flag comes first, as with Hydra's own `--config-dir`.
    others = [override for override in overrides if not is_search_path(override)]
    return [*others, f"hydra.searchpath=[{','.join([f'file://{folder}', *_paths(overrides)])}]"]


def _paths(overrides: Sequence[str]) -> list[str]:
    """Return the entries of each search path in the overrides."""
    return [override.partition("=")[2].strip("[]") for override in overrides if is_search_path(override)]


def alternatives(dotted: str) -> list[str]:
    """Return the keys that are reset when this one is set."""
    section, _, key = dotted.rpartition(".")
    keys = ALTERNATIVES.get(section, ())
    return [f"{section}.{other}" for other in keys if other != key] if key in keys else []


def with_command(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with everything after `--` as the command that the trials run: `trainable.argv`.

    The sweep has the script's name unless `sweep.name` is given. Raises ConfigError if the command is empty, if another
    trainable is given, or if the command takes `{lr}` without the rate and the batch that the rules scale from.
    """
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
    rules = ("trainable.lr", "trainable.reference_batch_size")
    if any("{lr}" in word for word in words) and not given.keys() >= set(rules):
        errors.append(
            "the command takes {lr}: add the rate and the global batch at which it was tuned, as in"
            " trainable.lr=0.1 trainable.reference_batch_size=32"
        )
    if errors:
        raise ConfigError(errors)
    # The words are data: Hydra would replace an interpolation in them.
    argv = [word.replace("${", "\\${") for word in words]
    name = [] if "sweep.name" in given else [f"sweep.name={literal(_name_of(words))}"]
    return [*own, *name, "trainable=command", f"trainable.argv={literal(argv)}"]


def _name_of(words: Sequence[str]) -> str:
    """Return the name of a command's script, or of its module or program if it has none."""
    script = next((word for word in words if PurePath(word).suffix in (".py", ".sh", ".ipynb")), words[0])
    if "-m" in words[:-1] and script == words[0]:
        script = words[words.index("-m") + 1]
    return re.sub(r"[^\w.-]", "_", PurePath(script).stem) or "command"


_AXIS = re.compile(r"""^\+{0,2}sweep\.axes\.(?P<quote>["']?)(?P<key>[\w./@-]+)(?P=quote)=(?P<value>.*)$""", re.DOTALL)

_ID = re.compile(r"""(?<=[=\[,\s])\d[\da-f]*(?=[\],\s]|$)""")

_FREELY_NAMED = re.compile(r"(trainable\.env|cluster\.labels|launch\.options)(\.|=\s*\{)")


def rewritten(arguments: Sequence[str]) -> list[str]:
    """Return the arguments in Hydra's own grammar.

    `sweep.axes."optimizer.lr"=[.1,.2]`, quoted or not, is an axis under a dotted name, which Hydra can only say as a
    dictionary; `trainable.env`, `cluster.labels` and `launch.options` may get any name; setting one of several
    alternatives sets the others to null unless they are given. `scale=small` chooses from the sweep's own group:
    `sweep/published/conv2d=small`. The ids in `rerun=[12e4,3fa2]` are text, even if they look like numbers.
    """
    sweep = next((argument.removeprefix("sweep=") for argument in arguments if argument.startswith("sweep=")), "")
    plain = [_in_grammar(argument, sweep) for argument in arguments]
    given = {argument.lstrip("+").partition("=")[0] for argument in plain}
    result: list[str] = []
    for argument in plain:
        # Next to the override that implies them, because Hydra's parser wants all overrides in one place.
        nulls = [key for key in alternatives(argument.lstrip("+").partition("=")[0]) if key not in given]
        result += [argument, *(f"{key}=null" for key in nulls)]
        given.update(nulls)
    return result


def with_alternatives(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return {dotted key: value} with the alternatives of set keys added as None."""
    return {**{key: None for given in values for key in alternatives(given)}, **values}


def _in_grammar(argument: str, sweep: str) -> str:
    """Return one argument in Hydra's own grammar; `sweep` is the chosen sweep config."""
    if axis := _AXIS.match(argument):
        key, value = axis["key"], axis["value"]
        return f"sweep.axes.{key}={value}" if key in STANDARD_AXES else f"++sweep.axes={{{key}:{value}}}"
    if argument.lstrip("+").startswith("rerun="):
        # Quote the ids, but not the numbers in `{axis: value}`.
        parts = re.split(r"(\{[^{}]*\})", argument)
        return "".join(part if part.startswith("{") else _ID.sub(r"'\g<0>'", part) for part in parts)
    if sweep and argument.startswith("scale="):
        return f"sweep/{sweep}={argument.removeprefix('scale=')}"
    # Environment variables, labels and options may have any name without a `+`, which users would forget.
    return f"++{argument}" if _FREELY_NAMED.match(argument) else argument


_DOTTED_AXIS = re.compile(r"\+\+sweep\.axes=\{([\w./@-]+):(.*)\}", re.DOTALL)
_FOLDER = re.compile(r"hydra\.searchpath=\[file://([^,\]]+)\]")


def shell_command(overrides: Sequence[str]) -> str:
    """Return the equivalent shell command, without the `KEY=null` that setting an alternative implies.

    A single folder of the user's configs becomes the usual flag `-cd`.
    """
    set_keys = {key for key, _, value in (override.partition("=") for override in overrides) if value != "null"}
    implied = {f"{other}=null" for key in set_keys for other in alternatives(key)}
    typed = [override for override in overrides if override not in implied]
    words = ["python -m orchestrator"]
    for override in typed:
        folder = _FOLDER.fullmatch(override)
        if not folder:
            words.append(_shell_word(_as_typed(override, overrides)))
        elif f"--config-dir={folder[1]}" not in typed:
            words += ["-cd", _shell_word(folder[1])]
    return " ".join(words)


def _as_typed(override: str, overrides: Sequence[str]) -> str:
    """Return one of the overrides as a person would write it; `rewritten` is the way back."""
    if axis := _DOTTED_AXIS.fullmatch(override):
        return f'sweep.axes."{axis[1]}"={axis[2]}'
    group, _, choice = override.partition("=")
    if f"sweep={group.removeprefix('sweep/')}" in overrides and group.startswith("sweep/"):
        return f"scale={choice}"
    return override


def _shell_word(argument: str) -> str:
    """Quote an argument for a shell, in double quotes if Hydra needs quotes inside: "a='b'"."""
    return f'"{argument}"' if "'" in argument and not set(argument) & set('"$`\\!') else shlex.quote(argument)


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


_OTHER = ("sweep.axes", "sweep.exclude=", "rerun=", "mode=", "claims.", "predict.", "compare.", "format=")
"""Overrides that a command for more seeds drops: it sets the axes, runs trials, and reruns none."""

_ZIP = "sweep.zip="


def command(overrides: Sequence[str], extra: Sequence[str], dropped: Sequence[str] = _OTHER) -> str:
    """Return the shell command with the user's overrides and extra ones, such as the narrowed axes.

    Finished trials do not run again. `dropped` are the beginnings of the overrides to leave out. The command is a
    `run_sweep` call if a program gave a section that no command line can express.
    """
    if any(override.endswith(FROM_PROGRAM) for override in overrides):
        return f"run_sweep(…, {', '.join(map(repr, extra))})"
    zipped = any(override.startswith(_ZIP) for override in extra)
    beginnings = (*dropped, _ZIP) if zipped else (*dropped,)
    kept = [override for override in overrides if not f"{key_of(override)}=".startswith(beginnings)]
    return shell_command([*kept, *extra])


def settle_command(overrides: Sequence[str]) -> str:
    """Return the command that runs further seeds until the verdict is clear."""
    return command(overrides, ["mode=settle"], dropped=("mode=", "rerun="))


def narrowed_to(
    cell: Mapping[str, Any], seeds: Sequence[int], *, excludes: bool = False, zips: bool = False
) -> list[str]:
    """Return overrides that narrow the sweep's axes to those of a cell and to these seeds.

    `excludes` and `zips` say that the sweep excludes combinations or zips axes: these settings may not fit the narrowed
    axes and are replaced.
    """
    quoted = {axis: f'"{axis}"' if "." in axis or "/" in axis else axis for axis in cell}
    given = [f"sweep.axes.{quoted[axis]}=[{literal(_whole(value))}]" for axis, value in cell.items()]
    is_range = len(seeds) > 5 and list(seeds) == list(range(len(seeds)))
    text = f"'range(0,{len(seeds)})'" if is_range else f"[{','.join(map(str, seeds))}]"  # Hydra's grammar
    given.append(f"sweep.axes.seed={text}")
    if zips:
        given.append("sweep.zip=[]")
    if excludes:
        given.append("sweep.exclude=[]")
    return given


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
