"""The settings that a folder of results was made with, from the command line in its journal, for modes that only read.

The journal may come from a stranger: only settings of a report count, as plain values, and no flag, no folder of
configs and no interpolation.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from orchestrator.config.commands import command, shell_command
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.hydra_private import flags_parser
from orchestrator.config.overrides import FROM_PROGRAM, key_of, literal, rewritten, with_search_path
from orchestrator.config.request import READING
from orchestrator.config.schema import value_at
from orchestrator.config.search_path import PRIMARY, with_primary
from orchestrator.config.synonyms import synonym_of
from orchestrator.config.trust import is_data
from orchestrator.store.history import History
from orchestrator.store.results import Results, read_results
from orchestrator.store.results_folder import JOURNAL, ResultsFolder, free_beside, results_below
from sweeps.errors import ConfigError

WHAT_IF_KEYS = (
    *(f"report.{key}" for key in ("objective", "metric", "margin", "price_per_gpu_hour", "currency")),
    "sweep.baseline",
    "sweep.scaling",
)
"""Settings of a report that can be asked for after the sweep; they change its tables, and no trial."""

_APPLIED: Mapping[str, Sequence[str]] = {
    "report": ("report.", "claims.", "sweep.baseline", "sweep.scaling"),
    "compare": ("report.", "compare."),
    "watch": ("report.",),
    "status": (),
    "list": (),
}
"""Keys that a mode applies to recorded results, by their beginnings, beside those in _NEUTRAL."""

_NEUTRAL = ("mode", "format", "verbose", "results_dir", "local_results_dir", "sweep", "sweep.name")
_OF_THE_GRID = ("sweep.axes", "sweep.exclude", "sweep.zip")

_PLACES = ("results_dir", "sweep.name")
_SECTIONS = ("budget", "claims", "report", "sweep")  # sections whose recorded values count
_GROUPS = ("data", "sweep", "trainable")
"""Groups whose recorded choices count; their files are ours, or in a folder that the user names."""
_CHOICE = re.compile(r"\w[\w-]*(/\w[\w-]*)*")
_REFERENCE = "trainable.reference_batch_size"  # the setting of a trainable that a report uses
_MOST_ARGUMENTS, _MOST_CHARACTERS = 100, 20_000
"""Hydra's parser and the search for a wrong argument take seconds beyond; people type less."""
_OWN_CONFIG = ("-cd", "--config-dir", "-cn", "--config-name", "-m", "--multirun")


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command line, and the part of the one in the journal that it leaves out."""

    own: Sequence[str]
    recorded: Sequence[str] = ()
    results: Results | None = None  # what was read to complete the command line
    remark: str = ""  # what the user may add to the command line

    @property
    def arguments(self) -> list[str]:
        """The whole command line; what the user gives comes last."""
        return [*self.recorded, *self.own]

    def why_not_composed(self) -> str:
        """Return why the recorded part does not compose by itself; empty if it does, or is empty."""
        if not self.recorded:
            return ""
        folder = flags_parser().parse_intermixed_args(list(self.own)).config_dir
        try:
            with with_primary(PRIMARY, None), initialised():
                Composition(with_search_path(self.recorded, folder))
        except (ConfigError, OSError) as error:
            return str(error).partition("\n")[0]
        return ""


def with_recorded(arguments: Sequence[str]) -> Completed:
    """Complete the arguments from the journal, if they ask for a report (…) of a folder. Raises ConfigError."""
    given = {key: value for key, equals, value in (argument.partition("=") for argument in arguments) if equals}
    chooses_config = "sweep" in given or any(argument.startswith(_OWN_CONFIG[2:]) for argument in arguments)
    place = given.get("results_dir", "results").strip("'\"")
    # The value of a flag, as in `-cd conf`, is no folder of results.
    overrides = flags_parser().parse_intermixed_args(list(arguments)).overrides
    words = [override for override in overrides if "=" not in override and override[:1] not in ("~", "+")]
    if words and (line := _folders_meant(given.get("mode", ""), words, chooses_config=chooses_config)):
        raise ConfigError([f"{' '.join(words)!r} is not KEY=VALUE: write {line}"])
    # A mode that runs code takes nothing from a folder that may be a stranger's.
    if given.get("mode") not in READING or chooses_config or "://" in place:
        return Completed(own=arguments)
    folder = _folder_of_sweep(place, given)
    if folder is None:  # reported where the results are read
        return Completed(own=arguments)
    # What the user gives replaces what is recorded under the same key.
    results = read_results(ResultsFolder(folder))
    where = [f"results_dir={literal(str(folder.parent))}", f"sweep.name={literal(folder.name)}"]
    own = [*(argument for argument in arguments if argument.partition("=")[0] not in _PLACES), *where]
    keys = {key_of(argument) for argument in own}
    return Completed(
        own=own,
        recorded=[argument for argument in recorded_arguments(results.history) if key_of(argument) not in keys],
        results=results,
        remark=_remark(results.history, own),
    )


def _folders_meant(mode: str, words: Sequence[str], *, chooses_config: bool) -> str:
    """Return what to write instead of folders without a key, `mode=compare A B` or `compare A B`; empty if none are."""
    folders = words
    if not mode:
        name, *folders = words
        mode = name if name in READING else synonym_of("mode", name)
        if not (folders and all(map(_has_results, map(_folder_of, folders)))):
            return ""
    if mode not in READING or (chooses_config and mode != "compare"):
        return ""
    keys = ("results_dir", "compare.with")[-min(2, len(folders)) :] if mode == "compare" else ("results_dir",)
    given = (f"{key}={_folder_of(folder)}" for key, folder in zip(keys, folders, strict=False))
    return " ".join([f"mode={mode}", *given])


def _folder_of(word: str) -> str:
    """Return the folder that a word names: itself, or that of a sweep in `results/`."""
    return f"results/{word}" if not _has_results(word) and _has_results(f"results/{word}") else word


def _has_results(folder: str) -> bool:
    # Unlike pathlib's, this function takes a text that no file can have as its name.
    return os.path.isfile(os.path.join(folder, JOURNAL))


def _folder_of_sweep(place: str, given: Mapping[str, str]) -> Path | None:
    """Return the folder of the one sweep in a place; None if the sweep that the user names has no results there."""
    folder = Path(os.path.expanduser(place))
    if "sweep.name" in given:
        folder /= given["sweep.name"].strip("'\"")
    sweeps = results_below(folder)
    if len(sweeps) == 1:
        folder = Path(sweeps[0])
    if ResultsFolder(folder).journal.is_file():
        return folder.absolute()
    if "sweep.name" in given:
        return None
    choices = ", ".join(f"results_dir={sweep}" for sweep in sweeps)
    raise ConfigError(
        [f"mode={given['mode']} in {folder}: {f'choose one: {choices}' if sweeps else 'there are no results'}"]
    )


def _remark(history: History, own: Sequence[str]) -> str:
    """Return a remark if the sweep was run with folders of configs, and the user names none now."""
    if any(argument.startswith(_OWN_CONFIG) for argument in own):
        return ""
    options = [argument.partition("=") for argument in _arguments_in(history)]
    folders = [value for key, _, value in options if key in ("--config-dir", "hydra.searchpath")]
    return f"configs in {folders[0]} are not read for this report; to use them, add -cd FOLDER" if folders else ""


def recorded_arguments(history: History) -> list[str]:
    """Return the settings of a report on the command line of the sweep's last driver."""
    arguments = _arguments_in(history)
    settings = [argument for argument in arguments if _is_setting(argument)]
    # A section that a program gave has no file, so that its one value that a report uses is taken from the fingerprint.
    if f"trainable{FROM_PROGRAM}" in arguments:
        reference = value_at(history.fingerprint or {}, f"config.{_REFERENCE}")
        settings += [] if reference is None else [f"++{_REFERENCE}={literal(reference)}"]
    return [argument for argument in settings if is_data(argument)]


def continued(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the command that continues the sweep in each folder that `--resume FOLDER` or `mode=resume` names."""
    if not any(argument.lstrip("-").startswith(("resume", "mode=resume")) for argument in arguments):
        return
    words = [word for argument in arguments for word in argument.split("=") if word]
    for name, place in pairwise(words):
        # Other values, such as the name of a new sweep, may be names of folders as well.
        if name.lstrip("-").replace("-", "_").startswith(("resume", "results_dir")):
            if command := command_again(place) or command_again(f"results/{place}"):
                yield f"the same command continues a sweep: write {command}"


def command_again(place: str, overrides: Sequence[str] = ()) -> str:
    """Return the command that ran the sweep in this folder of results, with these overrides in place of those recorded.

    Empty if that is not the folder of one sweep. The command is only told: the journal may come from a stranger.
    """
    # Unlike pathlib's, these functions take a text that cannot be a folder: too long, or the home of an unknown user.
    folder = ResultsFolder(Path(os.path.expanduser(place)))
    if not os.path.isfile(folder.journal):
        return ""
    own = [override for override in overrides if key_of(override) not in _PLACES]
    places = [f"results_dir={literal(str(folder.root.parent))}", f"sweep.name={literal(folder.root.name)}"]
    replaced = tuple(f"{key_of(argument)}=" for argument in [*own, *places, "rerun=", "mode="])
    return command(_arguments_in(read_results(folder).history), [*own, *places], dropped=replaced)


def check_applied(composition: Composition, place: Path) -> None:
    """Raise ConfigError if a mode that reads the results in a folder would ignore an override that changes the config.

    Overrides that the sweep ran with change nothing.
    """
    mode, given = str(composition.config["mode"]), composition.arguments
    if mode not in _APPLIED or not (ignored := [override for override in given if _is_ignored(override, mode)]):
        return
    if mode == "list":
        raise ConfigError([f"{_as_words(ignored)} has no effect: mode=list lists all sweeps in {place}; leave it out"])
    history = read_results(ResultsFolder(place)).history
    recorded = _arguments_in(history)
    if not recorded:
        return
    asked = [override for override in ignored if override not in recorded]
    base = [override for override in given if override not in asked]
    base += [override for override in recorded_arguments(history) if override not in base]
    changing = [override for override in asked if _differs(base, override)]
    if changing:
        raise ConfigError([_why_ignored(mode, changing, place, recorded)])


def applicable(errors: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return error lines; in place of an override of the grid that a mode would ignore, what works in that mode."""
    given = {key_of(override): override.partition("=")[2] for override in overrides}
    mode, name = given.get("mode", ""), given.get("sweep.name", "").strip("'\"")
    place = Path(given.get("results_dir", "results").strip("'\""), name).absolute()
    if mode not in _APPLIED or not ResultsFolder(place).journal.is_file():
        return list(errors)
    recorded = _arguments_in(read_results(ResultsFolder(place)).history)
    lines = []
    for line in errors:
        wrong, write, suggested = line.partition(": write ")
        words: list[str] = []
        if write and suggested[:1] in ("'", '"') and suggested[:1] == suggested[-1:]:
            with suppress(ValueError):  # a sentence with quotes, and no command
                words = shlex.split(suggested)
        if words and all(key_of(word).startswith(_OF_THE_GRID) for word in words):
            line = f"{wrong}: {_why_ignored(mode, rewritten(words), place, recorded)}"
        lines.append(line)
    return lines


def _is_ignored(override: str, mode: str) -> bool:
    """Return whether a mode takes an override from the user, and does nothing with it."""
    key = key_of(override)
    return key not in _NEUTRAL and not key.startswith((*_APPLIED[mode], "hydra", "sweep/", "-"))


def _as_words(overrides: Sequence[str]) -> str:
    return shell_command(overrides).partition("orchestrator ")[2]


def _differs(overrides: Sequence[str], other: str) -> bool:
    """Return whether another override, in place of that of its key, changes the config."""
    replaced = [override for override in overrides if key_of(override) != key_of(other)]
    try:
        return Composition(overrides).config != Composition([*replaced, other]).config
    except ConfigError:  # what is recorded is of another version, or from configs that are not here
        return True


def _why_ignored(mode: str, overrides: Sequence[str], place: Path, recorded: Sequence[str]) -> str:
    """Return in one line that a mode ignores these overrides, with what to write instead."""
    shown = _as_words(overrides)
    read_only = f"{shown} has no effect: mode={mode} only reads {place}"
    if not any(_is_ignored(override, "report") for override in overrides):
        return f"{read_only}: write python -m orchestrator mode=report results_dir={literal(str(place))} {shown}"
    where = [f"results_dir={literal(str(place.parent))}", f"sweep.name={literal(free_beside(place).name)}"]
    dropped = tuple(f"{key_of(override)}=" for override in (*overrides, *where, "rerun", "mode"))
    rows = f'load_results("{place}").summary in Python has a row per cell to choose from, or ' * any(
        override.startswith(_OF_THE_GRID) for override in map(key_of, overrides)
    )
    return f"{read_only}; {rows}run another sweep: {command(recorded, [*overrides, *where], dropped=dropped)}"


def _arguments_in(history: History) -> list[str]:
    """Return the recorded command line; empty if it is none."""
    arguments = history.driver.get("arguments")
    if not isinstance(arguments, list) or len(arguments) > _MOST_ARGUMENTS:
        return []
    texts = [argument for argument in arguments if isinstance(argument, str)]
    return texts if sum(map(len, texts)) <= _MOST_CHARACTERS else []


def _is_setting(argument: str) -> bool:
    """Return whether an argument sets something that a report uses."""
    key, equals, value = argument.lstrip("+").partition("=")
    section, dot, _ = key.partition(".")
    if not equals or key in _PLACES or argument.endswith(FROM_PROGRAM):
        return False
    if not dot:
        # A choice is the name of a file; it must not lead out of the folders that are searched.
        return key.partition("/")[0] in _GROUPS and all(_CHOICE.fullmatch(part) for part in (key, value))
    return section in _SECTIONS or key == _REFERENCE


def what_if(history: History, composition: Composition) -> tuple[str, Sequence[str]]:
    """Return the settings in which this config of a report differs from the sweep's own, and the sweep's command line.

    The settings are a folder's name, and the command line has them.
    """
    arguments, name = _arguments_in(history), _what_if(history, composition)
    if not name:
        return "", arguments
    given = [argument for argument in composition.arguments if key_of(argument).startswith(WHAT_IF_KEYS)]
    keys = {key_of(argument) for argument in given}
    return name, [*(argument for argument in arguments if key_of(argument) not in keys), *given]


def _what_if(history: History, composition: Composition) -> str:
    recorded = recorded_arguments(history)
    asked = {argument for argument in composition.arguments if _is_setting(argument)}
    differing = {key_of(argument) for argument in asked.symmetric_difference(recorded)}
    if not recorded or all(key.startswith("report.") and key not in WHAT_IF_KEYS for key in differing):
        return ""
    try:
        # By composed values and not by texts: the same setting can be written in several ways.
        before = Composition(recorded).config
    except ConfigError:  # of another version, or with configs that are not here
        return ""
    now = composition.config
    changes = [f"{key}={value_at(now, key)}" for key in WHAT_IF_KEYS if value_at(now, key) != value_at(before, key)]
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(changes))[:120]
