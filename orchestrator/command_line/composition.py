"""The config, composed by Hydra: as a whole, for one point of a sweep, and what is wrong with it.

With `app` the only place that uses Hydra. Hydra must be initialised, as it is inside its own main function.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from orchestrator.command_line.overrides import with_alternatives
from orchestrator.config.override_text import FROM_PROGRAM
from orchestrator.storage.secrets import Secrets
from sweeps.axes import Axes
from sweeps.mistakes import MistakesError, nearest, unknown
from sweeps.sweep import MOST_TRIALS, STANDARD_AXES

_WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
"""What composing raises for a config that is none: a YAML that wants to make objects, a file that cannot be read or is
no UTF-8 (a ValueError), `model=null` (another)."""

PRIMARY = "config"
"""The primary config's name."""


def config_dir() -> Path:
    """The folder of the shipped configs, found beside this code: a user's own package named conf must not shadow it.

    In an installation it is inside the package, in a checkout beside it.
    """
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def is_search_path(override: str) -> bool:
    """Whether an override adds folders of the user's own configs."""
    return override.lstrip("+").startswith("hydra.searchpath=")


def with_search_path(overrides: Sequence[str], folder: str | None) -> list[str]:
    """The overrides with one more folder of configs; Hydra takes a search path only once."""
    if folder is None:
        return list(overrides)
    own = [override.partition("=")[2].strip("[]") for override in overrides if is_search_path(override)]
    others = [override for override in overrides if not is_search_path(override)]
    return [*others, f"hydra.searchpath=[{','.join([f'file://{folder}', *own])}]"]


class Groups:
    """The config groups and their choices, those on the user's own search path included."""

    def __init__(self, overrides: Sequence[str], primary: str) -> None:
        self._search_path = [override for override in overrides if is_search_path(override)]
        self._primary = primary
        self.names = [name for name in self._listed("", ObjectType.GROUP) if name != "hydra"]

    def options(self, group: str) -> list[str]:
        """The choices that a group offers, those of its folders as `folder/choice`.

        A folder of the same name as a choice belongs to that choice.
        """
        own = self._listed(group, ObjectType.CONFIG)
        folders = [folder for folder in self._listed(group, ObjectType.GROUP) if folder not in own]
        return own + [
            f"{folder}/{name}" for folder in folders for name in self._listed(f"{group}/{folder}", ObjectType.CONFIG)
        ]

    def _listed(self, group: str, kind: ObjectType) -> list[str]:
        loader = GlobalHydra.instance().config_loader()
        return loader.get_group_options(group, kind, self._primary, self._search_path)


def hydra_config(overrides: Sequence[str], primary: str) -> dict[str, Any]:
    """Hydra's own part of the config, what it runs and where it writes; MistakesError where it does not compose."""
    try:
        hydra = compose(primary, list(overrides), return_hydra_config=True).hydra
        parts = ("launcher", "sweeper", "callbacks", "job_logging", "hydra_logging", "run")
        return {part: OmegaConf.to_container(hydra[part], resolve=False) for part in parts if hydra.get(part)}
    except _WRONG as error:
        raise MistakesError([_one_line(error)]) from None


class CompositionError(MistakesError):
    """Overrides that do not fit; `fitting` are the others, which may be wrong in other ways."""

    def __init__(self, mistakes: Sequence[str], fitting: Sequence[str], unfit: Sequence[str]) -> None:
        super().__init__(mistakes)
        self.fitting = tuple(fitting)
        self._unfit = [override.lstrip("+~").partition("=")[0] for override in unfit]

    def is_due_to_them(self, mistake: str) -> bool:
        """Whether a mistake of the rest may be there only because these overrides are not."""
        return any(re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", mistake) for key in self._unfit)


class Composition:
    """One composed config, and the variants of it that a sweep's config axes ask for."""

    def __init__(
        self,
        overrides: Sequence[str],
        primary: str = PRIMARY,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """MistakesError, with a line for every override that does not fit; `sections` replace whole ones."""
        self._sections = dict(sections or {})
        self._overrides = list(overrides)
        self._primary = primary
        self.groups = Groups(self._overrides, primary)
        try:
            self._config = self._composed([], {})
            _plain(self._config)
        except _WRONG as error:
            found = dict(_mistakes(primary, self._overrides, self.groups))
            fitting = [override for override in self._overrides if override not in found]
            raise CompositionError(list(found.values()) or [_one_line(error)], fitting, list(found)) from None

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config as plain values."""
        return _plain(self._config)

    @property
    def sweep(self) -> str:
        """The sweep's file that was chosen; empty where none was."""
        chosen = [override.partition("=")[2] for override in self._overrides if override.startswith("sweep=")]
        return chosen[-1] if chosen else ""

    @property
    def secrets(self) -> Secrets:
        """What of the config must not be written down."""
        raw = OmegaConf.to_container(self._config, resolve=False)
        return Secrets.of(raw, self.config, os.environ)

    @property
    def arguments(self) -> list[str]:
        """A command line that composes the same, but for sections that a program gave as a whole."""
        primary = [] if self._primary == PRIMARY else [f"--config-name={self._primary}"]
        return [*primary, *self._overrides, *(f"{name}{FROM_PROGRAM}" for name in self._sections)]

    def axes(self) -> Axes:
        """The sweep's axes as lists of values; only `gpus` may also be the word `auto`."""
        given = _plain(self._config)["sweep"]["axes"]
        found = {axis: _values(axis, value) for axis, value in _flat(given) if value is not None}
        return cast(Axes, found)

    def _composed(self, further: Sequence[str], chosen: Mapping[str, Any]) -> DictConfig:
        config = compose(self._primary, [*self._overrides, *further])
        with open_dict(config):
            for name, section in self._sections.items():
                if name not in chosen:
                    config[name] = dict(section)
        return config

    def variant(self, config_axes: Mapping[str, Any]) -> dict[str, Any]:
        """The resolved config with these config keys and config groups set; MistakesError for those it has not."""
        choices = {axis: value for axis, value in config_axes.items() if axis in self.groups.names}
        chosen = [f"{group}={choice}" for group, choice in choices.items()]
        for group, choice in choices.items():
            options = self.groups.options(group)
            if choice not in options:
                raise MistakesError([unknown(f"choice on axis {group}:", choice, options)])
        try:
            config = self._composed(chosen, choices) if chosen else self._config.copy()
        except _WRONG as error:
            raise MistakesError([f"with {', '.join(chosen)}: {_one_line(error)}"]) from None
        keys = {axis: value for axis, value in config_axes.items() if axis not in choices}
        for key, value in with_alternatives(keys).items():
            try:
                OmegaConf.update(config, key, value)
            except OmegaConfBaseException:
                dotted = (each for each in _dotted_keys(_plain(self._config)) if not each.startswith("sweep."))
                known = [*dotted, *self.groups.names, *STANDARD_AXES]
                raise MistakesError([f"axis {key!r} is no config key or group{nearest(key, known)}"]) from None
        return _plain(config)


def _plain(config: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


def _flat(axes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """An axis written as nested keys (`+sweep.axes.optimizer.lr=[.1,.2]`) is one under its dotted name."""
    for key, value in axes.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _values(axis: str, given: Any) -> Any:
    if isinstance(given, list):
        return given
    if axis == "gpus" and given == "auto":
        return given
    if not isinstance(given, str):
        return [given]
    try:
        override = OverridesParser.create().parse_override(f"{axis}={given}")
    except HydraException as error:
        raise MistakesError([f"sweep.axes.{axis}={given!r}: {_one_line(error)}"]) from None
    if not override.is_sweep_override():
        return _as_list(override.value())
    return list(itertools.islice(override.sweep_iterator(), MOST_TRIALS + 1))  # 'range(0,1e12)' is longer than memory


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _mistakes(primary: str, overrides: Sequence[str], groups: Groups) -> Iterator[tuple[str, str]]:
    """Add the overrides one by one, and tell each that does not fit, as (override, mistake)."""
    fitting: list[str] = []
    for override in sorted(overrides, key=lambda override: _precedence(override, groups)):
        try:
            _plain(compose(primary, [*fitting, override]))
            fitting.append(override)
        except _WRONG as error:
            yield override, _explained(override, error, primary, fitting, groups)


def _precedence(override: str, groups: Groups) -> int:
    """The search path before groups, and groups before keys: what there is depends on what came before."""
    if is_search_path(override):
        return 0
    return 1 if override.partition("=")[0].lstrip("+~") in groups.names else 2


def _explained(override: str, error: Exception, primary: str, fitting: Sequence[str], groups: Groups) -> str:
    key, equals, value = override.lstrip("+~").partition("=")
    if not equals and not override.startswith("~"):
        return f"{override!r} is no KEY=VALUE; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"
    if key.startswith("sweep/") and not groups.options(key):
        return f"sweep={key.removeprefix('sweep/')} has no scales: leave out scale={value}"
    options = groups.options(key) if key in groups.names or "/" in key else []
    if options and value not in options:
        return unknown(f"{key} in {override!r}:", value, options)
    if "Could not override" in str(error):
        known = [*_dotted_keys(_plain(compose(primary, list(fitting)))), *groups.names]
        return f"{override!r}: there is no key {key!r}{nearest(key, known)}; +{key}=… adds one"
    return f"{override!r}: {_one_line(error)}{_quoting(override, error)}"


def _quoting(override: str, error: Exception) -> str:
    """What helps against Hydra's grammar in a value that it took apart."""
    key, _, value = override.partition("=")
    mark = "'" if "'" not in value else r"\""
    quoted = f'quote it twice: "{key}={mark}{value}{mark}"'
    if "requires --multirun" in str(error):
        return f"; for the values of an axis {quoted}"
    taken_apart = isinstance(error, OverrideParseException) and value[:1] not in ("'", '"', "[", "{")
    return f"; if this is one text, {quoted}" if taken_apart else ""


def _one_line(error: BaseException) -> str:
    """With its reason, where Hydra says only what failed."""
    told = re.sub(r"\s+", " ", str(error)).strip().partition(" Config search path:")[0]
    told = re.sub(r" full_key: ?(\S*?) object_type=\S+$", lambda found: f" ({found[1]})" if found[1] else "", told)
    why = _one_line(error.__cause__) if error.__cause__ else ""
    return f"{told}: {why}" if why and why not in told else told


def _dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted_keys(value, f"{prefix}{key}.")
