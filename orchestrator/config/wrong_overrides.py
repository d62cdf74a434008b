"""Explanations of command lines that do not compose: one line for each wrong override, with what to write instead.

Hydra reports only the first wrong override, and offers nothing. Here each is tried, on one composition of the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from hydra import compose
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from orchestrator.config.compose import WRONG, parsed_axes
from orchestrator.config.habits import (
    BLANK,
    Known,
    Replacement,
    elsewhere,
    group_for,
    instead_of_choice,
    instead_of_key,
    instead_of_word,
    kept,
    left_out,
)
from orchestrator.config.hydra_private import apply_override, error_line, resolved
from orchestrator.config.key_checks import (
    axis_value_errors,
    group_errors,
    is_named,
    structure_errors,
    unread_keys,
    value_errors,
)
from orchestrator.config.kinds import values_in
from orchestrator.config.overrides import is_search_path, key_of, rewritten
from orchestrator.config.schema import OWN_SECTIONS, SCHEMA, keys_of_groups, may_be_axis, value_at
from orchestrator.config.search_path import Groups, primary
from sweeps.axes import Axes, flat
from sweeps.errors import ConfigError, close_to, nearest
from sweeps.rerun import form_errors
from sweeps.sweep import STANDARD_AXES

_SCRIPTS = (".py", ".sh")
_FILES_OF_CONFIGS = (".yaml", ".yml")
_KEEPS = ("only", "select", "filter", "include", "just", "cell", "cells")
_LEAVES_OUT = ("exclude", "excludes", "except", "without", "skip", "drop", "remove", "leave_out")
_MOST_LISTED = 8  # keys of a section, or choices of a group
_LONGEST_QUOTED = 200  # longer values are not repeated in a message
ALONE = "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"
_COMMAND = "to run a script of yours: -- python train.py --lr {lr}"


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, and `composed` is their config if it could be composed."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        self._groups = groups
        self.composed: DictConfig | None = None
        self._unfit: dict[str, str] = {}  # the explanation of each override that does not fit
        with suppress(*WRONG):  # the primary config cannot be read, and overrides are not to blame
            self._try(overrides)
        # In the order of the command line, whatever the order in which they were tried.
        told = [override for override in overrides if override in self._unfit]
        # Of several words (`describe trial 12ab`) those that say nothing by themselves belong to another one.
        words = [override for override in told if "=" not in override and not self._unfit[override].endswith(ALONE)]
        lines = [self._unfit[word] for word in told if not (words and self._unfit[word].endswith(ALONE))]
        super().__init__(lines or [error_line(error)])
        self.fitting = tuple(override for override in overrides if override not in self._unfit)
        self.composed = self.composed if self._unfit else None

    def is_due_to_them(self, message: str) -> bool:
        """Return whether an error in the rest may be a consequence of these overrides missing."""
        names = [key_of(override).rpartition(".")[2] for override in self._unfit]
        wrong = message.partition(": write ")[0]
        return any(re.search(rf"\b{re.escape(name)}\b", wrong) for name in names)

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
                    config = _composed([*fitting, override])
                    fitting.append(override)
                except WRONG as error:
                    before = _Composed(config, fitting, self._groups)
                    self._unfit[override] = _Wrong(override, error, before).explanation()
        others = [override for override in overrides if override not in choices]
        self._set(others, config, _Composed(config, fitting, self._groups))

    def _set(self, overrides: Sequence[str], config: DictConfig, before: _Composed) -> None:
        """Set these keys in the config, and explain those that do not fit to what was there `before` any was set."""
        self.composed = config.copy()
        fitting: list[str] = []
        for override in overrides:
            # Hydra looks up the key before it sets it, so that a wrong key changes nothing.
            try:
                apply_override(override, self.composed)
                fitting.append(override)
            except WRONG as error:
                self._unfit[override] = _Wrong(override, error, before).explanation()
        try:
            resolved(self.composed)
        except WRONG as error:
            # A copy takes as long as setting many keys, so that a value without meaning is found by halving.
            middle = len(fitting) // 2
            if middle == 0:
                self.composed = config
                self._unfit[fitting[0]] = _Wrong(fitting[0], error, before).explanation()
                return
            self._set(fitting[:middle], config, before)
            self._set(fitting[middle:], self.composed, before)


class _Composed:
    """A config that was composed, its keys, and the trial of lines that may be suggested for it."""

    def __init__(self, config: DictConfig, choices: Sequence[str], groups: Groups, unread: Sequence[str] = ()) -> None:
        """`choices` are the overrides of groups that it was composed with; `unread` keys count as absent."""
        self._config, self._choices, self.groups = config, choices, groups
        keys = dotted_keys(cast(dict[str, Any], OmegaConf.to_container(config)))
        self.keys = [key for key in keys if not is_named(key, unread)]

    @property
    def axes(self) -> Axes:
        """The axes with their values as the config has them."""
        return dict(flat(cast(dict[str, Any], OmegaConf.to_container(self._config.sweep.axes))))

    @cached_property
    def known(self) -> Known:
        """The names and the check that suggestions rely on."""
        return Known(names=[*self.keys, *self.groups.names], fits=self.fits)

    @cached_property
    def _errors(self) -> set[str]:
        return set(_errors_of(self._config, self.groups))

    def fits(self, line: str) -> bool:
        """Return whether a line works as typed into a shell, or has a value still to be filled in."""
        if BLANK.search(line):
            return True
        try:
            overrides = rewritten(shlex.split(re.sub(r" \(.*", "", line)))
            choices = [override for override in overrides if _is_choice(override, self.groups)]
            config = _composed([*self._choices, *choices]) if choices else self._config.copy()
            for override in overrides:
                if override not in choices:
                    apply_override(override, config)
            return self._errors.issuperset(_errors_of(config, self.groups))
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


def unread_errors(keys: Sequence[str], config: DictConfig, overrides: Sequence[str], groups: Groups) -> list[str]:
    """Return a line for each key that the config has and nothing reads, as for one that does not exist."""
    typed = {key_of(override): override for override in overrides}
    choices = [override for override in overrides if _is_choice(override, groups)]
    composed = _Composed(config, choices, groups, keys)
    values = cast(dict[str, Any], OmegaConf.to_container(config))
    lines = []
    for key in keys:
        value = value_at(values, key)
        if isinstance(value, Mapping):
            lines.append(f"there is no section {key!r}{nearest(key, composed.known.names)}")
            continue
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        lines.append(_no_key(typed.get(key, f"{key}={shown}"), key, shown, composed))
    return lines


def _no_key(override: str, key: str, value: str, config: _Composed) -> str:
    if len(value) > _LONGEST_QUOTED:
        override, value = f"{key}=…", "…"
    return f"{override!r}: there is no key {key!r}{_instead_of(key, value, config)}"


class _Wrong:
    """An override that does not fit to a config, and its explanation. Each method explains one error, or nothing."""

    def __init__(self, override: str, error: Exception, config: _Composed) -> None:
        self.override, self.error, self.config = override, error, config
        self.key, self.equals, self.value = override.lstrip("+~").partition("=")

    def explanation(self) -> str:
        """Return why the override does not fit, with a suggestion."""
        specific = self._no_override() or self._values_left_out() or self._choice() or self._no_such_key()
        return specific or self._values_in_other_notation() or self._unreadable()

    def _no_override(self) -> str:
        if not self.key:
            return f"{self.override!r} has no key: write KEY=VALUE without spaces"
        is_word = not self.equals and not self.override.startswith("~")
        return f"{self.override!r} is not KEY=VALUE{_word_without_key(self.override, self.config)}" if is_word else ""

    def _values_left_out(self) -> str:
        """Explain `lr_rule!=sqrt`, `~sweep.axes.lr_rule=sqrt`, `~sweep.axes.sqrt`, `sweep.exclude={lr_rule: sqrt}`."""
        if not (self.key == "sweep.exclude" or self.key.endswith("!") or self.override.startswith("~sweep.axes.")):
            return ""
        axis = "" if self.key == "sweep.exclude" else self.key.removeprefix("sweep.axes.").rstrip("!")
        before, _, last = axis.rpartition(".")
        instead = left_out(*((self.value, self.config.axes, axis) if self.value else (last, self.config.axes, before)))
        return instead and f"{self.override!r}: {instead}"

    def _choice(self) -> str:
        key, value, groups = self.key, self.value, self.config.groups
        options = groups.options(key) if key in groups.names or "/" in key else []
        if "Ambiguous value" in str(self.error) or ("," in value and {*value.split(",")} <= {*options}):
            if not (key in self.config.known.names or key.startswith("sweep.axes.")):
                return _no_key(self.override, key, f"[{value}]", self.config)
            return f"{self.override!r}: {_several_values(key, value, groups)}; with -m they are several sweeps"
        if key.startswith("sweep/") and not options:  # `scale=` is short for the group sweep/NAME
            return f"sweep={key.removeprefix('sweep/')} has no scales: remove scale={value}"
        if not options or value in options:
            return ""
        if value == "null" and key not in ("trainable", "sweep"):
            return f"{self.override!r}: to leave out a group, write ~{key}"
        written = f"scale={value}" if key.startswith("sweep/") else repr(self.override)
        return f"{written}: {_no_choice(key, value, options)}"

    def _no_such_key(self) -> str:
        if "Could not override" not in str(self.error):
            return ""
        if self.key in self.config.keys:  # a mapping that adds keys to this section
            names = [dotted.rpartition(".")[2] for dotted in self.config.keys if dotted.rpartition(".")[0] == self.key]
            return f"{self.override!r}: {self.key} takes no other keys than {', '.join(names)}"
        return _no_key(self.override, self.key, self.value, self.config)

    def _values_in_other_notation(self) -> str:
        """Explain a range or a list as other programs write it: `loguniform(1e-4,1e-1)`, `choice(1,2)`."""
        axis = re.fullmatch(r"\{([\w.]+):(.*)\}", self.value) if self.key == "sweep.axes" else None
        name, text = (f"sweep.axes.{axis[1]}", axis[2]) if axis else (self.key, self.value)
        values = values_in(text)
        if "(" not in text or text.startswith("range(") or values == text:
            return ""
        line = Replacement(name.removeprefix("sweep.axes.")).override("sweep.axes.", values)
        instead = instead_of_key(name, f"[{values}]", self.config.known)
        instead = instead or (f"write {line}" if self.config.fits(line) else "")
        return instead and f"{f'{name}={text}'!r}: {instead}"

    def _unreadable(self) -> str:
        if self.key == "rerun" and not self.value.startswith(("[", "{")):  # with a cell's label, `2×32 sqrt`
            return f"{self.override!r}: {next(form_errors(self.value), '')}"
        # Labels and environment variables are given by `++`, which the user has not typed.
        written = self.override.removeprefix("++")
        return f"{written!r}: {error_line(self.error)}{_quoting(written, self.error)}"


def _no_choice(group: str, value: str, options: Sequence[str]) -> str:
    """Return that a group has no such choice, with those that may be meant."""
    if instead := instead_of_choice(group, value):
        return f"there is no {group} {value!r}: {instead}"
    key = "scale" if group.startswith("sweep/") else group
    if close := close_to(value, options):
        return f"there is no {key} {value!r} (did you mean {' or '.join(f'{key}={option}' for option in close)}?)"
    shown = [option for option in options if not option.startswith("published/")]
    return f"there is no {key} {value!r}; valid: {', '.join(shown)}{_own_code(group, value)}"


def _instead_of(key: str, value: str, config: _Composed) -> str:
    """Return a hint for a key that does not exist: what to write, similar keys, and whether it can be added."""
    section, _, name = key.rpartition(".")
    known, groups = config.known.names, config.groups
    own = f"; for code of yours that reads it: +{key}={value}"
    own = own if config.fits(shlex.quote(f"+{key}={value}")) else ""
    if (plain := key.lower().replace("-", "_")) in known:
        return f": write {Replacement(plain).override(key, value)}"
    if name in _KEEPS and (instead := kept(value, config.axes)):
        return f": {instead}"
    if name in _LEAVES_OUT and (instead := left_out(value, config.axes)):
        return f": {instead}"
    if value.endswith(_FILES_OF_CONFIGS) and section == "":
        return f": {_own_file(value)}"
    if instead := instead_of_key(key, value, config.known):
        return f": {instead}{own if key.startswith('trainable.') else ''}"
    if (group := group_for(key)) and not value.startswith("["):  # several choices are an axis
        return f": {_no_choice(group, value, groups.options(group))}"
    # A name without its section comes first, then a misspelling, then a key of another choice of a group.
    names = {dotted.rpartition(".")[2]: dotted for dotted in known if dotted.rpartition(".")[0] == section}
    similar = [dotted for dotted in known if dotted.rpartition(".")[2] == name]
    similar = similar or [names[near] for near in close_to(name, names)]
    if not similar and (others := keys_of_groups().get(name)):
        return ": " + "; ".join(filter(None, (elsewhere(dotted, value, config.known) for dotted in others[:2])))
    lines = [Replacement(dotted).override(key, value) for dotted in similar or _alike(key, known, groups)]
    if fitting := [line for line in lines if config.fits(line)]:
        # `modle=mlp` is no mode.
        complete = [line for line in fitting if not BLANK.search(line)]
        return f" (did you mean {' or '.join((complete or fitting)[:3])}?)"
    # Own sections take no further keys, and a section that is misspelt should not be added.
    top = key.partition(".")[0]
    if section in known:
        return f"; {section} has {', '.join(names)}" if len(names) <= _MOST_LISTED else ""
    close = nearest(key, known)
    command = _COMMAND.replace("train.py", value) if value.endswith(_SCRIPTS) else _COMMAND
    return close if close or top in OWN_SECTIONS else f" nor one known to mean it (--help lists all); {command}{own}"


def _alike(key: str, known: Collection[str], groups: Groups) -> list[str]:
    """Return the keys with all words of a key or, if it has no section, with a similar last part."""
    # A section takes no value.
    sections = {dotted.rpartition(".")[0] for dotted in known} - {*groups.names}
    last_parts = {dotted: dotted.rpartition(".")[2] for dotted in known if dotted not in sections}
    words = {*re.split(r"[._]", key)}
    if same_words := [dotted for dotted in last_parts if words <= {*re.split(r"[._]", dotted)}]:
        return same_words
    # Of three letters, too many names are similar.
    if "." in key or len(key) <= 3:
        return []
    near = get_close_matches(key, {*last_parts.values()}, cutoff=0.8)
    return [dotted for dotted, last_part in last_parts.items() if last_part in near]


def _quoting(override: str, error: Exception) -> str:
    """Return a hint on quoting for a value that Hydra's grammar took apart."""
    key, _, value = override.partition("=")
    if key != key.rstrip() or value != value.lstrip():
        return "; write no spaces around ="
    # The shell removes one pair of quotes, and Hydra's grammar the other.
    mark = "'" if "'" not in value else r"\""
    quoted = f'quote it twice: "{key}={mark}{value}{mark}"'
    if "requires --multirun" in str(error):
        return f"; for the values of an axis {quoted}"
    if value.startswith("[") and not value.endswith("]"):
        return f"; write the list in quotes, without spaces: '{key}={value.rstrip(',')}]'"
    taken_apart = isinstance(error, OverrideParseException) and value[:1] not in ("'", '"', "[", "{")
    return f"; if this is one text, {quoted}" if taken_apart else ""


def dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a config, including sections."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def _several_values(key: str, values: str, groups: Groups) -> str:
    """Return how to write several values: as an axis, if the key can be one."""
    if key.startswith("sweep.axes."):
        return f"an axis takes a list in brackets, '{key}=[{values}]'"
    if may_be_axis(key):
        return f"an axis takes a list in brackets, 'sweep.axes.{key}=[{values}]'"
    return "only one can be chosen" if key in groups.names else f"write a list in brackets, '{key}=[{values}]'"


def _word_without_key(word: str, config: _Composed) -> str:
    """Return a hint for a value without a key, or a key without a value."""
    keys, groups = config.keys, config.groups
    if choices := [f"{group}={word}" for group in sorted(groups.names) if word in groups.options(group)]:
        return f" (did you mean {' or '.join(choices)}?)"
    if word.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    if word.endswith(_FILES_OF_CONFIGS):
        return f": {_own_file(word)}"
    if options := groups.options(word) if word in groups.names else []:
        return f": write {word}=NAME, one of {', '.join(options)}"
    if instead := instead_of_word(word, config.known):
        return f": {instead}"
    if word in keys:
        return f": write {word}=VALUE, as conf/config.yaml describes it"
    return ALONE


def _own_file(file: str) -> str:
    """Return how to run a sweep file of the user's."""
    path = Path(file)
    if path.parent.name == "sweep":
        return f"write -cd {path.parent.parent} sweep={path.stem}"
    return (
        f"sweep files are in a folder `sweep`: mkdir -p my/sweep && cp {file} my/sweep; write -cd my sweep={path.stem}"
    )


def _own_code(group: str, value: str) -> str:
    """Return a hint if the value looks like code or a sweep file in place of a choice; else empty."""
    if not value:
        return ""
    if group == "trainable" and value.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    if ":" in value:
        key = "trainable=function trainable._target_" if group == "trainable" else f"{group}.name"
        return f"; to use code of yours: {key}={value} 'trusted_modules=[{re.split('[.:]', value)[0]}]'"
    if group == "data":
        return "; for your own images in a folder for each class: data=imagefolder data.path=FOLDER"
    if group == "model" and value.startswith("timm"):
        name = value.partition("/")[2] or "NAME"
        return f"; or write model.name=timm:create_model +model.model_name={name} 'trusted_modules=[timm]'"
    if group == "model" and "/" in value:  # a name of Hugging Face's hub
        return "; for a downloaded model of Hugging Face: model=hf model.path=FOLDER"
    if group != "sweep":
        return ""
    if value.endswith(_FILES_OF_CONFIGS):
        return f"; {_own_file(value)}"
    if value.startswith("published/"):
        return "; the published experiments are in a clone of the repository, not in the installed package"
    return f"; to use your own FOLDER/sweep/{value}.yaml, add -cd FOLDER"


def axis_error(axis: str, values: Any, config: DictConfig, overrides: Sequence[str], groups: Groups) -> str:
    """Return why an axis does not fit: it is neither a key of the config nor a group."""
    # Without this axis, whose error would be that of every suggestion.
    others = config.copy()
    if axis in others.sweep.axes:
        others.sweep.axes[axis] = None
    else:  # a file may write its parts below one another
        OmegaConf.update(others, f"sweep.axes.{axis}", None)
    composed = _Composed(others, [override for override in overrides if _is_choice(override, groups)], groups)
    listed = f"[{','.join(map(str, values))}]" if isinstance(values, list) else str(values)
    if axis.endswith("-") and (instead := left_out(listed, composed.axes, axis.removesuffix("-"))):
        return f"axis {axis!r} does not exist: {instead}"
    names = [name for name in composed.known.names if not name.startswith("sweep.")]
    similar = [Replacement(name) for name in names if name.endswith(f".{axis}") and may_be_axis(name)]
    instead = instead_of_key(f"sweep.axes.{axis}", listed, composed.known)
    instead = instead or " or ".join(f"write {name.override(f'sweep.axes.{axis}', listed)}" for name in similar[:2])
    hint = f": {instead}" if instead else nearest(axis, [*names, *STANDARD_AXES])
    return f"axis {axis!r} is not a config key or group{hint}"
