"""Explanations of command lines that do not compose: one line for each wrong override, with what to write instead.

Hydra reports only the first wrong override, and offers nothing. Here each is tried, on one composition of the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from typing import Any, cast

from hydra import compose
from hydra.errors import OverrideParseException
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
from orchestrator.config.schema import OWN_SECTIONS, SCHEMA, keys_of_groups, may_be_axis, value_at
from orchestrator.config.search_path import Groups, primary
from orchestrator.config.suggestions import (
    COMMAND,
    FILES_OF_CONFIGS,
    MOST_LISTED,
    SCRIPTS,
    elsewhere,
    first,
    instead_of_key,
    instead_of_section,
    instead_of_word,
    left_out,
    no_choice,
    own_file,
    suggested_in,
)
from orchestrator.config.synonyms import BLANK, Replacement, Surroundings, Synonyms, Typed
from orchestrator.config.value_notations import is_money, values_in
from orchestrator.config.yaml_private import resolved
from sweeps.axes import flat
from sweeps.errors import ConfigError, close_to, nearest
from sweeps.rerun_selection import label_axes
from sweeps.sweep import STANDARD_AXES

_LONGEST_QUOTED = 200  # longer values are not repeated in a message
ALONE = "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, and `composed` is their config if it could be composed."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        self._groups = groups
        self.composed: DictConfig | None = None
        self._unfit: dict[str, str] = {}  # the explanation of each override that does not fit
        self._stand_ins: dict[
            str, list[str]
        ] = {}  # choices in place of wrong ones in the file that an override chooses
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
                    self._unfit[override] = _Wrong(override=override, error=error, config=before).explanation()
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
        for override in overrides:
            # Hydra looks up the key before it sets it, so that a wrong key changes nothing.
            try:
                apply_override(override, self.composed)
                fitting.append(override)
            except WRONG as error:
                self._unfit[override] = _Wrong(override=override, error=error, config=before).explanation()
        try:
            resolved(self.composed)
        except WRONG as error:
            # A copy takes as long as setting many keys, so that a value without meaning is found by halving.
            middle = len(fitting) // 2
            if middle == 0:
                self.composed = config
                self._unfit[fitting[0]] = _Wrong(override=fitting[0], error=error, config=before).explanation()
                return
            self._set(fitting[:middle], config, before)
            self._set(fitting[middle:], self.composed, before)


class _Composed(Surroundings):
    """A config that was composed, its keys, and the trial of lines that may be suggested for it."""

    def __init__(self, config: DictConfig, choices: Sequence[str], groups: Groups, unread: Sequence[str] = ()) -> None:
        """`choices` are the overrides of groups that it was composed with; `unread` keys count as absent."""
        self._config, self._choices, self.groups = config, choices, groups
        values = cast(dict[str, Any], OmegaConf.to_container(config))
        self.keys = [key for key in dotted_keys(values) if not is_named(key, unread)]
        self.names = [*self.keys, *groups.names]
        self.axes = dict(flat(values["sweep"]["axes"]))

    def options(self, group: str) -> Sequence[str]:
        """Return the choices in a group, also in one inside a folder; none for any other key."""
        return self.groups.options(group) if group in self.groups.names or "/" in group else ()

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
        lines.append(_no_key(typed.get(key, f"{key}={shown}"), Typed(key, shown), composed))
    return lines


@dataclass(frozen=True, kw_only=True)
class _Wrong:
    """An override that does not fit to a config, and why it did not compose."""

    override: str
    error: Exception
    config: _Composed

    @cached_property
    def typed(self) -> Typed:
        """The key without the marks that add or remove it, and the value."""
        key, _, value = self.override.lstrip("+~").partition("=")
        return Typed(key, value)

    def explanation(self) -> str:
        """Return why the override does not fit, with a suggestion."""
        return first(reason(self) for reason in _REASONS)


def _no_override(wrong: _Wrong) -> str:
    if not wrong.typed.key:
        return f"{wrong.override!r} has no key: write KEY=VALUE without spaces"
    if "=" in wrong.override or wrong.override.startswith("~"):
        return ""
    return f"{wrong.override!r} is not KEY=VALUE{_word_without_key(wrong.override, wrong.config)}"


def _values_left_out(wrong: _Wrong) -> str:
    key, value, axes = wrong.typed.key, wrong.typed.value, wrong.config.axes
    if not (key == "sweep.exclude" or key.endswith("!") or wrong.override.startswith("~sweep.axes.")):
        return ""
    axis = "" if key == "sweep.exclude" else key.removeprefix("sweep.axes.").rstrip("!")
    before, _, last = axis.rpartition(".")
    instead = left_out(value, axes, axis) if value else left_out(last, axes, before)
    return instead and f"{wrong.override!r}: {instead}"


def _no_such_choice(wrong: _Wrong) -> str:
    key, value, config = wrong.typed.key, wrong.typed.value, wrong.config
    options = config.options(key)
    if "Ambiguous value" in str(wrong.error) or ("," in value and {*value.split(",")} <= {*options}):
        if not (key in config.names or key.startswith("sweep.axes.")):
            return _no_key(wrong.override, Typed(key, f"[{value}]"), config)
        return f"{wrong.override!r}: {_several_values(key, value, config)}; with -m they are several sweeps"
    if key.startswith("sweep/") and not options:  # `scale=` is short for the group sweep/NAME
        return f"sweep={key.removeprefix('sweep/')} has no scales: remove scale={value}"
    if not options or value in options:
        return ""
    if value == "null" and key not in ("trainable", "sweep"):
        return f"{wrong.override!r}: to leave out a group, write ~{key}"
    written = f"scale={value}" if key.startswith("sweep/") else repr(wrong.override)
    return f"{written}: {no_choice(key, value, options)}"


def _no_such_key(wrong: _Wrong) -> str:
    if "Could not override" not in str(wrong.error):
        return ""
    key, keys = wrong.typed.key, wrong.config.keys
    if key in keys:  # a mapping that adds keys to this section
        names = [dotted.rpartition(".")[2] for dotted in keys if dotted.rpartition(".")[0] == key]
        return f"{wrong.override!r}: {key} takes no other keys than {', '.join(names)}"
    return _no_key(wrong.override, wrong.typed, wrong.config)


def _nothing_to_delete(wrong: _Wrong) -> str:
    if "Could not delete" not in str(wrong.error):
        return ""
    typed, keys = wrong.typed, wrong.config.keys
    beside = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == typed.section}
    meant = [replacement.text for replacement in Synonyms.read().replacements.get(typed.name, ())]
    near = [key for key in meant if key in keys] or [beside[name] for name in close_to(typed.last, beside)]
    has = f"; {typed.section} has {', '.join(beside)}" if typed.section and beside else ""
    return f"{wrong.override!r}: there is no key {typed.key!r}{f': write ~{near[0]}' if near else has}"


def _values_in_other_notation(wrong: _Wrong) -> str:
    key, text = wrong.typed.key, wrong.typed.value
    if axis := re.fullmatch(r"\{([\w.]+):(.*)\}", text) if key == "sweep.axes" else None:
        key, text = f"sweep.axes.{axis[1]}", axis[2]
    values = values_in(text)
    if "(" not in text or text.startswith("range(") or values == text:
        return ""
    as_axis = Replacement(key.removeprefix("sweep.axes.")).override(Typed("sweep.axes.", values))
    instead = instead_of_key(Typed(key, f"[{values}]"), wrong.config)
    instead = instead or (f"write {as_axis}" if wrong.config.fits(as_axis) else "")
    return instead and f"{f'{key}={text}'!r}: {instead}"


def _unreadable(wrong: _Wrong) -> str:
    key, value = wrong.typed.key, wrong.typed.value
    if key in ("rerun", "sweep.baseline") and not value.startswith(("[", "{")):  # with a cell's label, `2×32 sqrt`
        return f"{wrong.override!r}: {next(SCHEMA[key].errors(key, value), '')}"
    if key not in wrong.config.names and label_axes(value) and (instead := instead_of_key(wrong.typed, wrong.config)):
        return f"{wrong.override!r}: there is no key {key!r}: {instead}"  # only=gpus=1,lr_rule=linear
    if is_money(value):  # a lexer knows no sign of a currency
        instead = f"write {Replacement(key).override(wrong.typed)}" if key in SCHEMA else instead_of_section(key, value)
        if instead := instead or instead_of_key(wrong.typed, wrong.config):
            return f"{wrong.override!r}: {instead}"
    # Labels and environment variables are given by `++`, which the user has not typed.
    written = wrong.override.removeprefix("++")
    return f"{written!r}: {error_line(wrong.error)}{_quoting(written, wrong.error)}"


_REASONS = (
    _no_override,  # foo
    _values_left_out,  # lr_rule!=sqrt, ~sweep.axes.lr_rule=sqrt, ~sweep.axes.sqrt, sweep.exclude={lr_rule: sqrt}
    _no_such_choice,  # model=mpl, model=mlp,small_cnn
    _no_such_key,  # lr=0.1
    _nothing_to_delete,  # ~sweep.axes.lr_scaling
    _values_in_other_notation,  # optimizer.lr=loguniform(1e-4,1e-1)
    _unreadable,  # sweep.axes.gpus=[1,2
)
"""Why an override may not fit: each returns an explanation; empty if that is not the reason."""


def _no_key(override: str, typed: Typed, config: _Composed) -> str:
    """Return that there is no such key, with what to write, similar keys, and whether it can be added."""
    if len(typed.value) > _LONGEST_QUOTED:
        override, typed = f"{typed.key}=…", Typed(typed.key, "…")
    key, names = typed.key, config.names
    begin = f"{override!r}: there is no key {key!r}"
    own = f"+{key}={typed.value}"
    own = f"; for code of yours that reads it: {own}" if config.fits(shlex.quote(own)) else ""
    if instead := instead_of_key(typed, config):
        reads_more = key.startswith("trainable.") and typed.section != "trainable.metrics"
        return f"{begin}: {instead}{own if reads_more else ''}"
    # A name without its section comes first, then a misspelling, then a key of another choice of a group.
    beside = {dotted.rpartition(".")[2]: dotted for dotted in names if dotted.rpartition(".")[0] == typed.section}
    similar = [dotted for dotted in names if dotted.rpartition(".")[2] == typed.last]
    similar = similar or [beside[near] for near in close_to(typed.last, beside)]
    if not similar and (others := keys_of_groups().get(typed.last)):
        return f"{begin}: " + "; ".join(filter(None, (elsewhere(dotted, typed.value, names) for dotted in others[:2])))
    lines = [Replacement(dotted).override(typed) for dotted in similar or _alike(key, config)]
    if fitting := [line for line in lines if config.fits(line)]:
        # `modle=mlp` is no mode.
        complete = [line for line in fitting if not BLANK.search(line)]
        return f"{begin} (did you mean {' or '.join((complete or fitting)[:3])}?)"
    # Own sections take no further keys, and a section that is misspelt should not be added.
    if typed.section in names:
        return begin + (f"; {typed.section} has {', '.join(beside)}" if len(beside) <= MOST_LISTED else "")
    if (close := nearest(key, names)) or key.partition(".")[0] in OWN_SECTIONS:
        return begin + close
    command = COMMAND.replace("train.py", typed.value) if typed.value.endswith(SCRIPTS) else COMMAND
    return f"{begin} nor one known to mean it (--help lists all); {command}{own}"


def _alike(key: str, config: _Composed) -> list[str]:
    """Return the keys with all words of a key or, if it has no section, with a similar last part."""
    # A section takes no value.
    sections = {dotted.rpartition(".")[0] for dotted in config.names} - {*config.groups.names}
    last_parts = {dotted: dotted.rpartition(".")[2] for dotted in config.names if dotted not in sections}
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


def _several_values(key: str, values: str, config: _Composed) -> str:
    """Return how to write several values: as an axis, if the key can be one."""
    if key.startswith("sweep.axes.") or may_be_axis(key):
        return f"an axis takes a list in brackets, 'sweep.axes.{key.removeprefix('sweep.axes.')}=[{values}]'"
    return "only one can be chosen" if config.options(key) else f"write a list in brackets, '{key}=[{values}]'"


def _word_without_key(word: str, config: _Composed) -> str:
    """Return a hint for a value without a key, or a key without a value."""
    if choices := [f"{group}={word}" for group in sorted(config.groups.names) if word in config.options(group)]:
        return f" (did you mean {' or '.join(choices)}?)"
    if word.endswith(SCRIPTS):
        return f"; {COMMAND}"
    if word.endswith(FILES_OF_CONFIGS):
        return f": {own_file(word)}"
    if options := config.options(word):
        return f": write {word}=NAME, one of {', '.join(options)}"
    if instead := instead_of_word(word, config):
        return f": {instead}"
    return f": write {word}=VALUE, as conf/config.yaml describes it" if word in config.keys else ALONE


def dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a config, including sections."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


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
