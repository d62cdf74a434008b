"""The keys of a config, by `orchestrator.config.settings` and the shipped files: kinds, sections, defaults, choices."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestrator.config.search_path import config_dir
from orchestrator.config.settings import Settings
from orchestrator.config.value_types import KeyKind
from orchestrator.store import files
from sweeps.axes import flat
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


def may_be_axis(key: str) -> bool:
    """Return whether a key or group can change a trial, so that its values can be an axis."""
    section = key.partition(".")[0]
    return section not in OWN_SECTIONS or section in IDENTIFYING


def trainable_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a config that belong to the trainable."""
    return {key: value for key, value in config.items() if key not in OWN_SECTIONS}


SECTIONS: dict[str, dict[str, None]] = {}  # the names of the keys of each section, in their order
for _key in SCHEMA:
    while "." in _key:
        _key, _, _name = _key.rpartition(".")
        SECTIONS.setdefault(_key, {})[_name] = None


GROUPS = ("model", "data", "optimizer", "schedule")


def at_default(identifying: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys, of sections of trials (`config`) and own keys, whose value is that of the shipped file."""
    defaults = {
        key: value for key, value in flat(_of_file(config_dir() / "config.yaml")) if not key.startswith("budget.")
    }
    sections = identifying["config"]
    for group in (*GROUPS, "trainable", "budget"):
        section = sections.get(group)
        if isinstance(section, Mapping):
            shipped = _defaults(group, section)
            defaults |= {f"config.{group}.{key}": value for key, value in shipped.items()}
    for key, value in flat(identifying):
        # A name tells which file has the defaults of the others.
        if key not in defaults or key.rpartition(".")[2] in ("name", "_target_"):
            continue
        # True equals 1, but is another value of a key.
        if defaults[key] == value and isinstance(defaults[key], bool) == isinstance(value, bool):
            yield key


def _defaults(group: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return {dotted key: default} of a section, from the shipped file that the section's name or code belongs to."""
    if group == "budget":
        return dict(flat(_of_file(config_dir() / "config.yaml")["budget"]))
    if group != "trainable":
        return shipped_values(group, str(section.get("name")))
    # Code of the user's own has the keys of `trainable=function`.
    file = _trainables().get(section.get("_target_"), config_dir() / group / "function.yaml")
    values = dict(_of_file(file))
    # Read here and not composed by Hydra, which takes far longer.
    bases = [base for base in values.pop("defaults", ()) if base != "_self_"]
    inherited = [dict(flat(_of_file(config_dir() / group / f"{base}.yaml"))) for base in bases]
    return {key: value for level in (*inherited, dict(flat(values))) for key, value in level.items()}


def _trainables() -> dict[Any, Path]:
    """Return the file of each shipped trainable by the path of its code; that of `trainable=function` has none."""
    return {_of_file(file).get("_target_"): file for file in sorted((config_dir() / "trainable").glob("*.yaml"))}


def shipped_part(config: Mapping[str, Any], section: str) -> Mapping[str, Any] | None:
    """Return {dotted key: default} of a section of trials; None if code of the user's own reads it, or none does."""
    given = config[section]
    if section != "trainable":
        return shipped_values(section, str(given.get("name"))) or None
    file = _trainables().get(given.get("_target_"))
    # The file of `trainable=noop`, which stands in for any trainable, has no check.
    return _defaults(section, given) if file and "_check_" in _of_file(file) else None


def options_with(key: str) -> list[str]:
    """Return the shipped choices of a key's group whose files set the key: those of `model.dropout`."""
    group, _, name = key.partition(".")
    files_of_group = sorted((config_dir() / group).glob("*.yaml"))
    return [file.stem for file in files_of_group if name in dict(flat(_of_file(file)))]


def keys_of_groups() -> dict[str, list[str]]:
    """Return {last part: dotted keys} of all shipped choices of groups."""
    keys: dict[str, list[str]] = {}
    for file in sorted(file for group in GROUPS for file in (config_dir() / group).glob("*.yaml")):
        for key, _ in flat(_of_file(file)):
            dotted, name = f"{file.parent.name}.{key}", key.rpartition(".")[2]
            if dotted not in keys.setdefault(name, []):
                keys[name].append(dotted)
    return keys


def shipped_values(group: str, name: str) -> Mapping[str, Any]:
    """Return {dotted key: value} of the shipped file with this name; empty if there is none."""
    file = config_dir() / group / f"{name}.yaml"
    return dict(flat(_of_file(file))) if name.isidentifier() and file.is_file() else {}


@functools.cache
def _of_file(file: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = files.load(file.read_text(encoding="utf-8"))
    return content
