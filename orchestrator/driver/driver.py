"""Drives a sweep from its plan to its tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from rich.console import Console

from orchestrator.backends.choice import check_extensions, check_reachable
from orchestrator.config.request import Request
from orchestrator.driver.ending import Ending
from orchestrator.driver.interrupt import Interrupt
from orchestrator.driver.orphans import Watcher
from orchestrator.driver.sweep_run import SweepRun
from orchestrator.journal.journal import Journal
from orchestrator.journal.soundness import read_results
from orchestrator.plan.plan import TrialsOn
from orchestrator.storage.crash_point import Moment, reached
from orchestrator.storage.layout import Layout
from orchestrator.storage.lock import DirectoryLock
from orchestrator.storage.secrets import NO_SECRETS, Secrets
from orchestrator.trackers.tracking import make_trackers
from sweeps.mistakes import MistakesError


def run(
    request: Request,
    asked: Mapping[str, Any],
    trials_on: TrialsOn,
    console: Console,
    secrets: Secrets = NO_SECRETS,
) -> int:
    """Run or continue the sweep, write and print its tables, and return the exit status.

    `asked` is the config outside the axes. Raises MistakesError if the journal is of another config, LockedError if
    another driver owns it. `secrets` are kept out of everything that is written.
    """
    check_reachable(request)
    check_extensions(request)
    layout = Layout(request.results_dir)
    trackers = make_trackers(request.trackers, request.sweep.name, layout.root)
    made = not os.path.exists(layout.root)
    try:
        layout.create()
    except OSError as error:
        raise MistakesError([f"results_dir={request.results_dir} cannot be created: {error.strerror}"]) from error
    with (
        DirectoryLock(layout, made=made),
        _copying(request, layout, console),
        Journal.open(layout.journal) as journal,
        Interrupt() as interrupt,
        Watcher(layout.root),
    ):
        sweep = SweepRun(
            request=request,
            asked=asked,
            console=console,
            secrets=secrets,
            layout=layout,
            journal=journal,
            interrupt=interrupt,
        )
        sweep.check()
        planned = sweep.plan_and_run(trials_on, trackers)
        reached(Moment.ALL_RAN)
        return sweep.end(planned)


def _copying(request: Request, layout: Layout, console: Console) -> AbstractContextManager[object]:
    """Context in which results are also copied to the store that the request names."""
    if request.store is None:
        return nullcontext()
    from orchestrator.storage.copying import Copying  # imports pyarrow, which local folders do not need

    return Copying(request.store, layout, console)


def report(request: Request, console: Console) -> int:
    """Rebuild the tables and the report from what is sound in the journal, run nothing, and return the exit status."""
    layout = Layout(request.results_dir)
    with _copying(request, layout, console):
        return _report(request, layout, console)


def _report(request: Request, layout: Layout, console: Console) -> int:
    if not layout.journal.exists():
        kept = [str(path) for path in (layout.table("summary.csv"), layout.page) if path.exists()]
        what_is_left = f"; files made from it earlier are still there: {', '.join(kept)}" if kept else ""
        raise MistakesError([f"there are no results in {layout.root}: it has no {layout.journal.name}{what_is_left}"])
    found = read_results(layout)
    read_from = replace(layout, set_aside=found.set_aside)
    ending = Ending.of(
        request,
        read_from,
        (),
        found.ends,
        driver=found.driver,
        asked=found.asked,
        findings=found.findings,
        unfinished=found.unfinished,
    )
    ending.show(console)
    return ending.exit_status
