"""Uses of private names of Hydra 1.3 (hydra-core >=1.3.8,<1.4), each checked by a test; and its errors in one line."""

from __future__ import annotations

import itertools
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import hydra._internal.defaults_list as hydra_defaults
import hydra._internal.hydra as hydra_app
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep, Sweep
from hydra.core.plugins import Plugins
from hydra.core.utils import configure_log
from hydra.core.utils import run_job as run_hydra_job
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.base import Container, Metadata

from orchestrator.config.yaml_private import LoadingOnce, copied_metadata, replaced
from orchestrator.store.secrets import Secrets

PLAIN_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that runs every combination."""

OWN_PLUGINS = frozenset({PLAIN_SWEEPER, "hydra._internal.core_plugins.basic_launcher.BasicLauncher"})
"""Hydra's own launchers and sweepers."""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A config file, and what it adds to the config that Hydra composes."""

    source: str
    """Where Hydra found it: `file://FOLDER`, `pkg://PACKAGE`, or `structured://` for Hydra's ConfigStore."""
    name: str  # its path in the source: `sweep/batch_scaling`
    package: str  # where its content goes; empty for the top level
    config: Container  # what it adds at the top level
    is_primary: bool
    is_typed: bool  # whether the command line names the file's group and this package

    @property
    def content(self) -> Any:
        """The content at the top level, as plain values with unresolved interpolations."""
        return OmegaConf.to_container(self.config, resolve=False)

    @property
    def path(self) -> Path | None:
        """The file; None if it is not in a folder."""
        scheme, _, folder = self.source.partition("://")
        return Path(folder, f"{self.name.removesuffix('.yaml')}.yaml") if scheme == "file" else None


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The checks that every config passes; each raises ConfigError."""

    file: Callable[[ConfigFile], None]  # checks what one file adds to a config, before it becomes part of it
    hydra: Callable[[DictConfig, Sequence[str]], None]
    """Checks Hydra's own part of a composed config; the texts are the overrides that it was composed with."""
    folders: Sequence[Path] = ()  # further folders of configs, after all others


class _CheckingLoader(ConfigLoaderImpl):
    """Hydra's loader of all configs, in every job and for `--help`; it checks each file and each composed config."""

    def __init__(self, config_search_path: ConfigSearchPath, checks: Checks) -> None:
        for folder in checks.folders:
            last = SearchPathQuery(provider="schema")  # Hydra needs this one to stay last
            config_search_path.prepend(provider="shipped", path=f"file://{folder}", anchor=last)
        super().__init__(config_search_path)
        self._checks = checks
        self._typed: set[str] = set()

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *given: Any, **options: Any
    ) -> DictConfig:
        try:
            config = super().load_configuration(config_name, overrides, *given, **options)
        # Of OmegaConf, where a mapping is merged into null: hydra.sweeper.params={a:1}; of Hydra: trainable=[{a:1}].
        except (AttributeError, TypeError) as error:
            raise HydraException(str(error)) from error
        self._checks.hydra(config.hydra, overrides)
        return config

    def _process_config_searchpath(self, config_name: str | None, parsed_overrides: list[Override], repo: Any) -> None:
        self._typed = {override.get_key_element().lstrip("+~") for override in parsed_overrides}
        # Hydra imports the modules on the search path (`pkg://module`) before it reads any other file.
        primary = repo.load_config(config_path=config_name) if config_name else None
        if primary is not None and "hydra.searchpath" not in self._typed:
            self._check(primary, ResultDefault(config_path=config_name, primary=True))
        super()._process_config_searchpath(config_name, parsed_overrides, repo)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        self._check(loaded, default)
        return loaded

    def _check(self, loaded: ConfigResult, default: ResultDefault) -> None:
        package = default.package if default.package is not None else loaded.header["package"]
        package = "" if package in (None, "_global_") else str(package)
        # `hydra/job_logging=mine` and `+mine@hydra.job=x` name the package; `+mine=x` leaves it to the file.
        key = default.override_key if default.override_key in self._typed else ""
        typed_package = key.partition("@")[2] or key.replace("/", ".")
        self._checks.file(
            ConfigFile(
                source=loaded.path,
                name=str(default.config_path),
                package=package,
                config=loaded.config,
                is_primary=default.primary,
                is_typed=bool(key) and package == typed_package,
            )
        )


_HEADER_OF = ConfigSource._get_header_dict
_CHOICES_FOR = hydra_defaults._create_interpolation_map


def _choices_for(overrides: Any, defaults: list[InputDefault], *rest: Any) -> DictConfig:
    """Return the choices that interpolations in a defaults list refer to; empty if it has none."""
    # Hydra collects them for each file that it reads, which takes an eighth of the time of a composition.
    if any(default.is_interpolation() for default in defaults):
        return _CHOICES_FOR(overrides, defaults, *rest)
    return OmegaConf.create()


@contextmanager
def initialised_at(folder: Path, own: Path | None, checks: Checks) -> Iterator[None]:
    """Context with Hydra initialised for a config folder, and for `own` before it, as with Hydra's `--config-dir`."""
    # The first search for plugins in a process executes Hydra's readers again, which would undo the replacements.
    Plugins.instance()
    # A program may use Hydra itself.
    others, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with (
            replaced(hydra_app, "ConfigLoaderImpl", partial(_CheckingLoader, checks=checks)),
            # Editors on Windows begin a file with a byte-order mark.
            replaced(ConfigSource, "_get_header_dict", staticmethod(lambda text: _HEADER_OF(text.lstrip("\ufeff")))),
            replaced(Metadata, "__deepcopy__", copied_metadata),
            replaced(file_config_source, "OmegaConf", LoadingOnce),
            replaced(importlib_resources_config_source, "OmegaConf", LoadingOnce),
            replaced(hydra_defaults, "_create_interpolation_map", _choices_for),
            initialize_config_dir(str(folder), version_base="1.3", job_name="orchestrator"),
        ):
            if own is not None:  # the primary config is looked up before any override is read
                loader = cast(ConfigLoaderImpl, GlobalHydra.instance().config_loader())
                places = loader.config_search_path
                places.prepend(provider="command-line", path=f"file://{own}", anchor=SearchPathQuery(provider="schema"))
                loader.repository.initialize_sources(places)
            yield
    finally:
        GlobalHydra.instance().hydra = others


def parsed_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar. Raises HydraException."""
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader() if hydra.is_initialized() else None  # which `glob(…)` asks
    return OverridesParser.create(loader).parse_overrides(list(overrides))


def values_of_sweep(override: Override, most: int) -> list[Any]:
    """Return the plain values of `range(…)`, `choice(…)`, …, but not many more than `most`. Raises HydraException."""
    sweep = override.value()
    # Hydra lists a range to shuffle it, and 'range(0,1e12)' exhausts memory.
    if isinstance(sweep, RangeSweep) and sweep.shuffle:
        one_too_many = next(itertools.islice(sweep.range(), most, None), None)
        if one_too_many is not None:  # it may be 0
            raise HydraException(f"more than {most:,} values")
    values = list(map(Override._convert_value, itertools.islice(override.sweep_iterator(), most + 1)))
    if any(isinstance(value, Sweep | Glob) for value in values):
        raise HydraException("a value is a sweep itself")
    return values


Repository = IConfigRepository
"""The configs that Hydra finds."""


def repository(primary: str, search_path: list[str]) -> Repository:
    """Return the configs of a command line; Hydra reads the primary config, which may name further folders."""
    loader = cast(ConfigLoaderImpl, GlobalHydra.instance().config_loader())
    return loader._parse_overrides_and_create_caching_repo(primary, search_path)[1]


def names_in(group: str, configs: Repository, *, groups: bool = False) -> list[str]:
    """Return the names of the configs inside a group, or those of the `groups` there."""
    return configs.get_group_options(group, ObjectType.GROUP if groups else ObjectType.CONFIG)


def overrides_of_this_job() -> list[str]:
    """Return the overrides of the sweep that Hydra is running now: the config's, and the search path."""
    now = HydraConfig.get().overrides
    return [*now.task, *(override for override in now.hydra if "hydra.searchpath=" in override)]


def apply_override(override: str, config: DictConfig) -> None:
    """Set one key in a composed config, as composing with the override does. Raises HydraException."""
    single = parsed_overrides([override])
    loader = cast(ConfigLoaderImpl, GlobalHydra.instance().config_loader())
    loader.validate_sweep_overrides_legal(single, RunMode.RUN, from_shell=False)
    ConfigLoaderImpl._apply_overrides_to_config(single, config)


flags_parser = get_args_parser  # returns the parser of Hydra's own flags


def flag_names() -> list[str]:
    """Return all of Hydra's flags: `--cfg`, `-c`, …"""
    return [flag for action in get_args_parser()._actions for flag in action.option_strings]


def show(config_name: str, overrides: Sequence[str], flags: Namespace) -> None:
    """Print what one of Hydra's flags asks for: `--help`, `--hydra-help`, `--cfg`, `--info`, `--shell-completion`."""
    app, given = _app(), list(overrides)
    if flags.help or flags.hydra_help:
        answer = app.app_help if flags.help else app.hydra_help
        answer(config_name, get_args_parser(), Namespace(**{**vars(flags), "overrides": given}))
    elif flags.cfg:
        app.show_cfg(config_name, given, flags.cfg, flags.package, flags.resolve)
    elif flags.shell_completion:
        app.shell_completion(config_name, given)
    else:
        app.show_info(flags.info, config_name, given)


@contextmanager
def saved_without_secrets() -> Iterator[None]:
    """Context in which configs that Hydra or a sweeper plugin saves contain no secrets."""
    # Hydra writes the whole config and every override as given, and no option controls where and when.
    save = OmegaConf.save

    def save_clean(config: Any, f: Any, resolve: bool = False) -> None:
        # Interpolations stay unresolved: they may have other values in the environment of the reader.
        plain = OmegaConf.to_container(OmegaConf.create(config), resolve=False)
        save(OmegaConf.create(Secrets.of(plain, plain, os.environ).value(plain)), f)

    with replaced(OmegaConf, "save", staticmethod(save_clean)):
        yield


@saved_without_secrets()
def run_job(config: DictConfig, task: TaskFunction) -> None:
    """Run a task as Hydra does, with a config that was composed before: its folder, logging and callbacks."""
    hydra = GlobalHydra.instance()
    config.hydra.mode = RunMode.RUN
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    callbacks = Callbacks(config)
    name = config.hydra.job.config_name
    callbacks.on_run_start(config=config, config_name=name)
    result = run_hydra_job(
        hydra_context=HydraContext(config_loader=hydra.config_loader(), callbacks=callbacks),
        task_function=task,
        config=config,
        job_dir_key="hydra.run.dir",
        job_subdir_key=None,
    )
    callbacks.on_run_end(config=config, config_name=name, job_return=result)


@saved_without_secrets()
def run_jobs(config_name: str, overrides: Sequence[str], task: TaskFunction) -> None:
    """Run a task for each job of a multirun; the sweeper in the config chooses the jobs."""
    _app().multirun(config_name, task, [*overrides, "hydra.mode=MULTIRUN"])


def _app() -> hydra_app.Hydra:
    app = GlobalHydra.instance().hydra
    assert app is not None
    return app


_LONGEST_TOLD = 1000  # what Hydra says is cut here: it may repeat a whole config


def error_line(error: BaseException) -> str:
    """Return the error in one line, with its cause if Hydra names only what failed."""
    text = re.sub(r"\s+", " ", str(error)).strip().partition(" Config search path:")[0]
    text = re.sub(r" See https://hydra\.cc/\S+ for details|: None$", "", text)
    text = re.sub(r" full_key: ?(\S*?) object_type=\S+$", lambda match: f" ({match[1]})" if match[1] else "", text)
    text = re.sub(r"maximum recursion depth exceeded.*", "values are nested too deep", text)
    # Hydra's own error often says only that a call failed.
    why = error_line(error.__cause__) if error.__cause__ else ""
    line = f"{text}: {why}" if why and why not in text else text
    return line if len(line) <= _LONGEST_TOLD else f"{line[:_LONGEST_TOLD]} …"
