"""The results directory of a sweep: the names of its paths, except in back ends and ranks.

A back end puts `trials` and the id together (`Backend.run`).
A rank gets the directory of its trial, and names what it writes there: `rank_log` in `backends/ray/rank.py`,
checkpoints and branch points in `trainables/context.py`, by the same names as here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from orchestrator.store.files import make_directory, refuse_link

TRIAL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

JOURNAL = "journal.jsonl"
CONFIG, METRICS, TRACE, TELEMETRY = "config.yaml", "metrics.jsonl", "trace.txt", "telemetry.parquet"
"""Files in the folder of a trial."""
WHAT_IF = "what_if"  # folder of reports with other settings than the sweep's own
KEPT = "kept"  # folder in a trial's: the files of its valid row, while a further attempt writes its own


@dataclass(frozen=True)
class ResultsFolder:
    """The results directory of one sweep. Names paths without touching them; only `create` makes directories."""

    root: Path
    set_aside: frozenset[str] = frozenset()
    """For readers: trials in the middle of a further attempt, of which the files kept for the valid row are read."""
    what_if: str = ""
    """The settings of a report that differ from the sweep's own; its tables and report are in a folder of this name."""

    @property
    def journal(self) -> Path:
        """The journal, from which everything else can be rebuilt."""
        return self.root / JOURNAL

    def rehearsals_for(self, shapes_of: str | None) -> Path:
        """Return the file of the rehearsals that forecasts follow from, or of those from the shapes for a GPU."""
        return self.root / ("shapes.json" if shapes_of else "rehearsals.json")

    @property
    def quarantine(self) -> Path:
        """Damaged lines removed from the journal."""
        return quarantine_of(self.journal)

    @property
    def lock(self) -> Path:
        """Locked while a driver owns the directory; the file itself stays."""
        return self.root / "lock"

    @property
    def owner(self) -> Path:
        """The process that holds the lock; stale if the lock is free."""
        return self.root / "owner.json"

    @property
    def trials(self) -> Path:
        """A directory for each trial."""
        return self.root / "trials"

    @property
    def output(self) -> Path:
        """The folder of the tables and the report."""
        return self.root / WHAT_IF / self.what_if if self.what_if else self.root

    @property
    def tables(self) -> Path:
        """Tables for programs (CSV, Parquet) and for people (Markdown)."""
        return self.output / "tables"

    def table(self, name: str) -> Path:
        """A file among the tables, such as `summary.csv` or `speedup.md`."""
        return self.tables / name

    @property
    def page(self) -> Path:
        """The report as one self-contained HTML file."""
        return self.output / "report.html"

    @property
    def report_trace(self) -> Path:
        """The traceback of the last failure to make the report."""
        return self.output / "report_trace.txt"

    def trial(self, trial_id: str) -> Path:
        """One trial's directory. Raises ValueError for an id that could lead out of the results directory."""
        if not TRIAL_ID.fullmatch(trial_id):
            raise ValueError(f"{trial_id!r} is not a trial id: 1 to 64 of letters, digits, '_' and '-'")
        return self.trials / trial_id

    def config(self, trial_id: str) -> Path:
        """The resolved config of one trial."""
        return self._file(trial_id, CONFIG)

    def trace(self, trial_id: str) -> Path:
        """The traceback of one trial's latest failed attempt."""
        return self._file(trial_id, TRACE)

    def evidence_of(self, trial_id: str) -> Path:
        """The file that explains a failure of one trial: what its command printed, else the traceback or the folder."""
        # A command's own traceback is in what it printed.
        places = (self._file(trial_id, "stderr.log"), self.trace(trial_id))
        return next((path for path in places if path.is_file()), self.trial(trial_id))

    def metrics(self, trial_id: str) -> Path:
        """The learning curve of one trial's latest attempt."""
        return self._file(trial_id, METRICS)

    def telemetry(self, trial_id: str) -> Path:
        """The telemetry samples of one trial's devices."""
        return self._file(trial_id, TELEMETRY)

    def _file(self, trial_id: str, name: str) -> Path:
        folder = self.trial(trial_id)
        # The files in the folder itself belong to an attempt that does not count yet.
        kept = folder / KEPT / name
        return kept if trial_id in self.set_aside and kept.exists() else folder / name

    def checkpoint(self, trial_id: str) -> Path:
        """The folder for checkpoints from which the next attempt continues."""
        return self.trial(trial_id) / "checkpoint"

    def branch_point(self, base: str, tokens: int) -> Path:
        """The folder for the checkpoint of a base after so many tokens, from which branches start."""
        return self.trial(base) / f"branch-{tokens}"

    def create(self) -> None:
        """Create the directories of a sweep, private to their owner.

        The root may be a link, for example to a larger disk. Raises OSError if one of the others is a link, which
        somebody who passed on the directory may have planted.
        """
        if not self.root.is_dir():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            make_directory(self.root)
        for directory in (self.trials, self.tables):
            make_directory(directory)

    def create_output(self) -> None:
        """Create the folder of the tables and the report, as `create` does."""
        for directory in (self.output.parent, self.output) if self.what_if else ():
            make_directory(directory)

    def remove_if_unused(self) -> None:
        """Remove what `create` and the driver's start have made, unless something was added."""
        # A refused request must leave nothing behind, and must not delete what others have put here.
        own = {self.journal, self.lock, self.trials, self.tables}
        used = self.journal.exists() and self.journal.stat().st_size > 0
        if used or set(self.root.iterdir()) - own or any(self.trials.iterdir()) or any(self.tables.iterdir()):
            return
        for directory in (self.trials, self.tables):
            directory.rmdir()
        for file in (self.journal, self.lock):
            file.unlink(missing_ok=True)
        self.root.rmdir()

    def refuse_links(self, trial_id: str) -> None:
        """Raise OSError if one of a trial's directories is a link."""
        # Checked before each attempt, because a trial's own program writes there.
        for directory in (self.trial(trial_id), self.checkpoint(trial_id)):
            refuse_link(directory)


def quarantine_of(journal: Path) -> Path:
    """The quarantine file of a journal."""
    return journal.with_name(f"{journal.name}.quarantine")


def free_beside(folder: Path) -> Path:
    """Return the place of a further sweep beside this one: the first of NAME_2, NAME_3 … that does not exist."""
    places = (folder.with_name(f"{folder.name}_{number}") for number in count(2))
    return next(place for place in places if not place.exists())


def results_below(folder: Path) -> list[str]:
    """The results folders of several sweeps in this folder; empty if it is a results folder itself."""
    if ResultsFolder(folder).journal.exists():
        return []
    return sorted(str(journal.parent) for journal in folder.glob(f"*/{JOURNAL}"))
