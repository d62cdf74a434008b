"""The command line: arguments become overrides, a checked sweep, and a call of the function for its mode.

The config is composed once and checked before anything starts. Hydra then runs the job with that config: it makes its
output folder, and the sweeps of a multirun.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from orchestrator.cli.answers import check_command, check_words
from orchestrator.cli.applied_overrides import applicable, check_applied
from orchestrator.cli.modes import MODES, WITHOUT_SWEEP
from orchestrator.cli.recorded_arguments import with_recorded
from orchestrator.config.compose import WRONG, Composition, initialised
from orchestrator.config.hydra_private import (
    error_line,
    flag_names,
    flags_parser,
    overrides_of_this_job,
    parsed_overrides,
    run_job,
    run_jobs,
    show,
)
from orchestrator.config.key_checks import structure_errors, value_errors
from orchestrator.config.overrides import key_of, rewritten, with_command, with_search_path
from orchestrator.config.request import RUNNING
from orchestrator.config.schema import may_be_axis
from orchestrator.config.search_path import PRIMARY, primary, with_primary
from orchestrator.config.settings import SweeperObjectiveSection
from orchestrator.config.synonyms import copyable, given_in
from orchestrator.run.interrupt import INTERRUPTED
from orchestrator.store.results_folder import ResultsFolder
from sweeps.errors import ConfigError
from sweeps.printable import printable
from sweeps.sweep import MOST_TRIALS

if TYPE_CHECKING:
    from orchestrator.config.checked_sweep import CheckedSweep
    from orchestrator.store.results import Results

WRONG_REQUEST = 2  # the exit status of a refused request; nothing was started
MANY = 10  # above this many sweeps a message announces the check, which takes some tenths of a second for each


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line (without the program's name) and return the exit status."""
    # The words after `--` are those of the user's command: a `--resume` among them is not ours.
    own = list(itertools.takewhile("--".__ne__, arguments))
    if "--version" in own:  # Hydra's own answer is Hydra's version
        from orchestrator.run.provenance import versions  # imported here so that --help stays quick

        print(versions())
        return 0
    try:
        flags = flags_parser().parse_intermixed_args(without_dashes(own)[0])
        check_words(flags.overrides)
        if errors := list(_flag_errors(flags)):
            raise ConfigError(errors)
        with given_in(flags.overrides):
            check_command(own, flags, arguments[len(own) + 1 :])
        arguments, options = without_dashes(with_command(arguments))
        with given_in(overrides_in(arguments)):
            if options:
                raise ConfigError(_dash_errors(rewritten(arguments), options))
            return _completed(rewritten(arguments))
    except ConfigError as error:
        return _wrong(error)


def overrides_in(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without Hydra's flags and their values; options are overrides."""
    overrides: list[str] = flags_parser().parse_intermixed_args(without_dashes(arguments)[0]).overrides
    return overrides


def _completed(arguments: Sequence[str]) -> int:
    """Carry out a command line in Hydra's grammar, which may name a report by its folder alone."""
    completed = with_recorded(arguments)
    if completed.remark:
        print(printable(f"note: {completed.remark}"), file=sys.stderr)
    try:
        return _answer(completed.arguments, completed.results)
    except ConfigError:
        if not (problem := completed.why_not_composed()):
            raise
        note = f"note: the config in the journal cannot be composed here, defaults are used: {problem}"
        print(printable(note), file=sys.stderr)
        return _answer(completed.own, completed.results)


def _answer(arguments: Sequence[str], results: Results | None) -> int:
    """Carry out a command line in Hydra's grammar; `results` are those that it asks about, if they were read."""
    flags = flags_parser().parse_intermixed_args(list(arguments))
    overrides = with_search_path(flags.overrides, flags.config_dir)
    with with_primary(flags.config_name or PRIMARY, flags.config_dir if flags.config_name else None), initialised():
        if flags.help or flags.hydra_help or flags.cfg or flags.shell_completion or flags.info is not None:
            return _show(flags, overrides)
        if not (flags.multirun or is_multirun(overrides)):
            return _run(overrides, results)
        # Each sweep is checked again before it starts: code and data may have changed by then.
        if _is_known(overrides):
            check_sweeps(overrides)
            modes = [override.partition("=")[2] for override in overrides if key_of(override) == "mode"]
            # Hydra would make a folder for each.
            if modes and modes[-1] in {**MODES, **WITHOUT_SWEEP} and modes[-1] not in RUNNING:
                return max(_run(sweep, None) for sweep in _expanded(overrides))
        with _Jobs() as jobs:
            run_jobs(primary(), overrides, jobs)
        return jobs.status


def without_dashes(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments with options (`--key 1`, `-k`) as overrides, and {override: as written} of those.

    Only Hydra's own flags take dashes.
    """
    plain: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-") or _is_flag(argument, rest):
            plain.append(argument)
            continue
        name, equals, value = argument.partition("=")
        values = [value] if equals else _values_behind(rest)
        del rest[: 0 if equals else len(values)]
        key = name.lstrip("-").replace("-", "_")
        override = f"{key}={','.join(values)}"
        if not values:
            override = f"{key.removeprefix('no_')}=false" if key.startswith("no_") else f"{key}=true"
        plain.append(override)
        options[override] = argument if equals else " ".join([argument, *values])
    return plain, options


def _is_flag(argument: str, following: Sequence[str]) -> bool:
    """Return whether an argument is a flag of Hydra's, perhaps cut (`--conf`) or with its value behind it (`-cdX`)."""
    name, _, value = argument.partition("=")
    # `--config FILE` is no flag of Hydra's, but the beginning of three.
    if name in ("--config", "-c") and (value or "".join(following[:1])).endswith((".yaml", ".yml")):
        return False
    return any(flag.startswith(name) or (name[1:2] != "-" and name.startswith(flag)) for flag in flag_names())


def _values_behind(following: Sequence[str]) -> list[str]:
    """Return the values of an option at the beginning of the arguments that follow it: one, or several numbers."""
    values: list[str] = []
    for word in following:
        is_value = not word.startswith(("-", "~", "+")) and "=" not in word
        if not is_value or (values and not (values[-1][:1].isdigit() and word[:1].isdigit())):
            break
        values.append(word)
    return values


def _dash_errors(arguments: Sequence[str], options: Mapping[str, str]) -> Iterator[str]:
    """Yield an error for each option, which is an override here, with what to write; and the errors in the others."""
    from orchestrator.cli.sweep_checks import composed  # imported here so that --help stays quick

    flags = flags_parser().parse_intermixed_args(list(arguments))
    errors: Sequence[str] = ()
    told: list[str] = []
    with with_primary(flags.config_name or PRIMARY, flags.config_dir if flags.config_name else None), initialised():
        try:
            config = composed(with_search_path(flags.overrides, flags.config_dir)).config
            errors = list(structure_errors(config)) or list(value_errors(config, ["mode"]))
        except ConfigError as error:
            errors = error.errors
    is_launch = any("mode=launch" in words for words in (*arguments, *errors))
    for override, written in options.items():
        key = key_of(override)
        own = [line for line in errors if line.startswith((repr(override), f"{key} must be", f"unknown {key} "))]
        explained = [line.partition(": ")[2] or line for line in own]
        # For trials on several nodes, the sweep's own option says how many.
        meant = f"launch.{override}" if key == "nodes" and is_launch else override
        reason = explained[0].removeprefix(f"there is no key {key!r}: ") if explained else f"write {meant}"
        told += own
        yield f"{written!r}: keys have no dashes: {reason}"
    yield from (line for line in errors if line not in told)


def _flag_errors(flags: Namespace) -> Iterator[str]:
    """Yield an error for each of Hydra's flags that would run code, or look for configs in the wrong place."""
    if flags.experimental_rerun:
        yield "--experimental-rerun would unpickle a file, which can run any code"
    if flags.config_path:
        hint = f"would take the place of the shipped configs; -cd {flags.config_path} adds a folder of yours to them"
        yield f"--config-path={flags.config_path} {hint}"
    elif flags.config_name not in (None, PRIMARY):
        file = Path(flags.config_dir or "FOLDER", f"{flags.config_name.removesuffix('.yaml')}.yaml")
        if not (flags.config_dir and file.is_file()):
            hint = f"there is no such primary config; one of your own is {file}, with -cd {file.parent}"
            yield f"--config-name={flags.config_name}: {hint}; a sweep is FOLDER/sweep/NAME.yaml: -cd FOLDER sweep=NAME"
    actions = {"--multirun": flags.multirun, "--cfg": flags.cfg, "--info": flags.info, "-sc": flags.shell_completion}
    if len(given := [flag for flag, value in actions.items() if value]) > 1:
        yield f"give only one of {', '.join(given)}"
    if flags.package and not flags.cfg:
        partition = f"'launch.options={{partition: {flags.package}}}'"
        yield f"-p {flags.package} belongs to --cfg; for a partition of Slurm write {partition}"
    if flags.resolve and not (flags.cfg or flags.help):
        yield "--resolve belongs to --cfg or --help"


def _show(flags: Namespace, overrides: Sequence[str]) -> int:
    """Let Hydra show its config or help; compose the config here only to explain what does not compose."""
    try:
        show(primary(), overrides, flags)
    except ConfigError:
        raise
    except WRONG as error:
        from orchestrator.cli.sweep_checks import composed  # imported here so that --help stays quick

        composed(overrides)
        raise ConfigError([_why(error)]) from None
    except SystemExit as end:
        return WRONG_REQUEST if end.code else 0
    return 0


def _run(overrides: Sequence[str], results: Results | None) -> int:
    """Carry out one mode. Raises ConfigError if the request is invalid."""
    from orchestrator.cli.sweep_checks import checked, composed

    try:
        composition = composed(overrides)
    except ConfigError as error:
        raise ConfigError(applicable(error.errors, overrides)) from None
    if without_sweep := WITHOUT_SWEEP.get(str(composition.config["mode"])):  # it may be a list, which `checked` refuses
        check_applied(composition, Path(composition.config["results_dir"]))
        return without_sweep(composition)
    sweep = checked(composition)
    request = sweep.request
    folders = {"results_dir": request.results_dir}
    if request.settings.mode == "plan" and not request.settings.cluster.address and not request.store:
        _check_writable(folders)  # what run would refuse; nodes of a cluster may have other folders
    if request.settings.mode not in RUNNING:
        check_applied(composition, request.results_dir)
        return MODES[request.settings.mode](replace(sweep, results=results))
    # The name of Hydra's output folder is known only up to an interpolation: `outputs/${now:%Y-%m-%d}`.
    pattern = cast(dict[str, str], OmegaConf.to_container(composition.hydra.run, resolve=False))["dir"]
    _check_writable({"hydra.run.dir": Path(pattern.partition("${")[0])} | folders)
    with _Jobs(sweep) as job:
        run_job(composition.for_hydra(), job)
    return job.status


def _check_writable(folders: Mapping[str, Path]) -> None:
    """Raise ConfigError if one of the folders, by their keys, cannot be made."""
    errors = []
    for key, folder in folders.items():
        above = (folder.absolute(), *folder.absolute().parents)
        there = next(path for path in above if os.path.exists(path))  # False also for lack of permission
        if not there.is_dir() or not os.access(there, os.W_OK):
            reason = "cannot be written to" if there.is_dir() else "is not a folder"
            errors.append(f"{key}: {there} {reason}: set {key}=FOLDER")
    if errors:
        raise ConfigError(errors)


def check_sweeps(overrides: Sequence[str]) -> None:
    """Compose and check the sweeps of a multirun, which need a folder each. Raises ConfigError with all errors."""
    from orchestrator.cli.sweep_checks import checked, composed

    errors: list[str] = []
    first_in: dict[str, tuple[list[str], Any]] = {}
    sweeps = _expanded(overrides)
    swept = [override for override in overrides if override not in sweeps[0]]
    for key, values in (override.split("=", 1) for override in swept):
        if key.startswith("sweep.axes.") and "[" not in values:
            errors.append(
                f"'{key}={values}': an axis takes a list in brackets: without -m, write {copyable(key, values)}"
            )
    if errors:
        raise ConfigError(errors)
    try:
        composed(sweeps[0])
    except ConfigError as error:
        lacking = [line for line in error.errors if "there is no key" in line]
        unknown = [word for word in swept if any(line.startswith(f"'{key_of(word)}=") for line in lacking)]
        if unknown:  # with all its values: they may be meant as an axis
            composed([*(override for override in overrides if override not in swept), *unknown])
    as_axes = [copyable(f'sweep.axes."{key_of(override)}"', override.partition("=")[2]) for override in swept]
    are_axes = as_axes and all(may_be_axis(key_of(override)) for override in swept)
    axes = f"to compare them in one sweep, write {' '.join(as_axes)} without -m; or " if are_axes else ""
    if len(sweeps) > MANY:
        print(f"checking {len(sweeps)} sweeps before the first one starts", file=sys.stderr)
    for sweep in sweeps:
        own = [override for override in sweep if override not in overrides]
        prefix = f"with {' '.join(own)}: " if own else ""
        try:
            composition = composed(sweep)
            if str(composition.config["mode"]) in WITHOUT_SWEEP:
                continue
            configured = checked(composition)
        except ConfigError as error:
            errors += [f"{prefix}{message}" for message in error.errors]
            continue
        request = configured.request
        place = request.store or str(request.results_dir)
        fingerprint = configured.fingerprint()
        others, expected = first_in.setdefault(place, (own, fingerprint))
        if request.settings.mode in RUNNING and not request.settings.allow_changed and fingerprint != expected:
            errors.append(
                f"{prefix}its results would go to {place}, as those with {' '.join(others)} do, but the configs differ:"
                f" {axes}give each sweep a folder, for example with 'results_dir=results/${{hydra:job.num}}'"
            )
    if errors:
        raise ConfigError(errors)


def _is_known(overrides: Iterable[str]) -> bool:
    """Return whether a multirun runs exactly the sweeps that the overrides list."""
    # Another sweeper chooses sweeps during the run, and `${hydra:…}` is known only then.
    chooses = ("hydra/sweeper", "hydra.sweeper")
    return not any("${hydra:" in override or key_of(override).startswith(chooses) for override in overrides)


def is_multirun(overrides: Iterable[str]) -> bool:
    """Return whether the overrides ask for a multirun, in any spelling: `hydra.mode=MULTIRUN`, `++hydra.mode=…`."""
    modes = [override.partition("=")[2] for override in overrides if key_of(override) == "hydra.mode"]
    return bool(modes) and modes[-1].strip("'\"") in ("MULTIRUN", "RunMode.MULTIRUN")


def _expanded(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each sweep of a multirun. Raises ConfigError if there are more than MOST_TRIALS."""
    try:
        given = list(zip(parsed_overrides(overrides), overrides, strict=True))
    except WRONG:  # Hydra reports this itself before running anything
        return [list(overrides)]
    most = MOST_TRIALS + 1  # 'range(0,1e12)' exhausts memory
    choices = [
        [f"{override.get_key_element()}={value}" for value in itertools.islice(override.sweep_string_iterator(), most)]
        if override.is_discrete_sweep()
        else [text]
        for override, text in given
    ]
    if math.prod(map(len, choices)) > MOST_TRIALS:
        raise ConfigError([f"a multirun of more than {MOST_TRIALS:,} sweeps"])
    return [list(combination) for combination in itertools.product(*choices)]


class _Jobs:
    """The jobs of a command line, as a context: one, or those of a multirun. Hydra calls the value for each of them.

    One refused sweep does not end the others of a multirun. Errors of Hydra become a ConfigError at the end.
    """

    def __init__(self, checked_sweep: CheckedSweep | None = None) -> None:
        """Without a checked sweep, each job checks that of the config that Hydra composed for it."""
        self._checked_sweep = checked_sweep
        self._unexpected: list[Exception] = []
        self.status = 0  # the worst exit status so far

    def __enter__(self) -> _Jobs:
        return self

    def __call__(self, config: DictConfig) -> float | None:
        """Carry out the mode of one job, and return its objective for a Hydra sweeper; None for a refused sweep."""
        from orchestrator.cli.sweep_checks import checked

        status = 0
        objective = None  # of a refused sweep it stays None: the results in its folder belong to another one
        try:
            if without_sweep := WITHOUT_SWEEP.get(str(config["mode"])):
                status = without_sweep(Composition(overrides_of_this_job(), composed=config))
            else:
                sweep = self._checked_sweep or checked(Composition(overrides_of_this_job(), composed=config))
                settings = sweep.request.settings
                status = MODES[settings.mode](sweep)
                objective = objective_of(sweep.request.results_dir, settings.sweeper.objective)
        except ConfigError as error:
            status = _wrong(error)
        except Exception as error:  # Hydra would cut its traceback short
            self._unexpected.append(error)
        self.status = max(self.status, status)
        if status in INTERRUPTED:
            raise SystemExit(status)  # in a multirun, Ctrl-C ends the sweeps still to come as well
        return objective

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, WRONG) and not isinstance(error, ConfigError):
            # No job raises these: a log file cannot be opened, or a sweeper's parameters do not fit.
            raise ConfigError([_why(error)]) from error
        is_interrupted = isinstance(error, SystemExit) and self.status in INTERRUPTED
        if self._unexpected and (error is None or is_interrupted):
            raise self._unexpected[0]
        return is_interrupted


def objective_of(results_dir: Path, objective: SweeperObjectiveSection) -> float | None:
    """Return the best value of any ok cell in a column of `summary.csv`, for a Hydra sweeper; None if there is none.

    Raises ConfigError if the table has no such column of numbers.
    """
    column, path = objective.column, ResultsFolder(results_dir).table("summary.csv")
    if column is None or not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and column not in rows[0]:
        raise ConfigError([f"sweeper.objective.column={column!r} is not one of {', '.join(rows[0])}"])
    try:
        figures = [float(row[column]) for row in rows if row["status"] == "ok" and row[column]]
    except ValueError as error:
        raise ConfigError([f"sweeper.objective.column={column!r} has no numbers: {error}"]) from None
    # Hydra's Optuna sweeper takes None as a failure, and stops with an error at a NaN.
    best = max if objective.best == "max" else min
    return best(figures) if figures else None


def _why(error: Exception) -> str:
    """Return in one line why Hydra failed."""
    # A plain ValueError comes from logging.config, which does not name the key.
    return f"hydra.hydra_logging or hydra.job_logging: {error}" if type(error) is ValueError else error_line(error)


def _wrong(error: ConfigError) -> int:
    print(printable("\n".join(error.errors)), file=sys.stderr)
    return WRONG_REQUEST
