"""Drives a sweep from its plan to its tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from orchestrator import phases
from orchestrator.agenda import Agenda
from orchestrator.backend import Backend
from orchestrator.backends import check_reachable, known_nodes, make_backend
from orchestrator.crash_point import Moment, reached
from orchestrator.ending import Ending
from orchestrator.history import difference, ends_under, latest, spent_gpu_s
from orchestrator.interrupt import Interrupt
from orchestrator.journal import Journal, Kind
from orchestrator.layout import Layout
from orchestrator.live import Display
from orchestrator.lock import DirectoryLock
from orchestrator.origin import origin
from orchestrator.orphans import Watcher
from orchestrator.plan import Plan, TrialsOn
from orchestrator.ray_token import token_file
from orchestrator.record import TrialRecord
from orchestrator.request import Request
from orchestrator.secrets import NO_SECRETS, Secrets
from orchestrator.session import Session
from orchestrator.soundness import Finding, read_results
from orchestrator.spoiled import once_more
from orchestrator.tracking import TrackedListener, make_trackers
from sweeps.mistakes import MistakesError
from sweeps.trial import TrialSpec


def run(
    request: Request,
    asked: Mapping[str, Any],
    trials_on: TrialsOn,
    console: Console,
    secrets: Secrets = NO_SECRETS,
) -> int:
    """Run or continue the sweep, write and print its tables; the exit status.

    `asked` is the config outside the axes: the journal of another question is refused with a MistakesError, one that
    another driver owns with a LockedError. `secrets` are kept out of everything that is written.
    """
    check_reachable(request)
    layout = Layout(request.results_dir)
    trackers = make_trackers(request.trackers, request.name, layout.root)
    try:
        layout.create()
    except OSError as error:
        raise MistakesError([f"results_dir={request.results_dir} cannot be made: {error.strerror}"]) from error
    with (
        DirectoryLock(layout),
        Journal.open(layout.journal) as journal,
        Interrupt() as interrupt,
        Watcher(layout.root),
    ):
        for damage in journal.damages:
            console.print(f"journal: {damage}; moved to {layout.journal.name}.quarantine", style="red")
        _check_unchanged(request, journal, asked)
        with ExitStack() as started:
            nodes = known_nodes(request)
            backend = None if nodes else _start(request, started, console)
            nodes = nodes or (backend.nodes() if backend else ())
            planned = Plan.of(trials_on(nodes), ends_under(journal.records, asked), nodes, request.rerun)
            driver = secrets.value(origin(secrets.value(request.arguments)))
            journal.append(Kind.SWEEP, {"asked": asked, "rerun": request.rerun, "driver": driver})
            reached(Moment.SWEEP_TAKEN_UP)
            if planned.finished:
                console.print(f"{len(planned.finished)} of {len(planned.trials)} trials were finished before")
            began_s = time.monotonic()
            with Display(console, waiting=len(planned.to_run)) as display:
                session = Session(layout, journal, display, interrupt, retries=request.retries, secrets=secrets)
                hopeless = [] if request.wait_s else planned.without_room
                for trial, reason in hopeless:
                    session.found_infeasible(trial, reason)
                to_run = planned.to_run if hopeless else planned.to_run + [trial for trial, _ in planned.without_room]
                if to_run:
                    backend = backend or _start(request, started, console)
                later: list[TrialSpec] = []
                if request.phases:
                    to_run, later = phases.probe(to_run, planned.trials)
                listener = TrackedListener(session, trackers)
                started.callback(listener.close)
                while backend and (to_run or later) and not session.stopping():
                    while to_run and not session.stopping():
                        agenda = _agenda(to_run, planned, request, journal, began_s)
                        backend.run(agenda, layout.root, listener)
                        for trial, outcome in [] if session.stopping() else agenda.left_out:
                            session.left_out(trial, outcome)
                        to_run = session.to_run_again()
                    if later and not session.stopping():
                        to_run, later = _next_phase(request, later, ends_under(journal.records, asked), session)
            share, count = request.rerun_invalid, len(planned.trials)
            spoiled = once_more(planned.to_run, ends_under(journal.records, asked), share=share, planned=count)
            if backend and spoiled and not session.stopping():
                console.print(f"something spoiled the timing of {len(spoiled)} trials: they run once more, alone")
                journal.append(Kind.SPOILED, {"trial_ids": [trial.trial_id for trial in spoiled]})
                with Display(console, waiting=len(spoiled)) as display:
                    session = Session(layout, journal, display, interrupt, secrets=secrets)
                    again = TrackedListener(session, trackers)
                    backend.run(_agenda(spoiled, planned, request, journal, began_s), layout.root, again)
        reached(Moment.ALL_RAN)
        ends = ends_under(journal.records, asked)
        if interrupt.signal is not None:  # said before the tables, which a busy machine may have no time for
            waiting = sum(trial.trial_id not in ends for trial in planned.trials)
            console.print(f"{waiting} planned trials have not run; the same command continues")
        findings = [Finding(where=layout.journal.name, what=f"{damage}; in quarantine") for damage in journal.damages]
        ending = Ending.of(request, layout, planned.trials, ends, driver=driver, findings=findings)
        reached(Moment.TABLES_WRITTEN)
        journal.append(Kind.ENDED, {"missing": ending.missing})
        reached(Moment.SWEEP_ENDED)
        ending.show(console)
        return interrupt.exit_status if interrupt.signal is not None else ending.exit_status


def report(request: Request, console: Console) -> int:
    """Rebuild the tables and the report from the journal as far as it is sound, running nothing; the exit status."""
    layout = Layout(request.results_dir)
    if not layout.journal.exists():
        kept = [str(path) for path in (layout.table("summary.csv"), layout.page) if path.exists()]
        told = f"; what was made of it before is still there: {', '.join(kept)}" if kept else ""
        raise MistakesError([f"there are no results in {layout.root}: it has no {layout.journal.name}{told}"])
    found = read_results(layout)
    ending = Ending.of(request, layout, (), found.ends, driver=found.driver, findings=found.findings)
    ending.show(console)
    return ending.exit_status


def _next_phase(
    request: Request, later: Sequence[TrialSpec], ends: Mapping[str, TrialRecord], session: Session
) -> tuple[list[TrialSpec], list[TrialSpec]]:
    """The next seed of every cell that is still open, and what is left; where none is, the rest is skipped."""
    found = phases.still_open(request, ends)
    asked = [trial for trial in later if trial.cell_id in found.cells]
    seeds = {trial.cell_id: min(each.seed for each in asked if each.cell_id == trial.cell_id) for trial in asked}
    to_run = [trial for trial in asked if trial.seed == seeds[trial.cell_id]]
    if not to_run:
        for trial in later:
            session.left_out(trial, phases.skipped(found.answer))
        return [], []
    return to_run, [trial for trial in later if trial not in to_run]


def _agenda(trials: Sequence[TrialSpec], planned: Plan, request: Request, journal: Journal, began_s: float) -> Agenda:
    return Agenda(
        trials,
        durations=planned.durations,
        limit=request.limit,
        spent_gpu_s=spent_gpu_s(journal.records),
        spent_wall_s=time.monotonic() - began_s,
        wait_s=request.wait_s,
    )


def _start(request: Request, started: ExitStack, console: Console) -> Backend:
    """The back end, which ends with `started`; starting one takes seconds, and so it is announced."""
    if request.backend == "ray":
        console.print("connecting to Ray …" if request.address else "starting Ray …")
    backend = make_backend(request)
    started.callback(backend.close)
    if url := getattr(backend, "dashboard_url", ""):
        console.print(f"Ray dashboard: {url} (it asks for the token in {token_file()})", soft_wrap=True)
    return backend


def _check_unchanged(request: Request, journal: Journal, asked: Mapping[str, Any]) -> None:
    before = latest(journal.records)
    changes = difference(before, asked) if before is not None and journal.terminal() else []
    if changes and not request.allow_changed:
        heading = f"{request.results_dir} holds results of another configuration or other code:"
        raise MistakesError([heading, *changes, "choose another results_dir, or continue here with allow_changed=true"])
