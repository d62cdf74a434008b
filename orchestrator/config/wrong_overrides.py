"""Explanations of command lines that do not compose: one line for each wrong override, with what to write instead.

Hydra reports only the first wrong override, and offers nothing. Here each is tried, on one composition of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import yaml
from hydra import compose
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.hydra_private import apply_override, flag_names
from orchestrator.config.overrides import key_of
from orchestrator.config.search_path import Groups, is_search_path, primary
from sweeps.errors import ConfigError, nearest, unknown
from sweeps.sweep import STANDARD_AXES

WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing raises for an invalid config: YAML that would create objects, a file that cannot be read or is not
UTF-8 (a ValueError), `model=null` (another), or lists nested too deep."""

_SCRIPTS = (".py", ".sh")
_COMMAND = "to run a script of yours: -- python train.py --lr {lr}"


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed config as plain values. Raises the errors in WRONG."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, and `composed` is their config if it could be composed."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        trial = _Trial(overrides, groups)
        lines = [trial.unfit[override] for override in overrides if override in trial.unfit]
        super().__init__(lines or [one_line(error)])
        self.fitting = tuple(override for override in overrides if override not in trial.unfit)
        self.composed = trial.composed if trial.unfit else None
        self._keys = [key_of(override) for override in trial.unfit]

    def is_due_to_them(self, message: str) -> bool:
        """Return whether an error in the rest may be a consequence of these overrides missing."""
        return any(re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", message) for key in self._keys)


class _Trial:
    """Overrides that are tried: groups decide which keys exist, so all groups are chosen before any key is set."""

    def __init__(self, overrides: Sequence[str], groups: Groups) -> None:
        self._groups = groups
        self.composed: DictConfig | None = None
        """The config of the overrides that fit, without Hydra's section."""
        self.unfit: dict[str, str] = {}
        """The explanation of each override that does not fit."""
        try:
            chosen = [override for override in overrides if self._is_choice(override)]
        except WRONG:  # the primary config cannot be read, and overrides are not to blame
            return
        # The search path comes first, because it determines which groups exist.
        self._choose(sorted(chosen, key=lambda override: not is_search_path(override)))
        if self.composed is not None:
            self._set([override for override in overrides if override not in chosen])

    def _is_choice(self, override: str) -> bool:
        """Return whether an override counts while Hydra reads files, or is for Hydra's own section."""
        key = key_of(override)
        return key in self._groups.names or "/" in key or "@" in key or key.startswith("hydra.")

    def _choose(self, overrides: Sequence[str]) -> None:
        """Compose the choices together; if that fails, add them one by one and explain those that do not fit."""
        with suppress(*WRONG):
            self.composed = _resolvable(overrides)
            return
        with suppress(*WRONG):
            self.composed = _resolvable([])
        if self.composed is None:  # the primary config itself is wrong
            return
        fitting: list[str] = []
        for override in overrides:
            try:
                self.composed = _resolvable([*fitting, override])
                fitting.append(override)
            except WRONG as error:
                self._explain(override, error)

    def _set(self, overrides: Sequence[str]) -> None:
        """Set keys one by one; explain those that do not fit."""
        for override in overrides:
            before = cast(DictConfig, self.composed).copy()
            try:
                apply_override(override, cast(DictConfig, self.composed))
                resolved(cast(DictConfig, self.composed))
            except WRONG as error:
                self.composed = before
                self._explain(override, error)

    def _explain(self, override: str, error: Exception) -> None:
        composed = cast(dict[str, Any], OmegaConf.to_container(cast(DictConfig, self.composed)))
        self.unfit[override] = _explained(override, error, composed, self._groups)


def _resolvable(overrides: Sequence[str]) -> DictConfig:
    """Return the composed config. Raises the errors in WRONG, also if an interpolation in it cannot be resolved."""
    config = compose(primary(), list(overrides))
    resolved(config)
    return config


def _explained(override: str, error: Exception, composed: Mapping[str, Any], groups: Groups) -> str:
    """Return why an override does not fit to what is composed, with a suggestion."""
    key, equals, value = override.lstrip("+~").partition("=")
    if not key:
        return f"{override!r} has no key: write KEY=VALUE without spaces"
    if not equals and not override.startswith("~"):
        return f"{override!r} is not KEY=VALUE{_word_without_key(override, groups)}"
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
        known = [*dotted_keys(composed), *groups.names]
        if key in known:
            return f"{override!r}: {key} has no such key; +{key}.KEY=… adds one, ~{key}.KEY leaves one out"
        return f"{override!r}: there is no key {key!r}{_instead_of(key, value, known)}"
    written = override.removeprefix("++")  # which labels and environment variables are given (`overrides`)
    return f"{written!r}: {one_line(error)}{_quoting(written, error)}"


def _instead_of(key: str, value: str, known: Sequence[str]) -> str:
    """Return a hint for a key that does not exist: what to write, similar keys, and whether it can be added."""
    from orchestrator.config.schema import OWN_SECTIONS  # imported here so that --help stays quick
    from orchestrator.config.suggestions import copyable, meant  # imported here so that --help stays quick

    section, dot, name = key.rpartition(".")
    if instead := meant(key, value):
        own = f"; for a key that your code reads: +{key}={value}" if key.startswith("trainable.") else ""
        return f": write {instead}{own}"
    if not dot:  # a bare word may stand for up to three keys: `gpus` for `sweep.axes.gpus`
        names = {dotted: dotted.rpartition(".")[2] for dotted in known if "." in dotted}
        similar_keys = [dotted for dotted, word in names.items() if word == name]
        similar_keys = similar_keys or [dotted for dotted, word in names.items() if word.endswith(f"_{name}")]
        if similar_keys:
            return f" (did you mean {' or '.join(copyable(dotted, value) for dotted in similar_keys[:3])}?)"
    if section in known:
        beside = [dotted.removeprefix(section + dot) for dotted in known if dotted.rpartition(".")[0] == section]
        similar = nearest(name, beside)
    else:
        similar = nearest(key, known)
    # Own sections take no further keys, and a section that is misspelt should not be added.
    top = key.partition(".")[0]
    is_misspelt = top not in known and nearest(top, known)
    can_be_added = top not in (*OWN_SECTIONS, "budget") and not is_misspelt
    return f"{similar}; +{key}=… adds one" if can_be_added else similar


def _quoting(override: str, error: Exception) -> str:
    """Return a hint on quoting for a value that Hydra's grammar took apart."""
    key, _, value = override.partition("=")
    if key != key.rstrip() or value != value.lstrip():
        return "; write no spaces around ="
    mark = "'" if "'" not in value else r"\""
    quoted = f'quote it twice: "{key}={mark}{value}{mark}"'
    if "requires --multirun" in str(error):
        return f"; for the values of an axis {quoted}"
    if value.startswith("[") and not value.endswith("]"):
        return f"; write the list in quotes, without spaces: '{key}={value.rstrip(',')}]'"
    taken_apart = isinstance(error, OverrideParseException) and value[:1] not in ("'", '"', "[", "{")
    return f"; if this is one text, {quoted}" if taken_apart else ""


def one_line(error: BaseException) -> str:
    """Return the error in one line, with its cause if Hydra names only what failed."""
    text = re.sub(r"\s+", " ", str(error)).strip().partition(" Config search path:")[0]
    text = re.sub(r" See https://hydra\.cc/\S+ for details|: None$", "", text)
    text = re.sub(r" full_key: ?(\S*?) object_type=\S+$", lambda match: f" ({match[1]})" if match[1] else "", text)
    why = one_line(error.__cause__) if error.__cause__ else ""
    return f"{text}: {why}" if why and why not in text else text


def dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a config, including sections."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def _in_brackets(key: str, values: str, groups: Groups) -> str:
    """Return how to write several values: as an axis, if the key can be one."""
    from orchestrator.config.schema import IDENTIFYING, OWN_SECTIONS

    section = key.partition(".")[0]
    if key.startswith("sweep.axes."):
        return f"an axis takes a list in brackets, '{key}=[{values}]'"
    if section not in OWN_SECTIONS or section in IDENTIFYING:
        return f"an axis takes a list in brackets, 'sweep.axes.{key}=[{values}]'"
    return "only one can be chosen" if key in groups.names else f"write a list in brackets, '{key}=[{values}]'"


def _word_without_key(word: str, groups: Groups) -> str:
    """Return a hint for a value without a key."""
    from orchestrator.config.suggestions import mode_meant

    if choices := [f"{group}={word}" for group in sorted(groups.names) if word in groups.options(group)]:
        return f" (did you mean {' or '.join(choices)}?)"
    if word.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    if mode := mode_meant(word):
        return f": write {mode}"
    return "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


def _own_code(group: str, value: str) -> str:
    """Return a hint if the value looks like code or a sweep file in place of a choice; else empty."""
    if group == "trainable" and value.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    module, colon, _ = value.partition(":")
    if group == "sweep" and value.startswith("published/"):
        return "; the published experiments are in a clone of the repository, not in the installed package"
    if group == "data" and not colon:
        return "; for your own images in a folder for each class: data=imagefolder data.path=FOLDER"
    if not colon:
        return f"; to use your own FOLDER/sweep/{value}.yaml, add -cd FOLDER" if group == "sweep" else ""
    key = "trainable=function trainable._target_" if group == "trainable" else f"{group}.name"
    return f"; to use code of yours: {key}={value} 'trusted_modules=[{module.partition('.')[0]}]'"


def axis_error(axis: str, values: Any, config: Mapping[str, Any], groups: Groups) -> str:
    """Return why an axis does not fit: it is neither a key of the config nor a group."""
    from orchestrator.config.suggestions import meant  # imported here so that --help stays quick

    keys = [key for key in dotted_keys(config) if not key.startswith("sweep.")]
    listed = f"[{','.join(map(str, values))}]" if isinstance(values, list) else str(values)
    instead = meant(f"sweep.axes.{axis}", listed)
    hint = f": write {instead}" if instead else nearest(axis, [*keys, *groups.names, *STANDARD_AXES])
    return f"axis {axis!r} is not a config key or group{hint}"


def dash_errors(arguments: Sequence[str]) -> Iterator[str]:
    """Yield an error for each key written as an option (`--key`); only Hydra's own flags take dashes."""
    from orchestrator.config.suggestions import meant

    flags = flag_names()
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or any(flag.startswith(name) for flag in flags):
            continue
        key = name.lstrip("-").replace("-", "_")
        is_value = not equals and following and not following.startswith("-") and "=" not in following
        value = following if is_value else value
        written = f"{argument} {following}" if is_value else argument
        instead = meant(key, value) or f"{key}={value or 'VALUE'}"
        yield f"{written!r}: write keys without dashes: {instead}"
