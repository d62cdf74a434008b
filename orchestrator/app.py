"""The command line: Hydra composes the config, all that is wrong with it is told at once, the driver does the rest."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from orchestrator.command_line.checking import checked, composed
from orchestrator.command_line.modes import MODES, WITHOUT_SWEEP
from orchestrator.command_line.multirun import Compositions, check_each
from orchestrator.command_line.objective import objective_of
from orchestrator.composition.composition import Composition
from orchestrator.composition.expansion import is_known, meaning
from orchestrator.composition.hydra_section import check_hydra, saved_without_secrets
from orchestrator.composition.overrides import rewritten
from orchestrator.composition.search_path import (
    PRIMARY,
    config_dir,
    initialised,
    is_search_path,
    with_primary,
    with_search_path,
)
from orchestrator.config.trust import KEY
from orchestrator.driver.interrupt import INTERRUPTED
from orchestrator.driver.origin import versions
from sweeps.mistakes import MistakesError

if TYPE_CHECKING:
    from orchestrator.command_line.configured_sweep import ConfiguredSweep

WRONG_REQUEST = 2
"""The exit status of a request that cannot be carried out; nothing was started."""


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line without the program's name; the exit status."""
    if "--version" in arguments:  # Hydra's own answer is Hydra's version
        print(versions())
        return 0
    if mistakes := list(_dashed(arguments)):
        return _wrong(MistakesError(mistakes))
    given = _flags_first(rewritten(arguments))
    flags = get_args_parser().parse_args(given)
    if mistakes := list(_places(flags)):
        return _wrong(MistakesError(mistakes))
    only_shows = flags.help or flags.hydra_help or flags.shell_completion or flags.info is not None
    if only_shows or flags.experimental_rerun:
        return _through_hydra(given)
    try:
        with with_primary(flags.config_name or PRIMARY, flags.config_dir):
            return _carried_out(given, flags, with_search_path(flags.overrides, flags.config_dir))
    except MistakesError as error:
        return _wrong(error)


def _carried_out(given: Sequence[str], flags: Namespace, overrides: Sequence[str]) -> int:
    """What asks for more than Hydra's own answers; MistakesError where it cannot be."""
    if flags.multirun:
        return _several(given, overrides)
    if flags.cfg:
        return _shown(given, overrides)
    # Before Hydra's own turn, because that creates its output folder and stops at the first mistake.
    with initialised():
        composition = composed(overrides)
        if alone := WITHOUT_SWEEP.get(composition.config["mode"]):
            return alone(composition.config)
        configured = checked(composition)
        if configured.request.mode != "run":
            return MODES[configured.request.mode](configured)
        check_hydra(overrides, results_dir=configured.request.results_dir)
    return _through_hydra(given, lambda: configured)


def _dashed(arguments: Sequence[str]) -> Iterator[str]:
    """Keys that are written as options are elsewhere; only Hydra's own flags have dashes."""
    flags = [flag for action in get_args_parser()._actions for flag in action.option_strings]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--") and not any(flag.startswith(name) for flag in flags):
            key = name.lstrip("-").replace("-", "_")
            yield f"{argument!r}: keys have no dashes here: {key}={value if equals else 'VALUE'}"


def _places(flags: Namespace) -> Iterator[str]:
    """Where Hydra's own flags would have configs looked for."""
    if flags.config_path:
        hint = f"would take the place of the shipped configs; -cd {flags.config_path} adds a folder of yours to them"
        yield f"--config-path={flags.config_path} {hint}"
    elif flags.config_name not in (None, PRIMARY):
        file = Path(flags.config_dir or "FOLDER", f"{flags.config_name.removesuffix('.yaml')}.yaml")
        if not (flags.config_dir and file.is_file()):
            hint = f"there is no such primary config; one of your own is {file}, with -cd {file.parent}"
            yield f"--config-name={flags.config_name}: {hint}; a sweep is FOLDER/sweep/NAME.yaml: -cd FOLDER sweep=NAME"


def _shown(arguments: Sequence[str], overrides: Sequence[str]) -> int:
    """The config as Hydra shows it; it is composed here, too, only where there are mistakes to tell."""
    with redirect_stderr(io.StringIO()) as errors:
        status = _through_hydra(arguments)
    if status:
        with initialised():
            composed(overrides)
    sys.stderr.write(errors.getvalue())
    return status


def _several(arguments: Sequence[str], overrides: Sequence[str]) -> int:
    """Hydra's multirun, once it is sure that Hydra itself runs nobody else's code, and that no sweep is refused.

    Each sweep is checked once more when it is its turn: by then code and data may have changed.
    """
    found: Compositions = {}
    with initialised():
        config = check_hydra([each for each in overrides if each.lstrip("+~").startswith(("hydra", KEY))])
        if is_known(config):
            found = check_each([each for each in overrides if _says_what_to_run(each)])
    return _through_hydra(arguments, lambda: _asked_of_hydra(found))


def _says_what_to_run(override: str) -> bool:
    return is_search_path(override) or not override.lstrip("+~").startswith("hydra")


def _flags_first(arguments: Sequence[str]) -> list[str]:
    """Hydra's parser wants all overrides in one place: `sweep=mine -cd conf mode=plan` would be an error."""
    overrides = get_args_parser().parse_intermixed_args(list(arguments)).overrides
    flags = list(arguments)
    for override in overrides:
        flags.remove(override)
    return [*flags, *overrides]


def _asked_of_hydra(known: Compositions) -> ConfiguredSweep:
    """The one sweep that Hydra runs now; what is known of it already is not composed again."""
    now = HydraConfig.get().overrides
    own = [*now.task, *(override for override in now.hydra if is_search_path(override))]
    return checked(known.get(meaning(own)) or Composition(own))


def _through_hydra(arguments: Sequence[str], ask: Callable[[], ConfiguredSweep] = lambda: _asked_of_hydra({})) -> int:
    """Hydra's own main: its flags, its output folder, its multirun; the worst exit status of the sweeps it ran.

    `ask` gives each of them.
    """
    statuses = [0]
    unexpected: list[Exception] = []

    def task(config: DictConfig) -> float | None:
        figure = None  # of a sweep that was refused: what lies in its folder is another one's
        try:
            asked = ask()
            statuses.append(MODES[asked.request.mode](asked))
            figure = objective_of(asked.request.results_dir, asked.request.returned)
        except MistakesError as error:
            statuses.append(_wrong(error))
        except Exception as error:  # Hydra would cut its traceback short
            unexpected.append(error)
        if statuses[-1] in INTERRUPTED:
            raise SystemExit(statuses[-1])  # of several sweeps, the ones to come are interrupted, too
        return figure

    sys.argv = [sys.argv[0], *arguments]
    try:
        with saved_without_secrets():
            hydra.main(config_path=str(config_dir()), config_name=PRIMARY, version_base="1.3")(task)()
    except SystemExit as left:  # Hydra has said what does not compose
        return statuses[-1] if statuses[-1] in INTERRUPTED else (WRONG_REQUEST if left.code else 0)
    if unexpected:
        raise unexpected[0]
    return max(statuses)


def _wrong(error: MistakesError) -> int:
    print("\n".join(error.mistakes), file=sys.stderr)
    return WRONG_REQUEST
