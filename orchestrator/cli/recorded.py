"""The config that a folder of results was made with, from the command line in its journal.

A mode that only reads can be asked for by the folder alone. Nothing that the journal names is trusted: it may come from
somebody else. Settings of a report that differ from the sweep's own are found here, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.compose import Composition
from orchestrator.config.hydra_private import flags_parser
from orchestrator.config.overrides import FROM_PROGRAM, literal
from orchestrator.config.request import READING
from orchestrator.config.schema import value_at
from orchestrator.config.search_path import folder_of, initialised, is_search_path, with_primary, with_search_path
from orchestrator.store.history import History
from orchestrator.store.layout import Layout, results_below
from orchestrator.store.results import read_results
from sweeps.errors import ConfigError
from sweeps.printable import printable

WHAT_IF_KEYS = (
    *(f"report.{key}" for key in ("objective", "metric", "better", "margin", "price_per_gpu_hour", "currency")),
    "sweep.baseline",
    "sweep.scaling",
    "trainable.target_accuracy",
)
"""Settings of a report that can be asked for after the sweep; they change its tables, and no trial."""

_PLACES = ("results_dir", "sweep.name")
_NOT_RECORDED = ("mode", *_PLACES, "local_results_dir", "trusted_modules", "rerun", "allow_changed", "compare.with")
_OF_TRAINABLE = ("reference_batch_size", "target_accuracy")
"""Settings of a trainable that a report uses."""


def with_recorded(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with those of the journal, if they ask for a report (…) of a folder and name no sweep.

    `results_dir` may be the folder of one sweep, or of several with `sweep.name`. Raises ConfigError without results.
    """
    given = {key: value for key, equals, value in (each.partition("=") for each in arguments) if equals}
    own_primary = any(each.startswith(("-cn", "--config-name", "-m", "--multirun")) for each in arguments)
    if given.get("mode") not in READING or "sweep" in given or own_primary:
        return list(arguments)
    place = given.get("results_dir", "results").strip("'\"")
    if "://" in place:
        return list(arguments)
    folder = Path(place).expanduser()
    folder = folder / given["sweep.name"].strip("'\"") if "sweep.name" in given else folder
    found = results_below(folder)
    if len(found) == 1:
        folder = Path(found[0])
    if not Layout(folder).journal.is_file():
        if "sweep.name" in given:  # reported where the results are read
            return list(arguments)
        which = f"choose one: {', '.join(f'results_dir={each}' for each in found)}" if found else "there are no results"
        raise ConfigError([f"mode={given['mode']} in {folder}: {which}"])
    folder = folder.absolute()
    where = [f"results_dir={literal(str(folder.parent))}", f"sweep.name={literal(folder.name)}"]
    own = [each for each in arguments if each.partition("=")[0] not in _PLACES]
    keys = {_key(each) for each in own}
    recorded = [each for each in recorded_arguments(read_results(Layout(folder)).history) if _key(each) not in keys]
    if problem := _problem(recorded):
        note = f"note: the config of {folder} cannot be composed here, defaults are used: {problem}"
        print(printable(note), file=sys.stderr)
        recorded = []
    return [*recorded, *own, *where]


def recorded_arguments(history: History) -> list[str]:
    """Return the command line of the sweep's last driver, without what only that run needed and without trust."""
    arguments = history.driver.get("arguments")
    given = [each for each in arguments if isinstance(each, str)] if isinstance(arguments, list) else []
    program = [each.removesuffix(FROM_PROGRAM) for each in given if each.endswith(FROM_PROGRAM)]
    kept = [
        each
        for each in given
        if not each.endswith(FROM_PROGRAM)
        and _key(each) not in _NOT_RECORDED
        and (not _key(each).startswith("hydra") or _is_folders(each))
    ]
    if "trainable" in program:
        trainable = value_at(history.fingerprint or {}, "config.trainable") or {}
        kept += [f"++trainable.{key}={literal(trainable[key])}" for key in _OF_TRAINABLE if key in trainable]
    return kept


def what_if(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the settings of a report in which this config differs from the sweep's own; empty if there are none.

    It is the name of a folder. A journal without a command line has no settings to differ from.
    """
    if not Layout(folder).journal.is_file():
        return ""
    recorded = [each for each in recorded_arguments(read_results(Layout(folder)).history) if not each.startswith("--")]
    if not recorded:
        return ""
    try:
        before = Composition(with_search_path(recorded, None)).config
    except ConfigError:  # of another version, or from a folder of configs that is not here
        return ""
    changes = [
        f"{key}={value_at(config, key)}" for key in WHAT_IF_KEYS if value_at(config, key) != value_at(before, key)
    ]
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(changes))[:120]


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _is_folders(override: str) -> bool:
    """Return whether an override is a search path of folders only: a package (`pkg://…`) would be imported."""
    places = override.partition("=")[2].strip("[]").split(",")
    return is_search_path(override) and all(folder_of(place) for place in places)


def _problem(arguments: Sequence[str]) -> str:
    """Return why the arguments do not compose; empty if they do."""
    flags = flags_parser().parse_intermixed_args(list(arguments))
    try:
        with with_primary(flags.config_name or "config", flags.config_dir), initialised():
            Composition(with_search_path(flags.overrides, flags.config_dir))
    except (ConfigError, OSError) as error:
        return str(error).partition("\n")[0]
    return ""
