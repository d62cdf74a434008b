"""Explains what does not compose: Hydra's errors in one line each, with a suggestion."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import yaml
from hydra import compose
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.composition.config_groups import Groups
from orchestrator.composition.search_path import is_search_path, primary
from orchestrator.config.sections import IDENTIFYING, OWN_SECTIONS
from sweeps.mistakes import MistakesError, nearest, unknown

WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
"""What composing raises for an invalid config: YAML that would create objects, a file that cannot be read or is not
UTF-8 (a ValueError), `model=null` (another)."""


_SCRIPTS = (".py", ".sh")

_COMMAND = "to run a script of yours: trainable=command \"trainable.argv='python train.py --lr {lr}'\""


def resolved(config: DictConfig) -> dict[str, Any]:
    """The composed config as plain values. Raises the errors in WRONG."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


class CompositionError(MistakesError):
    """Overrides that do not fit; `fitting` are the others, which may contain other mistakes."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all misfits among overrides that failed to compose with `error`; Hydra itself reports only the first."""
        unfit = dict(_misfits(overrides, groups))
        super().__init__(unfit.values() or [one_line(error)])
        self.fitting = tuple(override for override in overrides if override not in unfit)
        self._unfit = [override.lstrip("+~").partition("=")[0] for override in unfit]

    def is_due_to_them(self, mistake: str) -> bool:
        """Whether a mistake in the rest may be a consequence of these overrides missing."""
        return any(re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", mistake) for key in self._unfit)


def _misfits(overrides: Sequence[str], groups: Groups) -> Iterator[tuple[str, str]]:
    """Add the overrides one by one; yield each that does not fit, as (override, mistake)."""
    fitting: list[str] = []
    for override in sorted(overrides, key=lambda override: _precedence(override, groups)):
        try:
            resolved(compose(primary(), [*fitting, override]))
            fitting.append(override)
        except WRONG as error:
            yield override, _explained(override, error, fitting, groups)


def _precedence(override: str, groups: Groups) -> int:
    """Sort key: search path, then groups, then keys, since each determines which of the next exist."""
    if is_search_path(override):
        return 0
    return 1 if override.partition("=")[0].lstrip("+~") in groups.names else 2


def _explained(override: str, error: Exception, fitting: Sequence[str], groups: Groups) -> str:
    key, equals, value = override.lstrip("+~").partition("=")
    if not key:
        return f"{override!r} has no key: write KEY=VALUE without spaces"
    if not equals and not override.startswith("~"):
        return f"{override!r} is not KEY=VALUE{_lone_word(override, groups)}"
    if key.startswith("sweep/") and not groups.options(key):
        return f"sweep={key.removeprefix('sweep/')} has no scales: remove scale={value}"
    options = groups.options(key) if key in groups.names or "/" in key else []
    if "Ambiguous value" in str(error) or ("," in value and set(value.split(",")) <= set(options)):
        return f"{override!r}: {_in_brackets(key, value, groups)}; with -m they are several sweeps"
    if options and value == "null" and key not in ("trainable", "sweep"):
        return f"{override!r}: to leave out a group, write ~{key}"
    if options and value not in options:
        what = f"{key} in {override!r}:" if not key.startswith("sweep/") else f"scale of {key.replace('/', '=', 1)}:"
        return f"{unknown(what, value, options)}{_own_code(key, value)}"
    if "Could not override" in str(error):
        known = [*dotted_keys(resolved(compose(primary(), list(fitting)))), *groups.names]
        if key in known:
            return f"{override!r}: {key} has no such key; +{key}.KEY=… adds one, ~{key}.KEY leaves one out"
        if meant := _sections_with(key, known):
            return f"{override!r}: there is no key {key!r} (did you mean {' or '.join(meant)}?)"
        adds = f"; +{key}=… adds one" if _may_be_added(key, known) else ""
        return f"{override!r}: there is no key {key!r}{_nearest(key, known)}{adds}"
    written = override.removeprefix("++")  # which labels and environment variables are given (`overrides`)
    return f"{written!r}: {one_line(error)}{_quoting(written, error)}"


def _may_be_added(key: str, known: Sequence[str]) -> bool:
    """Whether a key that is not there would be accepted: not among the orchestrator's own, nor a misspelt section."""
    section = key.partition(".")[0]
    return section not in (*OWN_SECTIONS, "budget") and (section in known or not nearest(section, known))


def _nearest(key: str, known: Sequence[str]) -> str:
    """A similar key of the same section; where there is no such section, a similar one as a whole."""
    section, dot, name = key.rpartition(".")
    if section not in known:
        return nearest(key, known)
    return nearest(name, [each.removeprefix(section + dot) for each in known if each.rpartition(".")[0] == section])


def _sections_with(word: str, known: Sequence[str]) -> list[str]:
    """Up to three keys that a bare word may stand for: `gpus` for `sweep.axes.gpus`."""
    last = [(key, key.rpartition(".")[2]) for key in known if "." in key]
    same = [key for key, name in last if name == word]
    return [] if "." in word else (same or [key for key, name in last if name.endswith(f"_{word}")])[:3]


def _quoting(override: str, error: Exception) -> str:
    """A hint on quoting for a value that Hydra's grammar took apart."""
    key, _, value = override.partition("=")
    if key != key.rstrip() or value != value.lstrip():
        return "; write no spaces around ="
    mark = "'" if "'" not in value else r"\""
    quoted = f'quote it twice: "{key}={mark}{value}{mark}"'
    if "requires --multirun" in str(error):
        return f"; for the values of an axis {quoted}"
    taken_apart = isinstance(error, OverrideParseException) and value[:1] not in ("'", '"', "[", "{")
    return f"; if this is one text, {quoted}" if taken_apart else ""


def one_line(error: BaseException) -> str:
    """The error in one line, with its cause if Hydra names only what failed."""
    text = re.sub(r"\s+", " ", str(error)).strip().partition(" Config search path:")[0]
    text = re.sub(r" full_key: ?(\S*?) object_type=\S+$", lambda found: f" ({found[1]})" if found[1] else "", text)
    why = one_line(error.__cause__) if error.__cause__ else ""
    return f"{text}: {why}" if why and why not in text else text


def dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a config, including sections."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def _in_brackets(key: str, values: str, groups: Groups) -> str:
    """How to write several values: as an axis, if the key can be one."""
    section = key.partition(".")[0]
    if key.startswith("sweep.axes."):
        return f"an axis takes a list in brackets, '{key}=[{values}]'"
    if section not in OWN_SECTIONS or section in IDENTIFYING:
        return f"an axis takes a list in brackets, 'sweep.axes.{key}=[{values}]'"
    return "only one can be chosen" if key in groups.names else f"write a list in brackets, '{key}=[{values}]'"


def _lone_word(word: str, groups: Groups) -> str:
    """A hint for a value without a key."""
    if found := [f"{group}={word}" for group in sorted(groups.names) if word in groups.options(group)]:
        return f" (did you mean {' or '.join(found)}?)"
    if word.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    return "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


def _own_code(group: str, value: str) -> str:
    """A hint if the value looks like code or a sweep file in place of a choice; else empty."""
    if group == "trainable" and value.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    module, colon, _ = value.partition(":")
    if not colon:
        return f"; to use your own FOLDER/sweep/{value}.yaml, add -cd FOLDER" if group == "sweep" else ""
    key = "trainable=function trainable._target_" if group == "trainable" else f"{group}.name"
    return f"; to use code of yours: {key}={value} 'trusted_modules=[{module.partition('.')[0]}]'"
