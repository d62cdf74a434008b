"""Composition of configs with Hydra: overrides in, a resolved config and the sweep's axes out.

Before Hydra reads the overrides, those that its grammar cannot express are rewritten. What does not compose is reported
with one line per override and a suggestion, while Hydra itself reports only the first.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, cast

import yaml
from hydra import compose
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.hydra_private import PLAIN_SWEEPER, parsed
from orchestrator.config.overrides import FROM_PROGRAM, alternatives, key_of
from orchestrator.config.search_path import Groups, is_search_path, primary, primary_arguments, shadowed
from orchestrator.store.secrets import Secrets
from sweeps.axes import Axes, flat
from sweeps.errors import ConfigError, nearest, unknown
from sweeps.sweep import MOST_TRIALS, STANDARD_AXES

WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
"""What composing raises for an invalid config: YAML that would create objects, a file that cannot be read or is not
UTF-8 (a ValueError), `model=null` (another)."""

_SCRIPTS = (".py", ".sh")
_COMMAND = "to run a script of yours: trainable=command \"trainable.argv='python train.py --lr {lr}'\""


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return the composed config as plain values. Raises the errors in WRONG."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, which may have further errors."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        unfit = dict(_unfit_overrides(overrides, groups))
        super().__init__(unfit.values() or [one_line(error)])
        self.fitting = tuple(override for override in overrides if override not in unfit)
        self._unfit = [key_of(override) for override in unfit]

    def is_due_to_them(self, message: str) -> bool:
        """Return whether an error in the rest may be a consequence of these overrides missing."""
        return any(re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", message) for key in self._unfit)


def _unfit_overrides(overrides: Sequence[str], groups: Groups) -> Iterator[tuple[str, str]]:
    """Add the overrides one by one; yield each that does not fit, as (override, error)."""
    fitting: list[str] = []
    composed: dict[str, Any] | None = None  # from those that fit
    # Search path, then groups, then keys, since each determines which of the next exist.
    for override in sorted(
        overrides, key=lambda each: 0 if is_search_path(each) else 1 if key_of(each) in groups.names else 2
    ):
        try:
            composed = resolved(compose(primary(), [*fitting, override]))
            fitting.append(override)
        except WRONG as error:
            composed = composed or resolved(compose(primary(), []))
            yield override, _explained(override, error, composed, groups)


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
        last = [(each, each.rpartition(".")[2]) for each in known if "." in each]
        similar_keys = [each for each, word in last if word == name]
        similar_keys = similar_keys or [each for each, word in last if word.endswith(f"_{name}")]
        if similar_keys:
            return f" (did you mean {' or '.join(copyable(each, value) for each in similar_keys[:3])}?)"
    if section in known:
        beside = [each.removeprefix(section + dot) for each in known if each.rpartition(".")[0] == section]
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
    text = re.sub(r" full_key: ?(\S*?) object_type=\S+$", lambda found: f" ({found[1]})" if found[1] else "", text)
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

    if found := [f"{group}={word}" for group in sorted(groups.names) if word in groups.options(group)]:
        return f" (did you mean {' or '.join(found)}?)"
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
    if found := _AXIS.match(argument):
        key, value = found["key"], found["value"]
        return f"sweep.axes.{key}={value}" if key in STANDARD_AXES else f"++sweep.axes={{{key}:{value}}}"
    if argument.lstrip("+").startswith("rerun="):
        # Quote the ids, but not the numbers in `{axis: value}`.
        parts = re.split(r"(\{[^{}]*\})", argument)
        return "".join(part if part.startswith("{") else _ID.sub(r"'\g<0>'", part) for part in parts)
    if sweep and argument.startswith("scale="):
        return f"sweep/{sweep}={argument.removeprefix('scale=')}"
    # Environment variables, labels and options may have any name without a `+`, which users would forget.
    return f"++{argument}" if _FREELY_NAMED.match(argument) else argument


class Composition:
    """A composed config, and its variants for the sweep's config axes."""

    def __init__(self, overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Compose; `sections` replace whole ones. Raises ConfigError with a line per override that does not fit."""
        self._sections = dict(sections or {})
        self._overrides = list(overrides)
        self.groups = Groups(self._overrides)
        try:
            self._config = self._composed([], {})
            self.config = resolved(self._config)
            """The resolved config as plain values."""
        except ConfigError:
            raise
        except WRONG as error:
            raise CompositionError(error, self._overrides, self.groups) from None

    @property
    def sweep(self) -> str:
        """The chosen sweep config; empty if there is none."""
        chosen = [override.partition("=")[2] for override in self._overrides if override.startswith("sweep=")]
        return chosen[-1] if chosen else ""

    @property
    def secrets(self) -> Secrets:
        """Values in the config that must not be written down."""
        raw = OmegaConf.to_container(self._config, resolve=False)
        return Secrets.of(raw, self.config, os.environ)

    @property
    def arguments(self) -> list[str]:
        """A command line that composes the same config, except for sections that a program gave as a whole."""
        return [*primary_arguments(), *self._overrides, *(f"{name}{FROM_PROGRAM}" for name in self._sections)]

    def axes(self) -> Axes:
        """Return the sweep's axes as lists of values; only `gpus` may also be the word `auto`."""
        return axes_of(self.config["sweep"]["axes"])

    def _composed(self, further: Sequence[str], chosen: Mapping[str, Any]) -> DictConfig:
        config = compose(primary(), [*self._overrides, *further], return_hydra_config=True)
        if errors := list(shadowed(config.hydra)):
            raise ConfigError(errors)
        with open_dict(config):
            del config["hydra"]
            for name, section in self._sections.items():
                if name not in chosen:
                    config[name] = dict(section)
        self._leave_out_replaced(config, self._overrides)
        return config

    def _leave_out_replaced(self, config: DictConfig, given: Sequence[str]) -> None:
        """Drop the keys of the shipped model that code of the user's replaces: `model.name=mypackage.models:build`."""
        keys = {key_of(each) for each in given}
        if "model.name" not in keys or ":" not in str(config.model.get("name")):
            return
        kept = {each.split(".")[1] for each in keys if each.startswith("model.")}
        with open_dict(config):
            config.model = {key: value for key, value in config.model.items() if key in kept}

    def variant(self, config_axes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the resolved config with these keys and groups set. Raises ConfigError for any that do not exist."""
        choices = {axis: value for axis, value in config_axes.items() if axis in self.groups.names}
        chosen = [f"{group}={choice}" for group, choice in choices.items()]
        for group, choice in choices.items():
            options = self.groups.options(group)
            if choice not in options:
                raise ConfigError([unknown(f"choice on axis {group}:", choice, options)])
        try:
            config = self._composed(chosen, choices) if chosen else self._config.copy()
        except ConfigError:
            raise
        except WRONG as error:
            raise ConfigError([f"with {', '.join(chosen)}: {one_line(error)}"]) from None
        from orchestrator.config.schema import value_at
        from orchestrator.config.suggestions import meant

        keys = {axis: value for axis, value in config_axes.items() if axis not in choices}
        for key, value in with_alternatives(keys).items():
            try:
                OmegaConf.update(config, key, value)
            except OmegaConfBaseException:
                dotted = (each for each in dotted_keys(self.config) if not each.startswith("sweep."))
                known = [*dotted, *self.groups.names, *STANDARD_AXES]
                instead = meant(f"sweep.axes.{key}", _listed(value_at(self.config["sweep"], f"axes.{key}")))
                hint = f": write {instead}" if instead else nearest(key, known)
                raise ConfigError([f"axis {key!r} is not a config key or group{hint}"]) from None
        self._leave_out_replaced(config, [*self._overrides, *keys])
        return resolved(config)


def _listed(values: Any) -> str:
    return f"[{','.join(map(str, values))}]" if isinstance(values, list) else str(values)


def axes_of(given: Mapping[str, Any]) -> Axes:
    """Return the axes that are not null as lists of values; only `gpus` may also be the word `auto`.

    An axis written as nested keys (`+sweep.axes.optimizer.lr=[.1,.2]`) gets its dotted name. Raises ConfigError.
    """
    found: dict[str, Any] = {}
    errors: list[str] = []
    for axis, value in flat(given):
        try:
            found |= {} if value is None else {axis: _axis_values(axis, value)}
        except HydraException as error:
            errors.append(f"sweep.axes.{axis}={value!r}: {one_line(error)}")
    if errors:
        raise ConfigError(errors)
    return found


def _axis_values(axis: str, given: Any) -> Any:
    """Return the values of an axis as a list; `auto` for GPUs stays a word. Raises HydraException."""
    if isinstance(given, list):
        return given
    if axis == "gpus" and given == "auto":
        return given
    if not isinstance(given, str):
        return [given]
    (override,) = parsed([f"{axis}={given}"])
    if override.is_sweep_override():
        return list(itertools.islice(override.sweep_iterator(), MOST_TRIALS + 1))  # 'range(0,1e12)' exhausts memory
    value = override.value()
    return value if isinstance(value, list) else [value]


def is_known(hydra: Mapping[str, Any]) -> bool:
    """Return whether Hydra runs exactly the sweeps that the overrides list; other sweepers choose during the run."""
    sweeper = hydra.get("sweeper") or {}
    return sweeper.get("_target_") == PLAIN_SWEEPER and not sweeper.get("params")


def is_continuous(override: str) -> bool:
    """Return whether an override is a range of numbers, from which a sweeper draws: `interval(0,1)`."""
    try:
        return any(each.is_sweep_override() and not each.is_discrete_sweep() for each in parsed([override]))
    except HydraException:
        return False


_MOST_NESTED = 20
"""Hydra's parser is recursive: deeper nesting would exhaust the stack."""


def is_data(argument: str) -> bool:
    """Return whether an override sets one plain value, which reads nothing from the environment."""
    depth = deepest = 0
    for character in argument:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if "${" in argument or deepest > _MOST_NESTED:
        return False
    try:
        (override,) = parsed([argument])
    except HydraException:
        return False
    return not override.is_sweep_override() and not override.is_delete() and override.package is None


def expanded(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each sweep; the given ones unchanged if Hydra cannot parse them."""
    try:
        found = parsed(overrides)
    except HydraException:  # Hydra reports this itself before running anything
        return [list(overrides)]
    choices = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_discrete_sweep()
        else [given]
        for each, given in zip(found, overrides, strict=True)
    ]
    return [list(combination) for combination in product(*choices)]


def meaning(overrides: Sequence[str]) -> frozenset[str]:
    """Return a normal form of overrides: Hydra escapes and spaces values differently when it writes them."""
    return frozenset(f"{each.get_key_element()}={each.get_value_element_as_str()}" for each in parsed(overrides))
