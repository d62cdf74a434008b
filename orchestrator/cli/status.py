"""`mode=status`: what a sweep runs now and how far it is. `mode=list`: the sweeps in a folder, and configs to run."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.config.commands import program
from orchestrator.schedule.time_left import TimeLeft
from orchestrator.store import files
from orchestrator.store.history import History
from orchestrator.store.lock import driver_of
from orchestrator.store.record import TrialRecord
from orchestrator.store.results import cell_to_use, history_in
from orchestrator.store.results_folder import JOURNAL, ResultsFolder, results_below
from orchestrator.text.cell_labels import trial_label
from orchestrator.text.numbers import counted
from sweeps.errors import ConfigError
from sweeps.identity import SHOWN_DIGITS
from sweeps.rerun_selection import is_label, label_axes
from sweeps.status import Status
from sweeps.trial import Batch

_LOG_LINES = 20  # of a trial's log that are shown
_LOG_BYTES = 100_000  # at its end, which are read for them
_MOST_FAILURES = 5  # failed trials that are listed


def status_of(root: Path) -> dict[str, Any]:
    """Return a sweep's state as JSON values. Raises ConfigError if the folder has no journal."""
    folder = ResultsFolder(root)
    history = history_in(folder)
    failures = [_failure(folder, end) for end in history.ends.values() if end.status == Status.FAILED]
    return {**state_of(folder, history, history.ends), "failures": failures}


def _failure(folder: ResultsFolder, end: TrialRecord) -> dict[str, str]:
    """Return a trial's id, the first line of its error, and the file or folder that has the rest."""
    log = str(folder.evidence_of(end.trial_id))
    return {"trial_id": end.trial_id, "note": end.note.partition("\n")[0], "log": log}


def logs_of(arguments: Sequence[str]) -> Iterator[str]:
    """Yield a line for each trial whose id the arguments have, with its log; without an id, for those that failed.

    For `mode=logs` without failed trials, that is the trial that runs or has ended last.
    """
    given = _given(arguments)
    words = [value or key for key, value in given.items() if key in ("trial", "trial_id", "id") or not value]
    ids = [word for word in words if re.fullmatch(r"[0-9a-f]{4,64}", word)]
    asks_for_any = not ids and given.get("mode") in ("logs", "log")
    for folder in _folders(given):
        history = history_in(folder, may_be_new=True)
        if asks_for_any and not any(end.status == Status.FAILED for end in history.ends.values()):
            started = [trial_id for trial_id, trial in history.trials.items() if trial.running and driver_of(folder)]
            for trial_id in [*history.ends, *started][-1:]:
                yield f"{trial_id[:SHOWN_DIGITS]} {'runs' if started else 'ended last'}: {folder.evidence_of(trial_id)}"
        for end in history.ends.values():
            if end.trial_id.startswith(tuple(ids)) if ids else end.status == Status.FAILED:
                failure = _failure(folder, end)
                told = filter(None, (f"{end.trial_id[:SHOWN_DIGITS]} {end.status}", failure["log"], failure["note"]))
                yield ": ".join(told)
                for log in sorted(folder.trial(end.trial_id).glob("*.log")) if ids else ():
                    with suppress(OSError):  # a folder, a pipe, or a link that leads elsewhere
                        folder.refuse_links(end.trial_id)
                        files.refuse_link(log)
                        content = files.read_regular(log, _LOG_BYTES).decode(errors="replace")
                        lines = content.splitlines()[-_LOG_LINES:]
                        yield f"{log}: {f'its last {len(lines)} lines' if lines else 'it printed nothing'}"
                        yield from lines


def cells_of(arguments: Sequence[str]) -> Iterator[str]:
    """Yield a line for each finished cell that a word names by its label, `2x32`, with why it is not chosen."""
    given = _given(arguments)
    named = {word: label_axes(word) for word, value in given.items() if not value and is_label(word)}
    for folder in _folders(given) if named else ():
        table = folder.table("summary.csv")
        if not table.is_file():
            continue
        decided = recommendation_in(folder)
        others = decided.get("alternatives")
        discussed = [decided.get("baseline"), *(others if isinstance(others, list) else [])]
        reasons = {cell.get("cell_id"): cell.get("why_not") for cell in discussed if isinstance(cell, Mapping)}
        reasons |= {decided.get("cell_id_to_use"): decided.get("sentence")}
        rows = list(csv.DictReader(files.read_regular(table).decode(errors="replace").splitlines()))
        for word, axes in named.items():
            cells = [row for row in rows if all(row.get(axis) == value for axis, value in axes.items())]
            for row in cells:
                label = f"{row['gpus']}×{row['device_batch_size']} {row.get('lr_rule', '')}".strip()
                yield f"{label}: {row['status']}: {reasons.get(row['cell_id']) or row['note'] or 'others are better'}"
            if not cells:
                yield f"{word}: there is no such cell"
        yield f"all figures of all cells: {folder.page}, or {table}"


def stops_of(arguments: Sequence[str]) -> Iterator[str]:
    """Yield a line for each sweep that runs in the folder that the arguments name, with how to stop it."""
    for folder in _folders(_given(arguments)):
        if driver := driver_of(folder):
            pid = re.search(r"\d+", driver)
            yield f"{folder.root}: {driver} runs it: press Ctrl-C there, or write kill {pid[0] if pid else 'PID'} there"


def pages_of(arguments: Sequence[str]) -> Iterator[str]:
    """Yield a line for each report in the folder that the arguments name."""
    for folder in _folders(_given(arguments)):
        if folder.page.is_file():
            yield f"open {folder.page} in a browser, or write {program()} mode=watch results_dir={folder.root}"


def _given(arguments: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (argument.partition("=") for argument in arguments)}


def _folders(given: Mapping[str, str]) -> list[ResultsFolder]:
    """Return the folders of the sweeps in the place that arguments name."""
    # Unlike pathlib's, this function takes the home of an unknown user.
    place = Path(os.path.expanduser(given.get("results_dir", "results").strip("'\"")))
    # `sweep=again` may name results, too.
    name, sweep = given.get("sweep.name", ""), given.get("sweep", "")
    place /= name or (sweep if (place / sweep / JOURNAL).is_file() else "")
    return [ResultsFolder(root) for root in (*map(Path, results_below(place)), place)]


def state_of(folder: ResultsFolder, history: History, ends: Mapping[str, TrialRecord]) -> dict[str, Any]:
    """Return the state of a sweep with this history, as `status_of`; `ends` are those of the history."""
    driver = driver_of(folder)
    counts = Counter(str(end.status) for end in ends.values())
    started = [trial_id for trial_id, trial in history.trials.items() if trial.running]
    # Without a driver nothing runs: a start without an end was interrupted.
    running = [_running(folder, trial_id, history) for trial_id in started] if driver else []
    again = sum(trial_id in ends or bool(history.of(trial_id).measures) for trial_id in started)
    # Journals of earlier versions do not tell the number, and the grid may have become smaller.
    planned = max(history.planned, len(ends))
    # A trial that runs again, or is timed again, has an end already and would count twice.
    ended = len(ends) - (again if driver else 0)
    waiting = max(0, planned - ended - len(running))
    left_s: float | None = None
    if driver and history.queued:
        # Further seeds and repetitions wait, too, which were not planned.
        settled = {*started, *(end.trial_id for end in history.ended_since)}
        queued = history.queued.keys() - settled
        waiting = len(queued)
        # A trial that is to run again has an end.
        planned = max(planned, len({*ends, *started, *queued}))
        left_s = _left_s(history, running)
    return {
        "folder": str(folder.root),
        "driver": driver or None,
        "state": "running" if driver else "finished" if history.missing == 0 else "not finished",
        "planned": planned,
        "probes": len(history.probes),
        "trials": dict(sorted(counts.items())) | {"running": len(running), "waiting": waiting},
        "running": running,
        "interrupted": 0 if driver else len(started),
        "left_s": left_s,
    }


def _left_s(history: History, running: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the driver's estimate of the seconds until the last trial ends; None if neither plan nor ends tell."""
    time_left, now_s = TimeLeft(), time.time()
    time_left.queued(history.queued)
    for end in history.ended_since:
        if not end.ran:
            time_left.dequeued([end.trial_id])
            continue
        try:
            ended_s = datetime.fromisoformat(end.finished_at).timestamp()
        except (ValueError, OverflowError, OSError):  # a stranger's journal may have any text
            continue
        time_left.started(ended_s - end.wall_s)
        time_left.ended(end.trial_id, ended_s)
    time_left.started(now_s - max((trial["running_s"] or 0.0 for trial in running), default=0.0))
    return time_left.left_s(now_s, [trial["trial_id"] for trial in running])


def show_status(status: Mapping[str, Any], console: Console) -> None:
    """Print what `status_of` returned."""
    counts = ", ".join(f"{count} {name}" for name, count in status["trials"].items() if count)
    probes = counted(status["probes"], "probe has", "probes have")
    counts += f"; {probes} ended" if probes else ""
    console.print(f"{status['folder']}: {status['state']}", markup=False, soft_wrap=True)
    console.print(f"{counted(status['planned'], 'trial', 'trials') or 'no trials'}: {counts or 'none has started'}")
    for trial in status["running"]:
        took = f" for {trial['running_s']:.0f} s" if trial["running_s"] is not None else ""
        state, shown = ("timed again", trial["measures"]) if trial["measures"] else ("running", trial["trial_id"])
        console.print(f"  {state}{took}: {shown[:SHOWN_DIGITS]}  {trial['cell']}", markup=False, soft_wrap=True)
    for failure in status["failures"][:_MOST_FAILURES]:
        told = f"  failed: {failure['trial_id'][:SHOWN_DIGITS]}  {failure['note']}: {failure['log']}"
        console.print(told, markup=False, soft_wrap=True)
    if len(status["failures"]) > _MOST_FAILURES:
        console.print(f"  and {len(status['failures']) - _MOST_FAILURES} more")
    if status["driver"]:
        left = status["left_s"]
        known = f"about {timedelta(seconds=round(left))} left" if left is not None else "time left unknown"
        console.print(f"{status['driver']} runs it; {known}", markup=False, soft_wrap=True)
        return
    cut = counted(status["interrupted"], "trial was", "trials were")
    remarks = ["no driver runs", *([f"{cut} interrupted"] if cut else [])]
    remarks += ["the same command continues"] if cut or status["trials"]["waiting"] else []
    console.print("; ".join(remarks))


def sweeps_in(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each sweep with results in this folder, as JSON values."""
    rows = []
    for journal in sorted(folder.glob(f"*/{JOURNAL}")):
        try:
            status = status_of(journal.parent)
        except ConfigError:  # a damaged journal hides no other sweep
            status = {"state": "unreadable", "planned": 0, "trials": {}}
        decided = recommendation_in(ResultsFolder(journal.parent))
        chosen = cell_to_use(decided)
        rows.append(
            {
                "sweep": journal.parent.name,
                "state": status["state"],
                "trials": status["planned"],
                "ok": status["trials"].get("ok", 0),
                "verdict": decided.get("verdict"),
                "recommended": chosen.get("name"),
            }
        )
    return rows


def recommendation_in(folder: ResultsFolder) -> Mapping[str, Any]:
    """Return the content of `recommendation.json`; empty before the first tables."""
    try:
        content = json.loads(files.read_regular(folder.table("recommendation.json")))
    except (OSError, ValueError, RecursionError):  # no tables yet, or not this program's
        return {}
    return content if isinstance(content, dict) else {}


def show_list(folder: Path, rows: Sequence[Mapping[str, Any]], configs: Sequence[str], console: Console) -> None:
    """Print what `sweeps_in` returned, and the sweep configs that can be run."""
    if rows:
        table = Table(title=Text(f"Sweeps in {folder}"), title_justify="left", box=None, pad_edge=False)
        for heading in ("sweep", "state", "ok", "verdict", "recommended"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            verdict = str(row["verdict"] or "-").upper()
            shown = (row["sweep"], row["state"], f"{row['ok']}/{row['trials']}", verdict, row["recommended"] or "-")
            # As plain text: names may have brackets, and a stranger's table any value.
            table.add_row(*(Text(str(value)) for value in shown))
        console.print(table)
        one = f"{program()} mode=status results_dir={folder / rows[0]['sweep']}"
        console.print(f"one of them: {one}", markup=False, soft_wrap=True)
    else:
        console.print(f"no sweeps in {folder}", markup=False, soft_wrap=True)
    console.print(f"\nconfigs: {', '.join(f'sweep={name}' for name in configs)}", markup=False, soft_wrap=True)
    console.print("your own in FOLDER/sweep/NAME.yaml: -cd FOLDER sweep=NAME")


def _running(folder: ResultsFolder, trial_id: str, history: History) -> dict[str, Any]:
    """Return a running trial: its cell, its attempt, and since when it runs (from the file that a start writes).

    A repetition `measures` another trial, whose id people know.
    """
    path = folder.config(trial_id)
    cell, since_s = "", None
    try:
        config = files.load(files.read_regular(path))
        since_s = max(0.0, time.time() - path.stat().st_mtime)
        device_batch_size = Batch(**config["batch"]).device_batch_size
        cell = trial_label({**config, "device_batch_size": device_batch_size, "lr_rule": config["lr"]["rule"]})
    # Not written yet, or in a foreign folder anything else.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, yaml.YAMLError):
        pass
    state = history.of(trial_id)
    own = {"trial_id": trial_id, "measures": state.measures, "cell": cell}
    return {**own, "attempt": state.attempt, "running_s": since_s}
