"""The command line: arguments become overrides, a checked sweep, and a call of the function for its mode.

Hydra itself answers `--help`, `--cfg` and the like, and makes its output folder and the sweeps of a multirun. The
config is composed and checked before that, so that all errors are reported together and a refusal leaves nothing.
"""

from __future__ import annotations

import csv
import io
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

from orchestrator.cli.modes import MODES, WITHOUT_SWEEP
from orchestrator.cli.recorded import with_recorded
from orchestrator.config.compose import Composition, expanded, is_continuous, is_known, meaning, rewritten
from orchestrator.config.config_files import KEY, PRIMARY, config_dir
from orchestrator.config.hydra_private import checking, flag_names, flags_parser, overrides_of_this_job
from orchestrator.config.hydra_section import check_hydra, saved_without_secrets
from orchestrator.config.overrides import key_of
from orchestrator.config.request import RUNNING
from orchestrator.config.search_path import CHECKS, folders, initialised, is_search_path, with_primary, with_search_path
from orchestrator.run.interrupt import INTERRUPTED
from orchestrator.run.provenance import versions
from orchestrator.store.layout import Layout
from sweeps.errors import ConfigError
from sweeps.printable import printable

if TYPE_CHECKING:
    from orchestrator.config.setup import CheckedSweep
    from orchestrator.store.results import Results

MANY = 10
"""Above this many sweeps a message announces the check, which takes some tenths of a second for each."""

Compositions = dict[frozenset[str], Composition]
"""Compositions by the meaning of each sweep's overrides."""


def check_each(overrides: Sequence[str]) -> Compositions:
    """Compose and check the sweeps of a multirun. Raises ConfigError with all errors, also if two would share a folder.

    Values that use the job's number (`${hydra:job.num}`) are known only when the job runs.
    """
    from orchestrator.cli.checked_sweep import checked, composed  # imported here so that --help stays quick

    found: Compositions = {}
    if any("${hydra:" in override for override in overrides):
        return found
    errors: list[str] = []
    fingerprints: dict[str, tuple[list[str], Any]] = {}
    sweeps = expanded(overrides)
    if len(sweeps) > MANY:
        print(f"checking {len(sweeps)} sweeps before the first one starts", file=sys.stderr)
    for sweep in sweeps:
        own = [each for each in sweep if each not in overrides]
        whose = f"with {' '.join(own)}: " if own else ""
        try:
            composition = composed(sweep)
            configured = checked(composition)
        except ConfigError as error:
            errors += [f"{whose}{message}" for message in error.errors]
            continue
        found[meaning(sweep)] = composition
        request = configured.request
        place = request.store or str(request.results_dir)
        now = configured.grid.fingerprint()
        first, before = fingerprints.setdefault(place, (own, now))
        if request.mode in RUNNING and not request.allow_changed and now != before:
            errors.append(
                f"{whose}its results would go to {place}, as those with {' '.join(first)} do, but the configs differ:"
                " give each sweep a folder, for example with 'results_dir=results/${hydra:job.num}'"
            )
    if errors:
        raise ConfigError(errors)
    return found


BEST = {"max": max, "min": min}


def objective_of(results_dir: Path, section: Mapping[str, Any]) -> float | None:
    """Return the best value of any ok cell in the column `section["column"]` of `summary.csv`, for a Hydra sweeper.

    Return None without a column or a value: Hydra's Optuna sweeper takes that as a failure (and stops with an error at
    a NaN). Raises KeyError, listing the columns, if the table has no such column.
    """
    column = section["column"]
    if column is None:
        return None
    path = Layout(results_dir).table("summary.csv")
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and column not in rows[0]:
        raise KeyError(f"sweeper.objective.column={column!r} is not one of {', '.join(rows[0])}")
    figures = [float(row[column]) for row in rows if row["status"] == "ok" and row[column]]
    return BEST[section["best"]](figures) if figures else None


WRONG_REQUEST = 2
"""The exit status of a refused request; nothing was started."""


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line (without the program's name) and return the exit status."""
    if "--version" in arguments:  # Hydra's own answer is Hydra's version
        print(versions())
        return 0
    if errors := list(_dash_errors(arguments)):
        return _wrong(ConfigError(errors))
    try:
        completed = with_recorded(rewritten(arguments))
        if completed.remark:
            print(printable(f"note: {completed.remark}"), file=sys.stderr)
        try:
            return _answer(completed.arguments, completed.results)
        except ConfigError:
            if not (problem := completed.why_not_composed()):
                raise
            note = f"note: the config in the journal cannot be composed here, defaults are used: {problem}"
            print(printable(note), file=sys.stderr)
            return _answer(list(completed.own), completed.results)
    except ConfigError as error:
        return _wrong(error)


def _answer(given: list[str], results: Results | None) -> int:
    """Carry out a command line in Hydra's grammar; `results` are those that it asks about, if they were read."""
    flags = flags_parser().parse_intermixed_args(given)
    # Flags go first: Hydra's parser rejects a flag between overrides (`sweep=mine -cd conf mode=plan`).
    for override in flags.overrides:
        given.remove(override)
    given += flags.overrides
    if errors := list(_place_errors(flags)):
        raise ConfigError(errors)
    only_shows = flags.help or flags.hydra_help or flags.shell_completion or flags.info is not None
    if flags.experimental_rerun:
        raise ConfigError(["--experimental-rerun would unpickle a file, which can run any code"])
    with with_primary(flags.config_name or PRIMARY, flags.config_dir):
        overrides = with_search_path(flags.overrides, flags.config_dir)
        if (only_shows or flags.cfg) and folders(overrides):  # Hydra opens log files also to show something
            with initialised():
                Composition(overrides)  # reports all errors, where Hydra reports the first one
        if only_shows:
            return _through_hydra(given)
        return _run(given, flags, overrides, results)


def _run(given: Sequence[str], flags: Namespace, overrides: Sequence[str], results: Results | None) -> int:
    """Run a command line that Hydra does not answer by itself. Raises ConfigError if the request is invalid."""
    if flags.multirun:
        return _run_several(given, overrides)
    if flags.cfg:
        return _show_config(given, overrides)
    from orchestrator.cli.checked_sweep import checked, composed

    # Check before Hydra runs: it creates its output folder first and stops at the first error.
    with initialised():
        composition = composed(overrides)
        if alone := WITHOUT_SWEEP.get(composition.config["mode"]):
            return alone(composition)
        configured = checked(composition)
        if configured.request.mode not in RUNNING:
            return MODES[configured.request.mode](replace(configured, results=results))
        check_hydra(overrides, results_dir=configured.request.results_dir)
    return _through_hydra(given, lambda: configured)


def _dash_errors(arguments: Sequence[str]) -> Iterator[str]:
    """Yield an error for each key written as an option (`--key`); only Hydra's own flags take dashes."""
    from orchestrator.config.suggestions import meant

    flags = flag_names()
    for place, argument in enumerate(arguments):
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        name, equals, value = argument.partition("=")
        if name.startswith("--") and not any(flag.startswith(name) for flag in flags):
            key = name.lstrip("-").replace("-", "_")
            is_value = not equals and following and not following.startswith("-") and "=" not in following
            value = following if is_value else value
            written = f"{argument} {following}" if is_value else argument
            instead = meant(key, value) or f"{key}={value or 'VALUE'}"
            yield f"{written!r}: write keys without dashes: {instead}"


def _place_errors(flags: Namespace) -> Iterator[str]:
    """Yield an error for each of Hydra's flags that would look for configs in the wrong place."""
    if flags.config_path:
        hint = f"would take the place of the shipped configs; -cd {flags.config_path} adds a folder of yours to them"
        yield f"--config-path={flags.config_path} {hint}"
    elif flags.config_name not in (None, PRIMARY):
        file = Path(flags.config_dir or "FOLDER", f"{flags.config_name.removesuffix('.yaml')}.yaml")
        if not (flags.config_dir and file.is_file()):
            hint = f"there is no such primary config; one of your own is {file}, with -cd {file.parent}"
            yield f"--config-name={flags.config_name}: {hint}; a sweep is FOLDER/sweep/NAME.yaml: -cd FOLDER sweep=NAME"


def _show_config(arguments: Sequence[str], overrides: Sequence[str]) -> int:
    """Let Hydra show the config; compose it here as well, but only to report errors."""
    with redirect_stderr(io.StringIO()) as errors:
        status = _through_hydra(arguments)
    if status:
        from orchestrator.cli.checked_sweep import composed

        with initialised():
            composed(overrides)
    sys.stderr.write(printable(errors.getvalue()))
    return status


def _run_several(arguments: Sequence[str], overrides: Sequence[str]) -> int:
    """Run Hydra's multirun after checking that it runs no untrusted code and that no sweep is refused.

    Each sweep is checked again before it starts, because code and data may have changed by then.
    """
    found: Compositions = {}
    with initialised():
        config = check_hydra([each for each in overrides if key_of(each).startswith(("hydra", KEY))])
        own = [each for each in overrides if is_search_path(each) or not key_of(each).startswith("hydra")]
        if folders(overrides):  # files of the user's folder, which each sweep may choose
            for sweep in expanded([each for each in own if "${hydra:" not in each and not is_continuous(each)]):
                check_hydra(sweep)
        if is_known(config):
            found = check_each(own)
    return _through_hydra(arguments, lambda: _sweep_of_this_job(found))


def _sweep_of_this_job(known: Compositions) -> CheckedSweep:
    """Return the sweep that Hydra is running now; reuse its composition if it is known."""
    from orchestrator.cli.checked_sweep import checked

    of_config, of_hydra = overrides_of_this_job()
    own = [*of_config, *filter(is_search_path, of_hydra)]
    return checked(known.get(meaning(own)) or Composition(own))


def _through_hydra(
    arguments: Sequence[str], sweep_of_job: Callable[[], CheckedSweep] = lambda: _sweep_of_this_job({})
) -> int:
    """Run Hydra's own main (flags, output folder, multirun) and return the worst exit status of its sweeps.

    `sweep_of_job` returns the sweep of the current job.
    """
    statuses = [0]
    unexpected: list[Exception] = []

    def task(config: DictConfig) -> float | None:
        figure = None  # stays None for a refused sweep: the results in its folder belong to another one
        try:
            sweep = sweep_of_job()
            statuses.append(MODES[sweep.request.mode](sweep))
            figure = objective_of(sweep.request.results_dir, sweep.request.returned)
        except ConfigError as error:
            statuses.append(_wrong(error))
        except Exception as error:  # Hydra would cut its traceback short
            unexpected.append(error)
        if statuses[-1] in INTERRUPTED:
            raise SystemExit(statuses[-1])  # in a multirun, Ctrl-C ends the sweeps still to come as well
        return figure

    sys.argv = [sys.argv[0], *arguments]
    try:
        with saved_without_secrets(), checking(CHECKS):
            hydra.main(config_path=str(config_dir()), config_name=PRIMARY, version_base="1.3")(task)()
    except ValueError as error:  # from logging.config, since `task` raises none
        raise ConfigError([f"hydra.hydra_logging or hydra.job_logging: {error}"]) from error
    except SystemExit as left:  # Hydra has already printed what does not compose
        return statuses[-1] if statuses[-1] in INTERRUPTED else (WRONG_REQUEST if left.code else 0)
    if unexpected:
        raise unexpected[0]
    return max(statuses)


def _wrong(error: ConfigError) -> int:
    print("\n".join(error.errors), file=sys.stderr)
    return WRONG_REQUEST
