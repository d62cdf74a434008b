"""Checks of single keys: names, values, sections and lists, with what people mean by a wrong one."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.schema import (
    GROUPS,
    OWN_SECTIONS,
    SCHEMA,
    SECTIONS,
    shipped_part,
    shipped_values,
    trainable_part,
    value_at,
)
from orchestrator.config.settings import AXES
from orchestrator.config.suggestions import as_baseline, explained, instead_of_section, left_out
from orchestrator.config.value_notations import values_in
from orchestrator.config.value_types import FLAG, KeyKind, Number, Structure, is_mapping
from sweeps.axes import Axes, flat, is_not_finite, is_number, is_whole
from sweeps.errors import nearest


def _errors(kind: KeyKind, key: str, value: Any) -> Iterator[str]:
    """Yield a line if the key may not have this value."""
    yield from map(explained, kind.errors(key, value))


OF_GROUPS = ("trainable", "model", "data", "optimizer", "schedule")
"""Sections that are chosen as a whole."""


def text_errors(choices: Mapping[str, str], similar: Mapping[str, list[str]] | None = None) -> Iterator[str]:
    """Yield a line for each of these sections, in place of which a file has a text; `similar` choices come first."""
    for group, choice in choices.items():
        chosen = [*(similar or {}).get(group, ()), choice][0]
        yield f"{group} is not {choice!r}: a file chooses it by defaults: [override /{group}: {chosen}]"


_CELLS = {"sweep.exclude": left_out, "sweep.baseline": as_baseline}
"""Functions that explain a label in place of cells, by key."""


def structure_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every value that should be a section or a list and is not; the rest cannot be read then."""
    for section, keys in SECTIONS.items():
        given = value_at(config, section)
        if not is_mapping(given) and (section in config or section != "budget") and _is_in_section(config, section):
            instead = instead_of_section(section, str(given))
            hint = f": {instead}" if instead else ""
            shown = "null" if given is None else repr(given)
            yield f"{section} must be a section with {', '.join(keys)}, not {shown}{hint}"
    yield from text_errors({group: config[group] for group in OF_GROUPS if isinstance(config.get(group), str)})
    for key, kind in SCHEMA.items():
        if not isinstance(kind, Structure) or not _is_in_section(config, key):
            continue
        for line in _errors(kind, key, value_at(config, key)):
            axes: Any = value_at(config, "sweep.axes") if key in _CELLS else None
            instead = _CELLS[key](str(value_at(config, key)), dict(flat(axes))) if is_mapping(axes) else ""
            yield f"{line}: {instead}" if instead else line
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
            yield from _errors(kind, key, value_at(config, key))


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
                for line in _errors(kind, axis, value) if value is not None else ():
                    yield line.partition(": write ")[0] + hint if hint else line


_READ_ANYWAY = ("_check_", "_ignores_", "_remarks_", "only_timed", "optimizer", "strategy")
"""Keys that every trainable may have, whether its shipped file has them or not."""

_WITH_ANY_KEYS = ("env", "metrics", "probe", "repetition")
"""Sections of a trainable whose keys are the user's own."""


def unread_keys(config: Mapping[str, Any], *, of_trials: bool = True) -> Iterator[str]:
    """Yield each dotted key that nothing reads, unless an interpolation does; code of the user's own may read any."""
    known = [*OWN_SECTIONS, "budget", "trainable", *GROUPS]
    for section, keys in SECTIONS.items():
        given = value_at(config, section)
        yield from (f"{section}.{key}" for key in (given if isinstance(given, Mapping) else ()) if key not in keys)
    if not of_trials:
        return
    others = [str(section) for section in config if section not in known]
    shipped = shipped_part(config, "trainable") if isinstance(config.get("trainable"), Mapping) else None
    if shipped is None:
        # A likely misspelling is an error all the same.
        yield from (section for section in others if nearest(section, known))
        return
    trainable = config["trainable"]
    named = re.findall(r"{\s*([^{}]+?)\s*}", str([trainable.get(key) for key in ("argv", "env", "metrics_file")]))
    keys_of_trials = [f"trainable.{key}" for key in _unknown(trainable, {**shipped, **dict.fromkeys(_READ_ANYWAY)})]
    # An optimizer of torch takes more keys than its file has, and refuses the rest.
    for group in ("model", "data", "schedule"):
        given = config.get(group)
        if isinstance(given, Mapping) and (shipped := shipped_part(config, group)) is not None:
            keys_of_trials += [f"{group}.{key}" for key in _unknown(given, shipped)]
    for key in [*others, *keys_of_trials]:
        if not is_named(key, named):
            yield key


def _unknown(section: Mapping[str, Any], shipped: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys in a section that are neither keys of the shipped one nor below one without content."""
    for key, _ in flat(section):
        parts = key.split(".")
        above = [".".join(parts[: length + 1]) for length in range(len(parts))]
        is_section = any(name.startswith(f"{key}.") for name in shipped)
        if parts[0] not in _WITH_ANY_KEYS and not is_section and not any(name in shipped for name in above):
            yield key


def is_named(key: str, names: Iterable[str]) -> bool:
    """Return whether one of these names is the key, a section of it, a key in it, or relative to its section."""
    inside, places = f".{key}.", [f".{name}." for name in names]
    return any(inside.startswith(place) or inside.endswith(place) or place.startswith(inside) for place in places)


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
    is_section = isinstance(config.get("trainable"), Mapping)
    for key, default in (shipped_part(config, "trainable") or {}).items() if is_section else ():
        # A text would count as true. A trainable checks its other values itself.
        if isinstance(default, bool) and not isinstance(flag := value_at(config, f"trainable.{key}"), bool | None):
            yield from FLAG.errors(f"trainable.{key}", flag)
    for group in GROUPS:
        given = config.get(group)
        if not isinstance(given, Mapping):
            continue
        # The shipped file declares the types of its keys by their values.
        shipped = shipped_values(group, str(given.get("name")))
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
