"""Finds the overrides of a command line that do not compose, and the config of the others.

Hydra reports only the first wrong override, and offers nothing. Here each is tried, on one composition of the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import Any, cast

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from orchestrator.config.compose import WRONG, parsed_axes
from orchestrator.config.hydra_private import apply_override, error_line
from orchestrator.config.key_checks import (
    OF_GROUPS,
    axis_value_errors,
    group_errors,
    is_named,
    structure_errors,
    text_errors,
    unread_keys,
    value_errors,
)
from orchestrator.config.overrides import is_search_path, key_of, rewritten
from orchestrator.config.schema import SCHEMA, may_be_axis, value_at
from orchestrator.config.search_path import Groups, primary
from orchestrator.config.suggestions import (
    instead_of_key,
    left_out,
    no_choice,
    suggested_in,
)
from orchestrator.config.synonyms import BLANK, Replacement, Surroundings, Typed
from orchestrator.config.wrong_overrides import ALONE, WrongOverride, no_key
from orchestrator.config.yaml_private import resolved
from sweeps.axes import flat
from sweeps.errors import ConfigError, close_to, nearest
from sweeps.sweep import STANDARD_AXES


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, and `composed` is their config if it could be composed."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        self._groups = groups
        self.composed: DictConfig | None = None
        self._unfit: dict[str, str] = {}  # the explanation of each override that does not fit
        # Choices in place of wrong ones in the file that an override chooses.
        self._stand_ins: dict[str, list[str]] = {}
        with suppress(*WRONG):  # the primary config cannot be read, and overrides are not to blame
            self._try(overrides)
        # In the order of the command line, whatever the order in which they were tried.
        told = [override for override in overrides if override in self._unfit]
        # Of several words (`describe trial 12ab`) those that say nothing by themselves belong to another one.
        words = [override for override in told if "=" not in override and not self._unfit[override].endswith(ALONE)]
        lines = [self._unfit[word] for word in told if not (words and self._unfit[word].endswith(ALONE))]
        super().__init__(lines or [error_line(error)])
        fitting = [override for override in overrides if override not in self._unfit or override in self._stand_ins]
        self.fitting = (*fitting, *chain.from_iterable(self._stand_ins.values()))
        self.corrected = [word for override in overrides for word in self._meant(override)]
        self.composed = self.composed if self._unfit else None

    def is_due_to_them(self, message: str) -> bool:
        """Return whether an error in the rest may be a consequence of these overrides missing."""
        wrong_keys = [key_of(one) for unfit in self._unfit for one in self._stand_ins.get(unfit, [unfit])]
        names = [key.rpartition(".")[2] for key in wrong_keys]
        wrong = message.partition(": write ")[0]
        return any(re.search(rf"\b{re.escape(name)}\b", wrong) for name in names)

    def _meant(self, override: str) -> Sequence[str]:
        """Return the override, or what its explanation suggests first instead of it; empty if it suggests nothing."""
        if override not in self._unfit:
            return [override]
        return suggested_in(self._unfit[override])

    def _try(self, overrides: Sequence[str]) -> None:
        """Compose the config of the overrides that fit, and explain the others."""
        # Groups decide which keys exist, so all groups are chosen before any key is set.
        choices = [override for override in overrides if _is_choice(override, self._groups)]
        fitting = choices
        try:
            config = _composed(choices)
        except WRONG:
            config = _composed([])
            fitting = []
            # The search path comes first, because it determines which groups exist.
            for override in sorted(choices, key=lambda choice: not is_search_path(choice)):
                try:
                    config = self._with_stand_ins(fitting, override)
                    fitting += [override, *self._stand_ins.get(override, ())]
                except WRONG as error:
                    before = _Composed(config, fitting, self._groups)
                    self._unfit[override] = WrongOverride(override=override, error=error, config=before).explanation()
        others = [override for override in overrides if override not in choices]
        self._set(others, config, _Composed(config, fitting, self._groups))

    def _with_stand_ins(self, fitting: Sequence[str], override: str) -> DictConfig:
        """Return the config of a file that is chosen; choices in it that do not exist are explained, and replaced."""
        lines: list[str] = []
        stand_ins: list[str] = []
        while True:
            try:
                config, texts = _with_sections([*fitting, override, *stand_ins])
            except WRONG as error:
                missing = re.search(r"Could not find '(.+)/([^/']+)'", str(error))
                group, choice = (missing[1], missing[2]) if missing else ("", "")
                options = self._groups.options(group) if group in self._groups.names else ()
                if not options or group in (key_of(override), *map(key_of, stand_ins)):
                    raise
                lines.append(f"{override}: {no_choice(group, choice, options)}")
                stand_ins.append(f"{group}={[*close_to(choice, options), *options][0]}")
                continue
            similar = {group: close_to(text, self._groups.options(group)) for group, text in texts.items()}
            lines += [f"{override}: {line}" for line in text_errors(texts, similar) if line not in str(self._unfit)]
            if lines:
                self._unfit[override], self._stand_ins[override] = "\n".join(lines), stand_ins
            return config

    def _set(self, overrides: Sequence[str], config: DictConfig, before: _Composed) -> None:
        """Set these keys in the config, and explain those that do not fit to what was there `before` any was set."""
        self.composed = config.copy()
        fitting: list[str] = []
        errors: dict[str, Exception] = {}
        for override in overrides:
            # Hydra looks up the key before it sets it, so that a wrong key changes nothing.
            try:
                apply_override(override, self.composed)
                fitting.append(override)
            except WRONG as error:
                errors[override] = error
        # A cell's label is explained by the axes of the whole command line.
        before.take_axes(self.composed)
        for override, problem in errors.items():
            self._unfit[override] = WrongOverride(override=override, error=problem, config=before).explanation()
        try:
            resolved(self.composed)
        except WRONG as error:
            # A copy takes as long as setting many keys, so that a value without meaning is found by halving.
            middle = len(fitting) // 2
            if middle == 0:
                self.composed = config
                self._unfit[fitting[0]] = WrongOverride(override=fitting[0], error=error, config=before).explanation()
                return
            self._set(fitting[:middle], config, before)
            self._set(fitting[middle:], self.composed, before)


class _Composed(Surroundings):
    """A config that was composed, its keys, and the trial of lines that may be suggested for it."""

    def __init__(self, config: DictConfig, choices: Sequence[str], groups: Groups, unread: Sequence[str] = ()) -> None:
        """`choices` are the overrides of groups that it was composed with; `unread` keys count as absent."""
        self._config, self._choices, self._groups = config, choices, groups
        values = cast(dict[str, Any], OmegaConf.to_container(config))
        self.keys = [key for key in dotted_keys(values) if not is_named(key, unread)]
        self.groups = groups.names
        self.names = [*self.keys, *groups.names]
        self.take_axes(config)

    def take_axes(self, config: DictConfig) -> None:
        """Take the axes from another config, if it has any."""
        axes = value_at(cast(dict[str, Any], OmegaConf.to_container(config)), "sweep.axes")
        if isinstance(axes, Mapping):
            self.axes = dict(flat(axes))

    def options(self, group: str) -> Sequence[str]:
        """Return the choices in a group, also in one inside a folder; none for any other key."""
        return self._groups.options(group) if group in self._groups.names or "/" in group else ()

    @cached_property
    def _errors(self) -> set[str]:
        return set(_errors_of(self._config, self._groups))

    def fits(self, line: str) -> bool:
        """Return whether a line works as typed into a shell, or has a value still to be filled in."""
        if BLANK.search(line):
            return True
        try:
            overrides = rewritten(shlex.split(re.sub(r" \(.*", "", line)))
            choices = [override for override in overrides if _is_choice(override, self._groups)]
            config = _composed([*self._choices, *choices]) if choices else self._config.copy()
            for override in overrides:
                if override not in choices:
                    apply_override(override, config)
            return self._errors.issuperset(_errors_of(config, self._groups))
        except WRONG:
            return False


def _errors_of(config: DictConfig, groups: Groups) -> Iterator[str]:
    """Yield the errors in the names and values of a config; no trial is made. Raises the errors in WRONG."""
    values = resolved(config)
    if errors := list(structure_errors(values)):  # nothing else can be read
        yield from errors
        return
    axes = parsed_axes(values["sweep"]["axes"])
    yield from (*value_errors(values, SCHEMA), *group_errors(values), *unread_keys(values), *axis_value_errors(axes))
    yield from (axis for axis in axes if axis not in (*STANDARD_AXES, *groups.names, *dotted_keys(values)))


def _is_choice(override: str, groups: Groups) -> bool:
    """Return whether an override counts while Hydra reads files, or is for Hydra's own section."""
    key = key_of(override)
    return key in groups.names or "/" in key or "@" in key or key.startswith("hydra.")


def _composed(overrides: Sequence[str]) -> DictConfig:
    """Return the composed config. Raises the errors in WRONG, also if an interpolation in it cannot be resolved."""
    config = compose(primary(), list(overrides))
    resolved(config)
    return config


def _with_sections(overrides: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """Return the composed config, with default sections where files have a text; and these texts. Raises WRONG's."""
    config = compose(primary(), list(overrides))
    texts = {group: config[group] for group in OF_GROUPS if isinstance(config.get(group), str)}
    if texts:
        usual = compose(primary(), [])
        for group in texts:
            config[group] = usual[group]
    resolved(config)
    return config, texts


def unread_errors(keys: Sequence[str], config: DictConfig, overrides: Sequence[str], groups: Groups) -> list[str]:
    """Return a line for each of these keys, which nothing reads, as for one that does not exist."""
    typed = {key_of(override): override for override in overrides}
    choices = [override for override in overrides if _is_choice(override, groups)]
    composed = _Composed(config, choices, groups, keys)
    values = cast(dict[str, Any], OmegaConf.to_container(config))
    lines = []
    for key in keys:
        value = value_at(values, key)
        if isinstance(value, Mapping):
            lines.append(f"there is no section {key!r}{nearest(key, composed.names)}")
            continue
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        lines.append(no_key(typed.get(key, f"{key}={shown}"), Typed(key, shown), composed))
    return lines


def axis_error(axis: str, values: Any, config: DictConfig, overrides: Sequence[str], groups: Groups) -> str:
    """Return why an axis does not fit: it is neither a key of the config nor a group."""
    # Without this axis, whose error would be that of every suggestion.
    others = config.copy()
    # A file may write the parts of its name below one another.
    others.sweep.axes = {**dict(flat(cast(dict[str, Any], OmegaConf.to_container(config.sweep.axes)))), axis: None}
    composed = _Composed(others, [override for override in overrides if _is_choice(override, groups)], groups)
    listed = f"[{','.join(map(str, values))}]" if isinstance(values, list) else str(values)
    if axis.endswith("-") and (instead := left_out(listed, composed.axes, axis.removesuffix("-"))):
        return f"axis {axis!r} does not exist: {instead}"
    typed = Typed(f"sweep.axes.{axis}", listed)
    names = [name for name in composed.names if not name.startswith("sweep.")]
    similar = [Replacement(name) for name in names if name.endswith(f".{axis}") and may_be_axis(name)]
    instead = instead_of_key(typed, composed)
    instead = instead or " or ".join(f"write {name.override(typed)}" for name in similar[:2])
    hint = f": {instead}" if instead else nearest(axis, [*names, *STANDARD_AXES])
    return f"axis {axis!r} is not a config key or group{hint}"


def dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a config, including sections."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")
