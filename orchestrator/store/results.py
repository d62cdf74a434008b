"""Reads a results directory that may be of another version, damaged, or copied incompletely.

Everything that can be read is used; everything else becomes a `Finding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.store.history import History
from orchestrator.store.journal import decode, split
from orchestrator.store.layout import JOURNAL, Layout
from orchestrator.store.record import Record


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something in the directory that was left out or is incomplete."""

    where: str
    """A path inside the results directory."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class Results:
    """The readable contents of a results directory."""

    history: History
    findings: Sequence[Finding]


def read_results(layout: Layout) -> Results:
    """Read the journal and list what is wrong with it or with the trials' folder. Changes nothing on disk."""
    records, findings = _read_records(layout.journal)
    history = History(records)
    findings += [_unreadable(reason, trials) for reason, trials in history.unreadable.items()]
    if others := len(history.all_rows) - len(history.rows):
        findings.append(Finding(where=JOURNAL, what=f"{others} trials of another configuration are left out"))
    return Results(history=history, findings=[*findings, *unknown_folders(layout, history)])


def _read_records(journal: Path) -> tuple[list[Record], list[Finding]]:
    try:
        lines, damages = split(journal.read_bytes())
    except OSError as error:
        return [], [Finding(where=journal.name, what=f"cannot be read: {error.strerror}")]
    findings = [Finding(where=journal.name, what=f"{damage}; left out") for damage in damages]
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decode(line))
        except (ValueError, KeyError, TypeError) as error:
            what = f"record {number} is of another form: {error!r}; left out"
            findings.append(Finding(where=journal.name, what=what))
    return records, findings


def _unreadable(reason: str, trials: Sequence[str]) -> Finding:
    more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
    return Finding(where=JOURNAL, what=f"the end of trial {trials[0]}{more}: {reason}; left out")


def unknown_folders(layout: Layout, history: History) -> Iterable[Finding]:
    """Yield a finding if there are folders of trials that are not in the journal, or no folders at all."""
    if not layout.trials.is_dir():
        yield Finding(where=layout.trials.name, what="missing, so there are no learning curves")
        return
    known = history.folders
    unknown = sorted(path.name for path in layout.trials.iterdir() if path.name not in known)
    if unknown:
        some = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        yield Finding(where=layout.trials.name, what=f"the journal knows no trial {some}; left out")
