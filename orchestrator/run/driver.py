"""Drives a sweep from its plan to its tables: the steps of `mode=run`, `settle` and `report`, in their order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from rich.console import Console

from orchestrator.backends.backend import Backend
from orchestrator.backends.backend_choice import (
    NO_NODE_YET,
    check_extensions,
    check_reachable,
    first_nodes,
    known_nodes,
    make_backend,
    nodes_ready,
)
from orchestrator.backends.ray.token import token_place
from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.config.commands import command
from orchestrator.config.request import Request
from orchestrator.config.schema import value_at
from orchestrator.plan.plan import Plan
from orchestrator.run.finish import have_not_run, tables_written, write_slow_files
from orchestrator.run.interim_results import InterimResults
from orchestrator.run.interrupt import Interrupt, end_at_once
from orchestrator.run.leftover_processes import Watcher
from orchestrator.run.live_view import Display
from orchestrator.run.provenance import check_hardware, hardware_of, load_warning, origin, way_on
from orchestrator.run.rounds import Rounds
from orchestrator.run.session import Session
from orchestrator.run.verify import table_digests
from orchestrator.schedule.cluster import Footprint, Node
from orchestrator.schedule.queue import TrialQueue
from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.history import History
from orchestrator.store.journal import Journal
from orchestrator.store.lock import DirectoryLock
from orchestrator.store.record import Kind, TrialOutcome
from orchestrator.store.results import Problem, read_results
from orchestrator.store.results_folder import ResultsFolder, free_beside
from orchestrator.tables.terminal import show, show_problems
from orchestrator.text.numbers import counted
from orchestrator.trackers.tracking import Trackers, make_trackers
from sweeps.axes import baseline_errors
from sweeps.errors import ConfigError
from sweeps.rank_exit import Cause


def run(checked: CheckedSweep, console: Console) -> int:
    """Run or continue the sweep, write and print its tables, and return the exit status.

    Raises ConfigError if the journal is of another config or another driver owns it, NotStartedError if the back end
    does not start. The sweep's secrets are kept out of everything that is written.
    """
    request = checked.request
    for remark in checked.remarks:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)
    check_reachable(request)
    check_extensions(request)
    folder = ResultsFolder(request.results_dir)
    tracker = asdict(request.settings.tracker)
    trackers = Trackers(make_trackers(tracker, request.settings.sweep.name, folder.root), checked.secrets)
    # A folder that this driver has made is removed again if the sweep is refused.
    made = not os.path.exists(folder.root)
    try:
        folder.create()
    except OSError as error:
        raise ConfigError([f"results_dir={request.results_dir} cannot be created: {error.strerror}"]) from error
    with (
        DirectoryLock(folder, made=made),
        _copying(request, folder, console),
        Journal.open(folder.journal, checked.secrets) as journal,
        Interrupt() as interrupt,
        Watcher(folder.root, interrupt.received),
    ):
        outputs = journal.history.outputs
        if outputs:
            names = ", ".join(sorted(outputs))
            note = f"every trial writes {names}: its contents do not identify trials"
            console.print(note, soft_wrap=True, markup=False)
        with ExitStack() as stack:
            sweep = SweepRun(
                checked=checked.with_outputs(outputs),
                console=console,
                folder=folder,
                journal=journal,
                interrupt=interrupt,
                stack=stack,
            )
            # Before a back end starts, which takes seconds.
            sweep.check_journal()
            # Where the nodes are known, the back end starts only once there is a trial to run.
            known = known_nodes(request)
            backend, nodes = (None, known) if known else sweep.start_backend()
            plan = Plan.of_sweep(sweep.checked, journal.history.ends_under(sweep.fingerprint), nodes)
            sweep.take_up(plan, here=backend is None)
            plan = sweep.run_trials(plan, backend, trackers)
            reached(Moment.ALL_RAN)
            # The answer need not wait for Ray's processes to end.
            return sweep.end(plan)


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A sweep whose directory and journal are locked by this driver. Its methods are the steps of the run."""

    checked: CheckedSweep
    console: Console
    folder: ResultsFolder
    journal: Journal
    interrupt: Interrupt
    stack: ExitStack  # closes the back end, after the trackers
    began_s: float = field(default_factory=time.monotonic)

    def check_journal(self) -> None:
        """Report damage. Raises ConfigError if the journal is of another config, or has nothing to settle."""
        show_problems(self.damages, self.console)
        history, request = self.journal.history, self.checked.request
        if request.settings.mode == "settle" and not history.all_ends:
            first = command(self.checked.composition.arguments, [], dropped=("mode=",))
            raise ConfigError([f"{request.results_dir} has no results to settle: write {first}"])
        changes = history.changes(self.fingerprint)
        if changes and history.has_answers and not request.settings.allow_changed:
            heading = f"{request.results_dir} holds results from another configuration or other code:"
            result = "plan and tables then leave out the results of what has changed"
            raise ConfigError([heading, *changes, f"{way_on(request)}: {result}"])
        if changes and history.all_ends and not history.has_answers:
            self.console.print("earlier trials here had another configuration, and all failed: they are ignored")

    def start_backend(self) -> tuple[Backend, Sequence[Node]]:
        """Return the back end and its nodes. Raises ConfigError if it gets none."""
        request, interrupt = self.checked.request, self.interrupt
        if request.settings.backend == "ray":
            self.console.print("connecting to Ray …" if request.settings.cluster.address else "starting Ray …")
        with interrupt.ends_at_once():  # Ray takes seconds to start, and longer if interrupted meanwhile
            backend = make_backend(request, self.checked.secrets)
            self.stack.callback(backend.close)
        if backend.dashboard_url:
            self.console.print(f"Ray dashboard: {backend.dashboard_url} (token: {token_place()})", soft_wrap=True)
        wait_s = request.settings.cluster.wait_s
        if wait_s and not nodes_ready(backend.nodes(), request, wait_s):
            # There is no plan without nodes, so that nothing else is known of what will be needed.
            smallest = min(map(Footprint.of, self.checked.trials((NO_NODE_YET,))), key=attrgetter("size"))
            backend.ask_for([smallest])
            gpus = smallest.gang.gpus
            some = f" with {gpus:g} GPUs (resources.device=cpu needs none)" if gpus else ""
            message = f"the cluster has no node to run on: asked for one{some}, waiting up to {wait_s:g} s"
            self.console.print(message, soft_wrap=True)
        nodes = first_nodes(backend, request, wait_s, stopping=lambda: interrupt.signal is not None)
        if not nodes and interrupt.signal is not None:
            end_at_once(interrupt.signal)  # without a plan nothing runs that needs a clean end
        return backend, nodes

    def take_up(self, plan: Plan, *, here: bool) -> None:
        """Journal that this driver takes over; `here`: the trials run on this machine.

        Raises ConfigError if its hardware differs from that of earlier drivers.
        """
        hardware = hardware_of(plan.to_run, plan.nodes, here=here)
        check_hardware(self.checked.request, self.journal.history.hardware, hardware)
        # Secrets are hidden before the command is quoted, which could change them.
        driver = origin(self.checked.secrets.value(self.checked.composition.arguments))
        compared = {
            "fingerprint": self.fingerprint,
            "rerun": sorted(plan.again) if plan.named else self.checked.request.rerun.word,
            "hardware": hardware,
            "planned": len(plan.trials),
            "open": len(plan.trials) - len(plan.finished),
        }
        self.journal.append(Kind.SWEEP, {"driver": driver}, compared)
        reached(Moment.SWEEP_TAKEN_UP)
        if plan.finished:
            self.console.print(f"{len(plan.finished)} of {len(plan.trials)} trials were finished before")
        busy = load_warning(plan.to_run) if here else ""
        if busy:
            self.console.print(busy, style="yellow", markup=False, soft_wrap=True)

    def run_trials(self, plan: Plan, backend: Backend | None, trackers: Trackers) -> Plan:
        """Run what needs to run, on a back end that is started only then, and return the plan with added trials."""
        request, history = self.checked.request, self.journal.history
        began_s = time.monotonic()
        waiting = plan.may_run(waits=request.waits)
        shares_s = plan.timetable.shares_s_of(waiting)
        if waiting:
            self.journal.append(Kind.QUEUED, {}, {"shares_s": shares_s})
        display = Display(self.console, waiting, InterimResults.of(request), shares_s)
        with display, self.interrupt.said_by(display.say):
            session = Session(
                self.folder,
                self.journal,
                display,
                self.interrupt,
                retries=request.settings.retries,
                secrets=self.checked.secrets,
                trackers=trackers,
                rehearsals=plan.forecasts.rehearsals,
            )
            without_room = [
                (trial, TrialOutcome(cause=Cause.NO_ROOM, note=reason, wall_s=0.0))
                for trial, reason in plan.without_room
                if not request.waits or trial.trial_id in plan.too_large
            ]
            session.left_out(without_room)
            settles = request.settings.mode == "settle"
            more_seeds = partial(self.checked.more_seeds, nodes=plan.nodes) if settles else None
            rounds = Rounds(request, plan, session, history, more_seeds)
            trial_queue = rounds.queue(began_s=began_s)
            if trial_queue is not None:
                backend = backend or self.start_backend()[0]
                # Called before the back end closes.
                self.stack.callback(trackers.close)
                try:
                    backend.run(trial_queue, self.folder.root, session)
                    self._account_for(trial_queue, session, rounds)
                finally:
                    session.restore_files()
        return rounds.planned

    def _account_for(self, trial_queue: TrialQueue, session: Session, rounds: Rounds) -> None:
        """Journal trials that were abandoned or never started; report if no node is left or all trials fail."""
        session.cut_off()
        rounds.leave_out(trial_queue.newly_left_out())
        if rounds.unsettled:
            self.console.print(f"the verdict is not clear yet: {rounds.unsettled}; raise it to go on", soft_wrap=True)
        if trial_queue.no_nodes:
            self.console.print("there is no node left to run anything on", style="bold red")
        if trial_queue.all_failing:
            message = (
                f"no trial is ok, and all failed for the same reason, whatever their axes: {trial_queue.all_failing}"
            )
            more = "not running the rest (equal_failures=null runs it anyway)"
            self.console.print(f"{message}; {more}", style="bold red", markup=False, soft_wrap=True)

    def end(self, plan: Plan) -> int:
        """Write and print the tables; return the exit status."""
        history, interrupt, console = self.journal.history, self.interrupt, self.console
        interrupt.nothing_runs()
        if interrupt.signal is not None and history.ends:
            self._report_interrupt(plan)  # before the tables, which a busy machine may not get to
        with console.status("writing the tables …") if console.is_terminal else nullcontext():
            # After an interruption there are a few seconds, and the page alone may take longer.
            end = tables_written(
                self.checked.request,
                self.folder,
                history,
                planned=plan.trials,
                problems=self.damages,  # which have left the screen by now
                in_time=interrupt.signal is None,
            )
        end = replace(end, took_s=time.monotonic() - self.began_s)
        reached(Moment.TABLES_WRITTEN)
        show(end, console)
        write_slow_files(end, console)
        self.journal.append(Kind.ENDED, {}, {"missing": end.missing, "tables": table_digests(self.folder)})
        reached(Moment.SWEEP_ENDED)
        interrupt.all_is_written()
        return interrupt.exit_status if interrupt.signal is not None else end.exit_status

    def _report_interrupt(self, plan: Plan) -> None:
        """Print how many trials have not run, or not again."""
        ends = self.journal.history.ends
        waiting = sum(trial.trial_id not in ends for trial in plan.trials)
        not_again = len(plan.not_run_again(ends))
        if waiting or not not_again:
            self.console.print(have_not_run(waiting))
        if not_again:
            subject = counted(not_again, "trial has", "trials have")
            more = "their rows are unchanged; the same command runs them again"
            self.console.print(f"{subject} not run again: {more}", soft_wrap=True)

    @property
    def damages(self) -> list[Problem]:
        """Damage of the journal at the start, and its records that cannot be used."""
        damages = (f"{damage}; moved to {self.folder.quarantine.name}" for damage in self.journal.damages)
        return [Problem(where=self.folder.journal.name, what=what) for what in (*damages, *self.journal.unusable)]

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """The config outside the axes, and the hashes of code and data."""
        return self.checked.fingerprint()


def _copying(request: Request, folder: ResultsFolder, console: Console) -> AbstractContextManager[object]:
    """Context in which results are also copied to the store that the request names."""
    if request.store is None:
        return nullcontext()
    from orchestrator.store.cloud import Copying  # imports pyarrow, which local folders do not need

    return Copying(request.store, folder, console)


def report(checked: CheckedSweep, console: Console, what_if: Callable[[History], tuple[str, Sequence[str]]]) -> int:
    """Rebuild the tables and the report from what can be read in the journal, run nothing, and return the exit status.

    `what_if` names settings that differ from the sweep's own (the files are then written beside those of the sweep),
    and returns the command line that the report repeats.
    """
    request = checked.request
    folder = ResultsFolder(request.results_dir)
    with _copying(request, folder, console):
        if not folder.journal.exists():
            kept = [str(path) for path in (folder.table("summary.csv"), folder.page) if path.exists()]
            what_is_left = f"; files made from it earlier are still there: {', '.join(kept)}" if kept else ""
            raise ConfigError([f"there are no results in {folder.root}: it has no {folder.journal.name}{what_is_left}"])
        results = checked.results or read_results(folder)
        history = results.history
        if results.problems and not history.ends:
            lines = [f"{folder.root}: {problem}" for problem in results.problems]
            stand = f"; {folder.tables} stays as it was" if folder.tables.is_dir() else ""
            raise ConfigError([*lines, f"{folder.journal}: no trial can be read{stand}"])
        differing, arguments = what_if(history)
        _check_target(request, history, arguments)
        points = [end.axes for end in history.ends.values()]
        # The sweep's own baseline may still have to run.
        if differing and (errors := list(baseline_errors(request.settings.sweep.baseline or {}, points))):
            raise ConfigError(errors)
        folder = replace(folder, what_if=differing, set_aside=history.set_aside)
        folder.create_output()
        end = tables_written(request, folder, history, arguments=arguments, problems=results.problems)
        show(end, console)
        write_slow_files(end, console)
        return end.exit_status


def _check_target(request: Request, history: History, arguments: Sequence[str]) -> None:
    """Raise ConfigError for a target other than the trials': only they can measure when they reach it.

    The error has the sweep's command line, `arguments`, with the target.
    """
    of_trials = value_at(history.fingerprint or {}, "config.report.target")
    if request.target and "config" in (history.fingerprint or {}) and of_trials != asdict(request.target):
        value = f"report.target={request.target.value:g}"
        recorded = f"the time to {of_trials['value']:g}" if isinstance(of_trials, Mapping) else "no time to a target"
        # Trials with another target are other trials.
        changed = [value, f"sweep.name={free_beside(request.results_dir).name}"]
        again = command(arguments, changed, dropped=("mode=", "rerun=", "report.target=", "sweep.name="))
        raise ConfigError([f"{value}: the trials recorded {recorded}: write {again}"])
