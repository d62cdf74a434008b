"""Reads a results directory that may be of another version, damaged, or copied incompletely.

Everything that can be read is used; everything else becomes a `Problem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.store.history import History
from orchestrator.store.journal import Replay, replay
from orchestrator.store.results_folder import JOURNAL, ResultsFolder
from sweeps.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that needs the reader's attention, such as a file of the results that is damaged."""

    label: str = "Damaged"
    what: str
    where: str = ""  # the damaged file, as a path inside the results directory
    fails: bool = False  # whether it fails the sweep

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


@dataclass(frozen=True, kw_only=True)
class Results:
    """The readable contents of a results directory."""

    history: History
    problems: Sequence[Problem]


def history_in(folder: ResultsFolder, *, may_be_new: bool = False) -> History:
    """Return the state of the sweep in this folder, which is empty in a folder that `may_be_new`.

    Raises ConfigError if it has no journal that can be read.
    """
    try:
        return History(replay(folder.journal).records)
    except FileNotFoundError:
        if may_be_new:
            return History()
        raise ConfigError([f"there are no results in {folder.root}: it has no {JOURNAL}"]) from None
    except OSError as error:
        raise ConfigError([f"{folder.root} cannot be read: {error.strerror}"]) from error


def cell_to_use(recommendation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cell to use now in the content of `recommendation.json`; empty without one."""
    chosen, others = recommendation.get("recommended"), recommendation.get("alternatives")
    cells = [chosen, recommendation.get("baseline"), *(others if isinstance(others, list) else [])]
    cell_id = recommendation.get("cell_id_to_use")
    named = [cell for cell in cells if isinstance(cell, Mapping) and cell.get("cell_id") == cell_id is not None]
    return next(iter(named), chosen if isinstance(chosen, Mapping) else {})


def read_results(folder: ResultsFolder) -> Results:
    """Read the journal and list what is wrong with it or with the trials' folder. Changes nothing on disk."""
    try:
        journal = replay(folder.journal)
    except OSError as error:
        journal = Replay(records=(), damages=(), unusable=(f"cannot be read: {error.strerror}",))
    history = History(journal.records)
    damages = [*(f"{damage}; left out" for damage in journal.damages), *journal.unusable]
    problems = [Problem(where=JOURNAL, what=damage) for damage in damages]
    if others := len(history.all_ends) - len(history.ends):
        problems.append(Problem(where=JOURNAL, what=f"{others} trials of another configuration are left out"))
    return Results(history=history, problems=[*problems, *unknown_folders(folder, history)])


def unknown_folders(folder: ResultsFolder, history: History) -> Iterable[Problem]:
    """Yield a problem if there are folders of trials that are not in the journal, or no folders at all."""
    if not folder.trials.is_dir():
        yield Problem(label="Curves", what=f"none: this copy of the results has no {folder.trials.name}/")
        return
    # Folders that were copied here from another sweep would mix its curves in.
    known = history.folders
    unknown = sorted(path.name for path in folder.trials.iterdir() if path.name not in known)
    if unknown:
        some = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        yield Problem(where=folder.trials.name, what=f"the journal knows no trial {some}; left out")
