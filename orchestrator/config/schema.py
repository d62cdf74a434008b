"""Checks of single keys: names, values, sections and lists, by `orchestrator.config.settings` and the shipped files."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestrator.config.kinds import KeyKind, Number, Structure, is_mapping, values_in
from orchestrator.config.search_path import config_dir
from orchestrator.config.settings import AXES, Settings
from orchestrator.store import files
from sweeps.axes import Axes, flat, is_not_finite, is_number, is_whole
from sweeps.errors import nearest
from sweeps.layout import MODEL_PARALLEL


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """Return the value under a dotted key, or None if part of the path is missing."""
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _keys_of(keys: type[Any], prefix: str = "") -> Iterator[tuple[str, KeyKind]]:
    for entry in fields(keys):
        dotted = prefix + entry.name.rstrip("_")
        inner = entry.metadata.get("section")
        if inner:
            yield from _keys_of(inner, f"{dotted}.")
        else:
            yield dotted, entry.metadata["kind"]


SCHEMA: Mapping[str, KeyKind] = dict(_keys_of(Settings))
"""The kind of each key, in the order of `conf/config.yaml`."""

OWN_SECTIONS = tuple(
    dict.fromkeys([key.partition(".")[0] for key in SCHEMA if not key.startswith("budget.")] + ["hydra"])
)
"""Config sections that the orchestrator reads; all others belong to the trainable."""

IDENTIFYING = (
    "strategy",
    "nodes",
    "fsdp_size",
    "grad_accum_steps",
    *MODEL_PARALLEL,
    "uneven_batch",
    "warmup_epochs",
    "resources",
)
"""Own sections that can change a trial's result: part of its identity as written, `auto` as `auto`."""


def trainable_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a config that belong to the trainable."""
    return {key: value for key, value in config.items() if key not in OWN_SECTIONS}


_SECTIONS: dict[str, dict[str, None]] = {}  # the names of the keys of each section, in their order
for _key in SCHEMA:
    while "." in _key:
        _key, _, _name = _key.rpartition(".")
        _SECTIONS.setdefault(_key, {})[_name] = None


def structure_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every value that should be a section or a list and is not; the rest cannot be read then."""
    from orchestrator.config.habits import meant_in_section  # imports this module

    for section, keys in _SECTIONS.items():
        given = value_at(config, section)
        if not is_mapping(given) and (section in config or section != "budget") and _is_in_section(config, section):
            instead = meant_in_section(section, str(given))
            hint = f": {instead}" if instead else ""
            shown = "null" if given is None else repr(given)
            yield f"{section} must be a section with {', '.join(keys)}, not {shown}{hint}"
    for key, kind in SCHEMA.items():
        if isinstance(kind, Structure) and _is_in_section(config, key):
            yield from kind.errors(key, value_at(config, key))
    yield from name_errors(config)


_NAMES = ("name", "_target_", "_check_", "_remarks_")


def name_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each section or list in place of a name in the trainable's sections."""
    # Names are looked up in tables before a trainable checks its own sections.
    for section, values in trainable_part(config).items():
        for key in _NAMES if is_mapping(values) else ():
            if isinstance(values.get(key), Mapping | list):
                yield f"{section}.{key} must be a name, not {values[key]!r:.100}"


def value_errors(config: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    """Yield a line for every value of these keys that the schema does not allow, apart from sections and lists."""
    for key in keys:
        kind = SCHEMA[key]
        if not isinstance(kind, Structure) and _is_in_section(config, key):
            yield from kind.errors(key, value_at(config, key))


def _is_in_section(config: Mapping[str, Any], key: str) -> bool:
    section = key.rpartition(".")[0]
    return not section or is_mapping(value_at(config, section))


_PLACES = frozenset(
    ("dir", "local_results_dir", "metrics_file", "path", "prices", "python", "results_dir", "root")
    + ("source_dir", "storage_path", "tokenizer", "with")
)
"""The last parts of keys that name files or folders."""


def place_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each text with a zero byte, and each path that no file system can have."""
    for key, value in flat(config):
        texts = [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]
        if any("\0" in text for text in texts):
            yield f"{key} has a zero byte: {value!r:.60}"
        elif isinstance(value, str) and key.rpartition(".")[2] in _PLACES and "://" not in value:
            try:
                Path(value).expanduser().stat()
            except RuntimeError:
                yield f"{key}={value!r:.60}: there is no such user"
            except OSError as error:  # the path need not exist, here or at all
                if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                    yield f"{key}={value!r:.60}: {error.strerror}"


def axis_value_errors(axes: Axes) -> Iterator[str]:
    """Yield a line for every value on an axis that its key cannot have; null stands for a missing value."""
    for axis, values in axes.items():
        kind = AXES.get(axis) or SCHEMA.get(axis)
        if kind and not isinstance(values, str):
            for value in values:
                several = values_in(value, every=axis == "seed") if isinstance(value, str) and axis in AXES else value
                hint = f": write 'sweep.axes.{axis}=[{several}]'" if several != value else ""
                for line in kind.errors(axis, value) if value is not None else ():
                    yield line.partition(": write ")[0] + hint if hint else line


def key_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every key that the schema does not have."""
    known = [*OWN_SECTIONS, "budget", *(folder.name for folder in config_dir().iterdir() if folder.is_dir())]
    for section in config:
        # The user's own trainable may have any section, so that only a likely misspelling is an error.
        if section not in known and (meant := nearest(str(section), known)):
            yield f"there is no section {section!r}{meant}"
    for section, keys in _SECTIONS.items():
        given = value_at(config, section)
        for key in given if isinstance(given, Mapping) else ():
            if key not in keys:
                yield f"there is no key {section}.{key}{nearest(str(key), keys)}"


_GROUPS = ("model", "data", "optimizer", "schedule")
_OF_COUNTS = ("model", "data")
"""Groups in which whole numbers count things (channels, images, pixels); elsewhere they may be rates."""

BOUNDS: Mapping[str, Number] = {
    **dict.fromkeys(("optimizer.momentum", "optimizer.betas", "optimizer.rho"), Number(at_least=0, below=1)),
    **dict.fromkeys(("optimizer.eps", "optimizer.weight_decay"), Number(at_least=0)),
    **dict.fromkeys(("optimizer.trust_coefficient", "schedule.gamma"), Number(above=0)),
    **dict.fromkeys(("schedule.initial", "schedule.final"), Number(at_least=0)),
    **dict.fromkeys(("schedule.warmup", "schedule.decay", "model.dropout"), Number(at_least=0, below=1)),
}
"""Ranges of numbers (and of each in a list) of shipped optimizers and schedules; outside them training cannot work."""


def group_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value of another type or size than in the shipped model, data set, optimizer or schedule.

    The user's own models and optimizers are not checked: what they accept is not known here.
    """
    for key, value in flat(trainable_part(config)):
        if is_not_finite(value) and key not in SCHEMA:
            yield f"{key} must be a finite number, not {value!r}"
    for group in _GROUPS:
        given = config.get(group)
        if not isinstance(given, Mapping):
            continue
        # The shipped file declares the types of its keys by their values.
        shipped = _shipped(group, str(given.get("name")))
        for key, value in ((key, value) for key, value in flat(given) if value is not None):
            if kind := _wanted(shipped, key, value, counts=group in _OF_COUNTS):
                yield f"{group}.{key} must be {kind}, not {value!r}"
            elif key in shipped and (bounds := BOUNDS.get(f"{group}.{key}")):
                values = value if isinstance(value, list) else [value]
                if not all(map(bounds.admits, values)):
                    form = "a list of numbers, each " if isinstance(value, list) else ""
                    yield f"{group}.{key} must be {form}{bounds.form}, not {value!r}"
        if shipped.get("nesterov") is False and given.get("nesterov") is True and given.get("momentum") == 0:
            yield f"{group}.nesterov=true needs a momentum, but {group}.momentum=0"
        for key in ("root", "path", "tokenizer") if group == "data" else ():
            if not isinstance(place := given.get(key), str | None):
                yield f"data.{key} must be text, not {place!r}"


def _wanted(shipped: Mapping[str, Any], key: str, given: Any, *, counts: bool) -> str:
    """Return the expected kind of value; empty if the given one may be right."""
    inside = [name.removeprefix(f"{key}.").partition(".")[0] for name in shipped if name.startswith(f"{key}.")]
    default = shipped.get(key)
    if inside:
        return f"a section with {', '.join(dict.fromkeys(inside))}"
    if isinstance(default, bool):
        return "" if isinstance(given, bool) else "true or false"
    if isinstance(default, list):
        return "" if isinstance(given, list) else "a list"
    if counts and is_whole(default):
        # Padding and the like may be 0, and their shipped value says so.
        least = min(default, 1)
        return "" if is_whole(given) and given >= least else f"a whole number of at least {least}"
    return "a number" if is_number(default) and not is_number(given) else ""


def at_default(identifying: Mapping[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Yield the dotted keys, of sections of trials (`config`) and own keys, whose value is that of the shipped file."""
    place = folder or config_dir()
    defaults = {key: value for key, value in flat(_of_file(place / "config.yaml")) if not key.startswith("budget.")}
    sections = identifying["config"]
    for group in (*_GROUPS, "trainable", "budget"):
        section = sections.get(group)
        if isinstance(section, Mapping):
            shipped = _defaults(group, section, place)
            defaults |= {f"config.{group}.{key}": value for key, value in shipped.items()}
    for key, value in flat(identifying):
        # A name tells which file has the defaults of the others.
        if key not in defaults or key.rpartition(".")[2] in ("name", "_target_"):
            continue
        # True equals 1, but is another value of a key.
        if defaults[key] == value and isinstance(defaults[key], bool) == isinstance(value, bool):
            yield key


def _defaults(group: str, section: Mapping[str, Any], place: Path) -> Mapping[str, Any]:
    """Return {dotted key: default} of a section, from the shipped file that the section's name or code belongs to."""
    if group == "budget":
        return dict(flat(_of_file(place / "config.yaml")["budget"]))
    if group != "trainable":
        return _shipped(group, str(section.get("name")), place)
    # Code of the user's own has the keys of `trainable=function`.
    files_by_code = {_of_file(file).get("_target_"): file for file in sorted((place / group).glob("*.yaml"))}
    file = files_by_code.get(section.get("_target_"), place / group / "function.yaml")
    values = dict(_of_file(file))
    # Read here and not composed by Hydra, which takes far longer.
    bases = [base for base in values.pop("defaults", ()) if base != "_self_"]
    inherited = [dict(flat(_of_file(place / group / f"{base}.yaml"))) for base in bases]
    return {key: value for level in (*inherited, dict(flat(values))) for key, value in level.items()}


def options_with(key: str) -> list[str]:
    """Return the shipped choices of a key's group whose files set the key: those of `model.dropout`."""
    group, _, name = key.partition(".")
    files_of_group = sorted((config_dir() / group).glob("*.yaml"))
    return [file.stem for file in files_of_group if name in dict(flat(_of_file(file)))]


def keys_of_groups() -> dict[str, list[str]]:
    """Return {last part: dotted keys} of all shipped choices of groups."""
    keys: dict[str, list[str]] = {}
    for file in sorted(file for group in _GROUPS for file in (config_dir() / group).glob("*.yaml")):
        for key, _ in flat(_of_file(file)):
            dotted, name = f"{file.parent.name}.{key}", key.rpartition(".")[2]
            if dotted not in keys.setdefault(name, []):
                keys[name].append(dotted)
    return keys


def _shipped(group: str, name: str, place: Path | None = None) -> Mapping[str, Any]:
    """Return {dotted key: value} of the shipped file with this name; empty if there is none."""
    file = (place or config_dir()) / group / f"{name}.yaml"
    return dict(flat(_of_file(file))) if name.isidentifier() and file.is_file() else {}


@functools.cache
def _of_file(file: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = files.load(file.read_text(encoding="utf-8"))
    return content
