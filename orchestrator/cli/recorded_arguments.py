"""The settings that a folder of results was made with, from the command line in its journal, for modes that only read.

The journal may come from a stranger: only settings of a report count, as plain values, and no flag, no folder of
configs and no interpolation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from orchestrator.config.commands import command, shell_word
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.hydra_private import flags_parser
from orchestrator.config.overrides import FROM_PROGRAM, key_of, literal, rewritten, with_search_path
from orchestrator.config.request import READING, RUNNING
from orchestrator.config.schema import GROUPS, SCHEMA, value_at
from orchestrator.config.search_path import PRIMARY, with_primary
from orchestrator.config.synonyms import synonym_of
from orchestrator.config.trust import is_data
from orchestrator.store.history import History
from orchestrator.store.results import Results, read_results
from orchestrator.store.results_folder import JOURNAL, ResultsFolder, results_below
from sweeps.errors import ConfigError

WHAT_IF_KEYS = (
    *(f"report.{key}" for key in ("objective", "metric", "margin", "price_per_gpu_hour", "currency")),
    "sweep.baseline",
    "sweep.scaling",
)
"""Settings of a report that can be asked for after the sweep; they change its tables, and no trial."""

PLACES = ("results_dir", "sweep.name")
_CHOSEN = (*GROUPS, "sweep", "trainable", "hydra")  # groups and their sections, which may have keys of users
DEFAULT_PLACE = "results"
_SECTIONS = ("budget", "claims", "report", "sweep")  # sections whose recorded values count
_GROUPS = ("data", "sweep", "trainable")
"""Groups whose recorded choices count; their files are ours, or in a folder that the user names."""
_CHOICE = re.compile(r"\w[\w-]*(/\w[\w-]*)*")
_REFERENCE = "trainable.reference_batch_size"  # the setting of a trainable that a report uses
_MOST_ARGUMENTS, _MOST_CHARACTERS = 100, 20_000
"""Hydra's parser and the search for a wrong argument take seconds beyond; people type less."""
_CONTINUES = re.compile(r"(resume|continue|restart)(?![^\W_])")
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
    place = given.get("results_dir", DEFAULT_PLACE).strip("'\"")
    # The value of a flag, as in `-cd conf`, is no folder of results.
    overrides = flags_parser().parse_intermixed_args(list(arguments)).overrides
    words = [override for override in overrides if "=" not in override and override[:1] not in ("~", "+")]
    others = [override for override in overrides if override not in words and key_of(override) != "mode"]
    errors: Sequence[str] = ()
    if words and not chooses_config:
        from orchestrator.config.composition_errors import CompositionError  # imported here so that --help stays quick

        try:
            with initialised():
                Composition(rewritten(others))
        except CompositionError as error:
            errors, others = error.errors, error.corrected
    if words and (line := _folders_meant(given.get("mode", ""), words, others, chooses_config=chooses_config)):
        raise ConfigError([*errors, f"{' '.join(words)!r} is not KEY=VALUE: write {line}"])
    # The value of a setting, or of a choice, may be the name of results as well.
    unknown = [key for key in given if key not in SCHEMA and re.split(r"\W", key)[0] not in ("", *_CHOSEN)]
    named = [(key, given[key]) for key in unknown if _has_results(_folder_of(given[key]))]
    if named and given.get("mode") in READING and not chooses_config and "results_dir" not in given:
        key, value = named[0]
        others = [word for word in arguments if word.partition("=")[0] not in (key, "mode", *PLACES)]
        line = " ".join(map(shell_word, [f"mode={given['mode']}", f"results_dir={_folder_of(value)}", *others]))
        raise ConfigError([f"'{key}={value}' names no setting, but a folder of results: write {line}"])
    # A mode that runs code takes nothing from a folder that may be a stranger's.
    if given.get("mode") not in READING or chooses_config or "://" in place:
        return Completed(own=arguments)
    folder = _folder_of_sweep(place, given)
    if folder is None:  # reported where the results are read
        return Completed(own=arguments)
    folder = folder.absolute()
    # What the user gives replaces what is recorded under the same key.
    results = read_results(ResultsFolder(folder))
    where = [f"results_dir={literal(str(folder.parent))}", f"sweep.name={literal(folder.name)}"]
    own = [*(argument for argument in arguments if argument.partition("=")[0] not in PLACES), *where]
    recorded = recorded_arguments(results.history)
    keys = {key_of(argument) for argument in own}
    if any(key_of(argument) == "report.metric" and argument not in recorded for argument in own):
        keys.add("report.margin")  # which was in the unit of the recorded metric
    return Completed(
        own=own,
        recorded=[argument for argument in recorded if key_of(argument) not in keys],
        results=results,
        remark=_remark(results.history, own),
    )


def _folders_meant(mode: str, words: Sequence[str], others: Sequence[str], *, chooses_config: bool) -> str:
    """Return what to write instead of folders without a key, `mode=compare A B` or `compare A B`; empty if none are.

    `others` are overrides that stay.
    """
    folders = words
    if not mode and all(map(_has_results, map(_folder_of, words))):
        mode = "compare" if len(words) > 1 else "report"
    if not mode:
        name, *folders = words
        mode = name if name in SCHEMA["mode"].words else synonym_of("mode", name)
        if not (folders and all(map(_has_results, map(_folder_of, folders)))):
            return ""
    if mode in (*RUNNING, "plan", "forecast") and not chooses_config:
        return command_again(_folder_of(folders[0]), [f"mode={mode}", *others])
    if mode not in READING or (chooses_config and mode != "compare"):
        return ""
    keys = ("results_dir", "compare.with")[-min(2, len(folders)) :] if mode == "compare" else ("results_dir",)
    given = (f"{key}={_folder_of(folder)}" for key, folder in zip(keys, folders, strict=False))
    return " ".join(map(shell_word, [f"mode={mode}", *given, *others]))


def _folder_of(word: str) -> str:
    """Return the folder that a word names: itself, or that of a sweep in `results/`."""
    return f"results/{word}" if not _has_results(word) and _has_results(f"results/{word}") else word


def is_folder(word: str) -> bool:
    """Return whether a word names a folder, or one of results."""
    return any(os.path.isdir(os.path.join(place, word)) for place in (".", DEFAULT_PLACE))


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
        return folder
    if "sweep.name" in given:
        return None
    choices = ", ".join(f"results_dir={sweep}" for sweep in sweeps)
    problem = f"choose one: {choices}" if sweeps else "there are no results"
    raise ConfigError([f"mode={given.get('mode', 'run')} in {folder}: {problem}"])


def _remark(history: History, own: Sequence[str]) -> str:
    """Return a remark if the sweep was run with folders of configs, and the user names none now."""
    if any(argument.startswith(_OWN_CONFIG) for argument in own):
        return ""
    options = [argument.partition("=") for argument in arguments_in(history)]
    folders = [value for key, _, value in options if key in ("--config-dir", "hydra.searchpath")]
    return f"configs in {folders[0]} are not read for this report; to use them, add -cd FOLDER" if folders else ""


def recorded_arguments(history: History) -> list[str]:
    """Return the settings of a report on the command line of the sweep's last driver."""
    arguments = arguments_in(history)
    settings = [argument for argument in arguments if _is_setting(argument)]
    # A section that a program gave has no file, so that its one value that a report uses is taken from the fingerprint.
    if f"trainable{FROM_PROGRAM}" in arguments:
        reference = value_at(history.fingerprint or {}, f"config.{_REFERENCE}")
        settings += [] if reference is None else [f"++{_REFERENCE}={literal(reference)}"]
    return [argument for argument in settings if is_data(argument)]


def continued(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the command that continues the sweep in each folder that `resume=FOLDER` or `mode=continue` names."""
    if not any(_CONTINUES.match(argument.removeprefix("mode=")) for argument in arguments):
        return
    words = [word for argument in arguments for word in argument.split("=") if word]
    for name, place in pairwise(words):
        # Other values, such as the name of a new sweep, may be names of folders as well.
        if name == "results_dir" or _CONTINUES.match(name):
            if command := command_again(place) or command_again(f"results/{place}"):
                yield f"the same command continues a sweep: write {command}"


def command_here(arguments: Sequence[str]) -> str:
    """Return the command that ran the sweep in the place that arguments name, with these arguments; empty if none did.

    Raises ConfigError if `mode=settle`, which continues a sweep, finds none or several.
    """
    given = {key_of(argument): argument.partition("=")[2].strip("'\"") for argument in arguments}
    settles = given.get("mode") == "settle"
    place = given.get("results_dir", DEFAULT_PLACE)
    folder = None
    with nullcontext() if settles else suppress(ConfigError):
        if "://" not in place and (settles or not given.keys().isdisjoint(PLACES)):
            folder = _folder_of_sweep(place, given)
    return command_again(str(folder), arguments) if folder else ""


def command_again(place: str, overrides: Sequence[str] = ()) -> str:
    """Return the command that ran the sweep in this folder of results, with these overrides in place of those recorded.

    Empty if that is not the folder of one sweep, or no command is recorded. The command is only told: the journal may
    come from a stranger.
    """
    # Unlike pathlib's, these functions take a text that cannot be a folder: too long, or the home of an unknown user.
    folder = ResultsFolder(Path(os.path.expanduser(place)))
    if not os.path.isfile(folder.journal):
        return ""
    if not (recorded := arguments_in(read_results(folder).history)):
        return ""
    own = [override for override in overrides if key_of(override) not in PLACES]
    places = [f"results_dir={literal(str(folder.root.parent))}", f"sweep.name={literal(folder.root.name)}"]
    replaced = tuple(f"{key_of(argument)}=" for argument in [*own, *places, "rerun=", "mode="])
    return command(recorded, [*own, *places], dropped=replaced)


def arguments_in(history: History) -> list[str]:
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
    if not equals or key in PLACES or argument.endswith(FROM_PROGRAM):
        return False
    if not dot:
        # A choice is the name of a file; it must not lead out of the folders that are searched.
        return key.partition("/")[0] in _GROUPS and all(_CHOICE.fullmatch(part) for part in (key, value))
    return section in _SECTIONS or key == _REFERENCE


def what_if(history: History, composition: Composition) -> tuple[str, Sequence[str]]:
    """Return the settings in which this config of a report differs from the sweep's own, and the sweep's command line.

    The settings are a folder's name, and the command line has them. It names the folder that the results are in now.
    """
    arguments, name = _where_it_is(history, composition), _what_if(history, composition)
    if not name:
        return "", arguments
    given = [argument for argument in composition.arguments if key_of(argument).startswith(WHAT_IF_KEYS)]
    keys = {key_of(argument) for argument in given}
    return name, [*(argument for argument in arguments if key_of(argument) not in keys), *given]


def _where_it_is(history: History, composition: Composition) -> list[str]:
    """Return the recorded command line; with the folder of the results if they are not where that command looks."""
    arguments = arguments_in(history)
    given = {key_of(argument): argument.partition("=")[2].strip("'\"") for argument in arguments}
    place, name = str(composition.config["results_dir"]), str(composition.config["sweep"]["name"])
    name_then = next((end.sweep for end in history.ends.values()), name)
    now: dict[str, str | None] = {}
    if not _is_same(place, given.get("results_dir", DEFAULT_PLACE)):
        now["results_dir"] = None if _is_same(place, DEFAULT_PLACE) else place
    if name != name_then:
        now["sweep.name"] = name
    kept = [argument for argument in arguments if key_of(argument) not in now]
    return [*kept, *(f"{key}={literal(value)}" for key, value in now.items() if value and arguments)]


def _is_same(place: str, other: str) -> bool:
    return Path(place).absolute() == Path(other).absolute()


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
