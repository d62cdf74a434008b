"""Explanations of single overrides that do not fit to a config, with what to write instead."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from hydra.errors import OverrideParseException

from orchestrator.config.hydra_private import error_line
from orchestrator.config.schema import OWN_SECTIONS, SCHEMA, keys_of_groups, may_be_axis
from orchestrator.config.suggestions import (
    COMMAND,
    FILES_OF_CONFIGS,
    MOST_LISTED,
    SCRIPTS,
    as_baseline,
    elsewhere,
    first,
    instead_of_key,
    instead_of_section,
    instead_of_word,
    left_out,
    no_choice,
    own_file,
)
from orchestrator.config.synonyms import BLANK, Replacement, Surroundings, Synonyms, Typed
from orchestrator.config.value_notations import is_money, values_in
from orchestrator.config.value_types import FLAG
from sweeps.errors import close_to, nearest
from sweeps.rerun_selection import label_axes

_LONGEST_QUOTED = 200  # longer values are not repeated in a message
ALONE = "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


@dataclass(frozen=True, kw_only=True)
class WrongOverride:
    """An override that does not fit to a config, and why it did not compose."""

    override: str
    error: Exception
    config: Surroundings

    @cached_property
    def typed(self) -> Typed:
        """The key without the marks that add or remove it, and the value."""
        key, _, value = self.override.lstrip("+~").partition("=")
        return Typed(key, value)

    def explanation(self) -> str:
        """Return why the override does not fit, with a suggestion."""
        reasons = (
            _no_override,  # foo
            _values_left_out,  # lr_rule!=sqrt, ~sweep.axes.lr_rule=sqrt, sweep.exclude={lr_rule: sqrt}
            _no_such_choice,  # model=mpl, model=mlp,small_cnn
            _no_such_key,  # lr=0.1
            _nothing_to_delete,  # ~sweep.axes.lr_scaling
            _values_in_other_notation,  # optimizer.lr=loguniform(1e-4,1e-1)
            _unreadable,  # sweep.axes.gpus=[1,2
        )
        return first(reason(self) for reason in reasons)


def _no_override(wrong: WrongOverride) -> str:
    if not wrong.typed.key:
        return f"{wrong.override!r} has no key: write KEY=VALUE without spaces"
    if "=" in wrong.override or wrong.override.startswith("~"):
        return ""
    return f"{wrong.override!r} is not KEY=VALUE{_word_without_key(wrong.override, wrong.config)}"


def _values_left_out(wrong: WrongOverride) -> str:
    key, value, axes = wrong.typed.key, wrong.typed.value, wrong.config.axes
    if not (key == "sweep.exclude" or key.endswith("!") or wrong.override.startswith("~sweep.axes.")):
        return ""
    axis = "" if key == "sweep.exclude" else key.removeprefix("sweep.axes.").rstrip("!")
    before, _, last = axis.rpartition(".")
    instead = left_out(value, axes, axis) if value else left_out(last, axes, before)
    return instead and f"{wrong.override!r}: {instead}"


def _no_such_choice(wrong: WrongOverride) -> str:
    key, value, config = wrong.typed.key, wrong.typed.value, wrong.config
    options = config.options(key)
    if "Ambiguous value" in str(wrong.error) or ("," in value and {*value.split(",")} <= {*options}):
        if not (key in config.names or key.startswith("sweep.axes.")):
            return no_key(wrong.override, Typed(key, f"[{value}]"), config)
        return f"{wrong.override!r}: {_several_values(key, value, config)}; with -m they are several sweeps"
    if key.startswith("sweep/") and not options:  # `scale=` is short for the group sweep/NAME
        return f"sweep={key.removeprefix('sweep/')} has no scales: remove scale={value}"
    if not options or value in options:
        return ""
    if value == "null" and key not in ("trainable", "sweep"):
        return f"{wrong.override!r}: to leave out a group, write ~{key}"
    written = f"scale={value}" if key.startswith("sweep/") else repr(wrong.override)
    return f"{written}: {no_choice(key, value, options)}"


def _no_such_key(wrong: WrongOverride) -> str:
    if "Could not override" not in str(wrong.error):
        return ""
    key, keys = wrong.typed.key, wrong.config.keys
    if key in keys:  # a mapping that adds keys to this section
        names = [dotted.rpartition(".")[2] for dotted in keys if dotted.rpartition(".")[0] == key]
        return f"{wrong.override!r}: {key} takes no other keys than {', '.join(names)}"
    return no_key(wrong.override, wrong.typed, wrong.config)


def _nothing_to_delete(wrong: WrongOverride) -> str:
    if "Could not delete" not in str(wrong.error):
        return ""
    typed, keys = wrong.typed, wrong.config.keys
    beside = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == typed.section}
    meant = [replacement.text for replacement in Synonyms.read().replacements.get(typed.name, ())]
    near = [key for key in meant if key in keys] or [beside[name] for name in close_to(typed.last, beside)]
    has = f"; {typed.section} has {', '.join(beside)}" if typed.section and beside else ""
    return f"{wrong.override!r}: there is no key {typed.key!r}{f': write ~{near[0]}' if near else has}"


def _values_in_other_notation(wrong: WrongOverride) -> str:
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


def _unreadable(wrong: WrongOverride) -> str:
    key, value = wrong.typed.key, wrong.typed.value
    if key in ("rerun", "sweep.baseline") and not value.startswith(("[", "{")):  # with a cell's label, `2×32 sqrt`
        instead = as_baseline(value, wrong.config.axes) if key == "sweep.baseline" else ""
        return f"{wrong.override!r}: {next(SCHEMA[key].errors(key, value), '')}{instead and f': {instead}'}"
    if key not in wrong.config.names and label_axes(value) and (instead := instead_of_key(wrong.typed, wrong.config)):
        return f"{wrong.override!r}: there is no key {key!r}: {instead}"  # only=gpus=1,lr_rule=linear
    if is_money(value):  # a lexer knows no sign of a currency
        instead = f"write {Replacement(key).override(wrong.typed)}" if key in SCHEMA else instead_of_section(key, value)
        if instead := instead or instead_of_key(wrong.typed, wrong.config):
            return f"{wrong.override!r}: {instead}"
    # Labels and environment variables are given by `++`, which the user has not typed.
    written = wrong.override.removeprefix("++")
    return f"{written!r}: {error_line(wrong.error)}{_quoting(written, wrong.error)}"


def no_key(override: str, typed: Typed, config: Surroundings) -> str:
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


def _alike(key: str, config: Surroundings) -> list[str]:
    """Return the keys with all words of a key or, if it has no section, with a similar last part."""
    # A section takes no value.
    sections = {dotted.rpartition(".")[0] for dotted in config.names} - {*config.groups}
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


def _several_values(key: str, values: str, config: Surroundings) -> str:
    """Return how to write several values: as an axis, if the key can be one."""
    if key.startswith("sweep.axes.") or may_be_axis(key):
        return f"an axis takes a list in brackets, 'sweep.axes.{key.removeprefix('sweep.axes.')}=[{values}]'"
    return "only one can be chosen" if config.options(key) else f"write a list in brackets, '{key}=[{values}]'"


def _word_without_key(word: str, config: Surroundings) -> str:
    """Return a hint for a value without a key, or a key without a value."""
    if choices := [f"{group}={word}" for group in sorted(config.groups) if word in config.options(group)]:
        return f" (did you mean {' or '.join(choices)}?)"
    if word.endswith(SCRIPTS):
        return f"; {COMMAND}"
    if word.endswith(FILES_OF_CONFIGS):
        return f": {own_file(word)}"
    if options := config.options(word):
        return f": write {word}=NAME, one of {', '.join(options)}"
    if instead := instead_of_word(word, config):
        return f": {instead}"
    if SCHEMA.get(word) is FLAG:
        return f": write {word}=true"
    return f": write {word}=VALUE, as conf/config.yaml describes it" if word in config.keys else ALONE
