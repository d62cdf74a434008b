"""The config that a folder of results was made with, from the command line in its journal.

A mode that only reads can be asked for by the folder alone. The journal may come from a stranger, so its command line
is data: only settings of a report count, as plain values. No flag, no folder of configs and no interpolation does.
Settings of a report that differ from the sweep's own are found here, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.compose import Composition, is_data
from orchestrator.config.config_files import PRIMARY
from orchestrator.config.hydra_private import flags_parser
from orchestrator.config.overrides import FROM_PROGRAM, key_of, literal
from orchestrator.config.request import READING
from orchestrator.config.schema import value_at
from orchestrator.config.search_path import initialised, with_primary, with_search_path
from orchestrator.store.history import History
from orchestrator.store.layout import Layout, results_below
from orchestrator.store.results import Results, read_results
from sweeps.errors import ConfigError

WHAT_IF_KEYS = (
    *(f"report.{key}" for key in ("objective", "metric", "target", "margin", "price_per_gpu_hour", "currency")),
    "sweep.baseline",
    "sweep.scaling",
)
"""Settings of a report that can be asked for after the sweep; they change its tables, and no trial."""

_PLACES = ("results_dir", "sweep.name")
_SECTIONS = ("budget", "claims", "predict", "report", "sweep")
"""Sections whose recorded values count."""
_GROUPS = ("data", "sweep", "trainable")
"""Groups whose recorded choices count; their files are ours, or in a folder that the user names."""
_CHOICE = re.compile(r"\w[\w-]*(/\w[\w-]*)*")
_MOST_ARGUMENTS = 500
_REFERENCE = "trainable.reference_batch_size"
"""The setting of a trainable that a report uses."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command line, and the part of the one in the journal that it leaves out."""

    own: Sequence[str]
    recorded: Sequence[str] = ()
    results: Results | None = None
    """What was read to complete the command line."""
    remark: str = ""
    """What the user may add to the command line."""

    @property
    def arguments(self) -> list[str]:
        """The whole command line; what the user gives comes last."""
        return [*self.recorded, *self.own]

    def why_not_composed(self) -> str:
        """Return why the recorded part does not compose by itself; empty if it does."""
        folder = flags_parser().parse_intermixed_args(list(self.own)).config_dir
        try:
            with with_primary(PRIMARY, folder), initialised():
                Composition(with_search_path(self.recorded, folder))
        except (ConfigError, OSError) as error:
            return str(error).partition("\n")[0]
        return ""


def with_recorded(arguments: Sequence[str]) -> Completed:
    """Complete the arguments from the journal, if they ask for a report (…) of a folder and name no sweep.

    `results_dir` may be the folder of one sweep, or of several with `sweep.name`. Raises ConfigError without results.
    """
    given = {key: value for key, equals, value in (each.partition("=") for each in arguments) if equals}
    own_primary = any(each.startswith(("-cn", "--config-name", "-m", "--multirun")) for each in arguments)
    if given.get("mode") not in READING or "sweep" in given or own_primary:
        return Completed(own=arguments)
    place = given.get("results_dir", "results").strip("'\"")
    if "://" in place:
        return Completed(own=arguments)
    folder = Path(place).expanduser()
    folder = folder / given["sweep.name"].strip("'\"") if "sweep.name" in given else folder
    found = results_below(folder)
    if len(found) == 1:
        folder = Path(found[0])
    if not Layout(folder).journal.is_file():
        if "sweep.name" in given:  # reported where the results are read
            return Completed(own=arguments)
        which = f"choose one: {', '.join(f'results_dir={each}' for each in found)}" if found else "there are no results"
        raise ConfigError([f"mode={given['mode']} in {folder}: {which}"])
    folder = folder.absolute()
    where = [f"results_dir={literal(str(folder.parent))}", f"sweep.name={literal(folder.name)}"]
    own = [each for each in arguments if each.partition("=")[0] not in _PLACES]
    keys = {key_of(each) for each in own}
    results = read_results(Layout(folder))
    recorded = [each for each in recorded_arguments(results.history) if key_of(each) not in keys]
    places = _folders_in(results.history) if not any(each.startswith(("-cd", "--config-dir")) for each in own) else []
    remark = f"configs in {places[0]} are not read for this report; to use them, add -cd FOLDER" if places else ""
    return Completed(own=[*own, *where], recorded=recorded, results=results, remark=remark)


def recorded_arguments(history: History) -> list[str]:
    """Return the command line of the sweep's last driver, without what only that run needed and without trust."""
    given = _arguments_in(history)
    kept = [argument for argument in given if _is_setting(argument)]
    if f"trainable{FROM_PROGRAM}" in given:
        reference = value_at(history.fingerprint or {}, f"config.{_REFERENCE}")
        kept += [] if reference is None else [f"++{_REFERENCE}={literal(reference)}"]
    return [argument for argument in kept if is_data(argument)]


def _arguments_in(history: History) -> list[str]:
    """Return the recorded command line; empty if it is none."""
    arguments = history.driver.get("arguments")
    if not isinstance(arguments, list) or len(arguments) > _MOST_ARGUMENTS:
        return []
    return [argument for argument in arguments if isinstance(argument, str)]


def _folders_in(history: History) -> list[str]:
    """Return the user's config folders on the recorded command line."""
    options = [argument.partition("=") for argument in _arguments_in(history)]
    return [value for key, _, value in options if key in ("--config-dir", "hydra.searchpath")]


def _is_setting(argument: str) -> bool:
    """Return whether an argument sets something that a report uses."""
    key, equals, value = argument.lstrip("+").partition("=")
    section, _, name = key.partition(".")
    if not equals or key in _PLACES or argument.endswith(FROM_PROGRAM):
        return False
    if key in _GROUPS or key.startswith("sweep/"):
        return bool(_CHOICE.fullmatch(key) and _CHOICE.fullmatch(value))
    return bool(name) and (section in _SECTIONS or key == _REFERENCE)


def what_if(history: History, arguments: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return the settings of a report in which this config differs from the sweep's own; empty if there are none.

    It is the name of a folder. `arguments` compose the config. A journal without a command line has no settings to
    differ from.
    """
    recorded = recorded_arguments(history)
    given = {argument for argument in arguments if _is_setting(argument)}
    differing = {key_of(each) for each in given.symmetric_difference(recorded)}
    if not recorded or all(key.startswith("report.") and key not in WHAT_IF_KEYS for key in differing):
        return ""
    try:
        before = Composition(with_search_path(recorded, None)).config
    except ConfigError:  # of another version, or from a folder of configs that is not here
        return ""
    changes = [
        f"{key}={value_at(config, key)}" for key in WHAT_IF_KEYS if value_at(config, key) != value_at(before, key)
    ]
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(changes))[:120]
