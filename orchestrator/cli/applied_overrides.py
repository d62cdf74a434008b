"""Overrides that a mode which reads results applies, and those that it refuses because it would ignore them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.cli.modes import MODES, WITHOUT_SWEEP
from orchestrator.cli.recorded_arguments import PLACES, arguments_in, command_again, recorded_arguments
from orchestrator.config.commands import command, program, shell_command
from orchestrator.config.compose import Composition
from orchestrator.config.overrides import key_of, literal, rewritten
from orchestrator.config.request import READING
from orchestrator.config.synonyms import synonym_of
from orchestrator.store.results import read_results
from orchestrator.store.results_folder import ResultsFolder, free_beside
from sweeps.errors import ConfigError

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
    recorded = arguments_in(history)
    if not recorded:
        return
    asked = [override for override in ignored if override not in recorded]
    base = [override for override in given if override not in asked]
    base += [override for override in recorded_arguments(history) if override not in base]
    changing = [override for override in asked if _differs(base, override)]
    if changing:
        raise ConfigError([_why_ignored(mode, changing, place, recorded)])


def applicable(errors: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return error lines that suggest what works in the mode and in the folder that the overrides name."""
    given = {key_of(override): override.partition("=")[2].strip("'\"") for override in overrides}
    mode, folder = given.get("mode", ""), given.get("results_dir", "results")
    place = Path(folder, given.get("sweep.name", "")).absolute()
    if line := _name_of_results(given.get("sweep", ""), folder, errors, overrides):
        return [line]
    if "sweep" not in given and mode not in READING:
        return _of_the_sweep_in(str(place), errors, overrides) or list(errors)
    if mode in _APPLIED and ResultsFolder(place).journal.is_file():
        return _without_grid(mode, place, errors)
    return list(errors)


def _name_of_results(name: str, folder: str, errors: Sequence[str], overrides: Sequence[str]) -> str:
    """Return the whole command of the results that `sweep=NAME` names where there is no such sweep; else empty."""
    if not name or not any(line.startswith(f"'sweep={name}': there is no sweep") for line in errors):
        return ""
    kept = [word for word in overrides if key_of(word) not in ("sweep", "mode")]
    modes = [word.partition("=")[2] for word in overrides if key_of(word) == "mode"]
    # A wrong mode must not run the sweep.
    meant = [mode if mode in {**MODES, **WITHOUT_SWEEP} else synonym_of("mode", mode) or "status" for mode in modes]
    place, reads = os.path.join(folder, name), {*meant[-1:]} <= {*READING} and bool(meant)
    kept = [word for word in kept if not (reads and key_of(word) in PLACES)] + [f"mode={mode}" for mode in meant]
    again = command_again(place, kept)
    if again and reads:  # the folder has the rest
        again = shell_command([*kept, f"results_dir={literal(place)}"])
    return f"'sweep={name}': {name} is the name of results: write {again}" if again else ""


def _without_grid(mode: str, place: Path, errors: Sequence[str]) -> list[str]:
    """Return error lines; in place of an override of the grid that a mode would ignore, what works in that mode."""
    recorded = arguments_in(read_results(ResultsFolder(place)).history)
    lines = []
    for line in errors:
        wrong, words = _suggested(line)
        if words and all(key_of(word).startswith(_OF_THE_GRID) for word in words):
            line = f"{wrong}: {_why_ignored(mode, rewritten(words), place, recorded)}"
        lines.append(line)
    return lines


def _suggested(line: str) -> tuple[str, list[str]]:
    """Return what an error line says, and the overrides that it suggests instead; none if it suggests other things."""
    wrong, _, suggested = line.partition(": write ")
    words: list[str] = []
    with suppress(ValueError):  # a sentence with quotes, and no command
        words = shlex.split(re.sub(r" \([^()]*\)$", "", suggested))
    return wrong, words if all("=" in word for word in words) else []


def _of_the_sweep_in(place: str, errors: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return one line with the whole command of the sweep in a folder if each error suggests overrides; else none."""
    suggestions = [_suggested(line) for line in errors]
    fitting = [override for override in overrides if not any(repr(override) in wrong for wrong, _ in suggestions)]
    corrected = [word for _, words in suggestions for word in words]
    if not all(words for _, words in suggestions) or not (again := command_again(place, [*fitting, *corrected])):
        return []
    return [f"{'; '.join(wrong for wrong, _ in suggestions)}: write {again}"]


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
    if mode == "report" and all(key_of(override).startswith(_OF_THE_GRID) for override in overrides):
        return f"{shown} has no effect on a report: choose cells in its report.html (Show, above its plots)"
    read_only = f"{shown} has no effect: mode={mode} only reads {place}"
    if not any(_is_ignored(override, "report") for override in overrides):
        return f"{read_only}: write {program()} mode=report results_dir={literal(str(place))} {shown}"
    where = [f"results_dir={literal(str(place.parent))}", f"sweep.name={literal(free_beside(place).name)}"]
    dropped = tuple(f"{key_of(override)}=" for override in (*overrides, *where, "rerun", "mode"))
    rows = f'load_results("{place}").summary in Python has a row per cell to choose from, or ' * any(
        override.startswith(_OF_THE_GRID) for override in map(key_of, overrides)
    )
    return f"{read_only}; {rows}run another sweep: {command(recorded, [*overrides, *where], dropped=dropped)}"
