"""Drives a sweep from its plan to its tables.

The hardware that a sweep's trials run on, and whether a continued sweep still has the same.

A sweep run by this driver: its plan, its trials and its end.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.backends.backend import Backend
from orchestrator.backends.choose import check_extensions, check_reachable, known_nodes, make_backend
from orchestrator.backends.ray.token import token_place
from orchestrator.config.request import Request
from orchestrator.config.setup import CheckedSweep, Grid
from orchestrator.plan.plan import Plan
from orchestrator.run.display import Display
from orchestrator.run.finish import SweepSummary, have_not_run
from orchestrator.run.interrupt import Interrupt, end_at_once
from orchestrator.run.leftover_processes import Watcher
from orchestrator.run.provenance import origin
from orchestrator.run.rounds import Rounds, SharedTimings, SweepListener
from orchestrator.run.session import Session
from orchestrator.run.verify import table_digests
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.queue import Retries, TrialQueue
from orchestrator.schedule.waiting_for_nodes import NO_NODE_YET, Patience, first_nodes, first_shape, nodes_ready
from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.history import History, difference
from orchestrator.store.journal import Journal
from orchestrator.store.layout import Layout
from orchestrator.store.lock import DirectoryLock
from orchestrator.store.record import Kind, TrialOutcome
from orchestrator.store.results import Finding, read_results
from orchestrator.store.secrets import Secrets
from orchestrator.telemetry.foreign_load import load_now
from orchestrator.telemetry.timing_gate import FOREIGN_CPU
from orchestrator.text.numbers import counted
from orchestrator.trackers.tracking import Tracker, make_trackers
from sweeps.errors import ConfigError
from sweeps.status import Status, SweepBudget
from sweeps.trial import TrialSpec

Hardware = Mapping[str, str]

_CPU_INFO = Path("/proc/cpuinfo")


def hardware_of(trials: Iterable[TrialSpec], nodes: Sequence[Node], *, here: bool) -> Hardware:
    """The models of the hardware for these trials, `gpu` and `cpu`, as far as the nodes report them.

    A CPU model is known before a trial reports it only for this machine (`here`).
    """
    devices = {trial.device for trial in trials}
    gpus = sorted({node.gpu_type for node in nodes if node.gpus and node.gpu_type})
    found = {"gpu": " + ".join(gpus) if "cuda" in devices else "", "cpu": _cpu() if "cpu" in devices and here else ""}
    return {kind: model for kind, model in found.items() if model}


def check_hardware(request: Request, before: Hardware, now: Hardware) -> None:
    """Raise ConfigError if the sweep's last trials ran on other hardware, unless `allow_changed` permits that."""
    both = before.keys() & now.keys()
    changes = difference({kind: before[kind] for kind in both}, {kind: now[kind] for kind in both})
    if changes and not request.allow_changed:
        heading = f"{request.results_dir} holds results from other hardware:"
        way_on = "choose another results_dir, or continue here with allow_changed=true: the tables keep devices apart"
        raise ConfigError([heading, *changes, way_on])


def _cpu() -> str:
    named = re.search(r"model name\s*:\s*(.+)", _CPU_INFO.read_text()) if _CPU_INFO.exists() else None
    return named[1].strip() if named else platform.processor()


def load_warning(to_run: Sequence[TrialSpec]) -> str:
    """Return a warning if other programs on this machine would disturb the timings of these trials; else empty."""
    if all(trial.timing == "shared" for trial in to_run) or not Path("/proc/stat").exists():
        return ""
    share, busiest = load_now()
    if share <= FOREIGN_CPU:
        return ""
    most = f", most of it {busiest}" if busiest else ""
    return (
        f"other programs use {share:.0%} CPU{most}: timings will be discarded; "
        "close them, or accept with resources.timing=shared"
    )


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A sweep whose directory and journal are locked by this driver."""

    request: Request
    fingerprint: Mapping[str, Any]
    console: Console
    secrets: Secrets
    layout: Layout
    journal: Journal
    interrupt: Interrupt
    began_s: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Report damage. Raises ConfigError if the journal is of another config."""
        for damage in self.journal.damages:
            self.console.print(f"journal: {damage}; moved to {self.layout.quarantine.name}", style="red")
        for unusable in self.journal.unusable:
            self.console.print(f"journal: {unusable}", style="red", markup=False, soft_wrap=True)
        history, request = self.journal.history, self.request
        changes = history.changes(self.fingerprint)
        if changes and history.has_answers and not request.allow_changed:
            heading = f"{request.results_dir} holds results from another configuration or other code:"
            way_on = "choose another results_dir, or continue here with allow_changed=true"
            result = "plan and tables then leave out the results of what has changed"
            raise ConfigError([heading, *changes, f"{way_on}: {result}"])
        if changes and history.all_rows and not history.has_answers:
            self.console.print("earlier trials here had another configuration, and all failed: they are ignored")

    def plan_and_run(self, grid: Grid, trackers: Mapping[str, Tracker]) -> Plan:
        """Plan, run what needs to run, and return the plan."""
        request = self.request
        with ExitStack() as started:
            known = known_nodes(request)
            backend, nodes = (None, known) if known else self._start(started, grid)
            trials, selection = grid.trials(nodes), request.selection
            rows = self.journal.history.rows_under(self.fingerprint)
            planned = Plan.with_bases(trials, rows, nodes, selection.rerun, self.layout)
            self._take_up(hardware_of(planned.to_run, nodes, here=known is not None), planned)
            if planned.finished:
                self.console.print(f"{len(planned.finished)} of {len(planned.trials)} trials were finished before")
            if known is not None and (busy := load_warning(planned.to_run)):
                self.console.print(busy, style="yellow", markup=False, soft_wrap=True)
            began_s = time.monotonic()
            waiting = len(planned.may_run(waits=request.cluster.wait_s > 0))
            live = Display(self.console, waiting=waiting, metric=request.criteria.metric)
            with live as display, self.interrupt.said_by(display.say):
                history = self.journal.history
                retries = Retries(request.failures.retries, history.failures)
                session = Session(
                    self.layout, self.journal, display, self.interrupt, retries=retries, secrets=self.secrets
                )
                if not request.cluster.wait_s:
                    session.left_out(
                        (each, TrialOutcome(status=Status.INFEASIBLE, note=reason, wall_s=0.0))
                        for each, reason in planned.without_room
                    )
                more_seeds = (
                    (lambda trial, seeds: grid.further(trial, seeds, nodes)) if request.mode == "settle" else None
                )
                rounds = Rounds(request, planned, session, history, more_seeds)
                if rounds:
                    backend = backend or self._start(started, grid)[0]
                    timings = SharedTimings()
                    trial_queue = self._trial_queue(rounds.first, planned, retries, began_s, timings)
                    listener = SweepListener(session, trackers, self.secrets, rounds, trial_queue, timings)
                    started.callback(listener.close)
                    started.callback(session.settle)
                    backend.run(trial_queue, self.layout.root, listener)
                    self._account_for(trial_queue, session, rounds)
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

    def _start(self, started: ExitStack, grid: Grid) -> tuple[Backend, Sequence[Node]]:
        """The back end, closed along with `started`, and its nodes. Raises ConfigError if it gets none."""
        request, interrupt = self.request, self.interrupt
        with interrupt.ends_at_once():  # Ray takes seconds to start, and longer if interrupted meanwhile
            backend = _started(request, started, self.console, self.secrets)
        if request.cluster.wait_s and not nodes_ready(backend.nodes(), request.cluster):
            self._ask_for_first(backend, grid)
        nodes = first_nodes(backend.nodes, request.cluster, stopping=lambda: interrupt.signal is not None)
        if not nodes and interrupt.signal is not None:
            end_at_once(interrupt.signal)  # without a plan nothing runs that needs a clean end
        return backend, nodes

    def _ask_for_first(self, backend: Backend, grid: Grid) -> None:
        """Ask for a node that could run the smallest trial, since there is no plan without nodes."""
        first = first_shape(grid.trials((NO_NODE_YET,)))
        backend.ask_for([first])
        gpus = f" with {first.gang.gpus:g} GPUs (resources.device=cpu needs none)" if first.gang.gpus else ""
        wait_s = self.request.cluster.wait_s
        message = f"the cluster has no node to run on: asked for one{gpus}, waiting up to {wait_s:g} s"
        self.console.print(message, soft_wrap=True)

    def _take_up(self, hardware: Hardware, planned: Plan) -> None:
        """Journal that this driver takes over. Raises ConfigError if its hardware differs from the earlier ones'."""
        check_hardware(self.request, self.journal.history.hardware, hardware)
        rerun = sorted(planned.again) if planned.named else self.request.selection.rerun.word
        value = {"fingerprint": self.fingerprint, "rerun": rerun, "driver": self._who, "hardware": hardware}
        self.journal.append(
            Kind.SWEEP, value | {"planned": len(planned.trials), "open": len(planned.trials) - len(planned.finished)}
        )
        reached(Moment.SWEEP_TAKEN_UP)

    def end(self, planned: Plan) -> int:
        """Write and print the tables; the exit status."""
        ends, interrupt, console = self.journal.history.rows, self.interrupt, self.console
        interrupt.nothing_runs()
        if interrupt.signal is not None and ends:  # before the tables, which a busy machine may not get to
            waiting = sum(trial.trial_id not in ends for trial in planned.trials)
            again = len(planned.not_run_again(ends))
            if waiting or not again:
                console.print(have_not_run(waiting))
            if again:
                who = counted(again, "trial has", "trials have")
                more = "their rows are unchanged; the same command runs them again"
                console.print(f"{who} not run again: {more}", soft_wrap=True)
        flaws = [*(f"{damage}; in quarantine" for damage in self.journal.damages), *self.journal.unusable]
        findings = [Finding(where=self.layout.journal.name, what=each) for each in flaws]
        with console.status("writing the tables and the report …") if console.is_terminal else nullcontext():
            history = self.journal.history
            summary = SweepSummary.of(self.request, self.layout, history, planned=planned.trials, findings=findings)
        reached(Moment.TABLES_WRITTEN)
        self.journal.append(Kind.ENDED, {"missing": summary.missing, "tables": table_digests(self.layout)})
        reached(Moment.SWEEP_ENDED)
        summary.show(console, time.monotonic() - self.began_s)
        return interrupt.exit_status if interrupt.signal is not None else summary.exit_status

    @cached_property
    def _who(self) -> Any:
        return self.secrets.value(origin(self.secrets.value(self.request.arguments)))

    def _trial_queue(
        self, trials: Sequence[TrialSpec], planned: Plan, retries: Retries, began_s: float, timings: SharedTimings
    ) -> TrialQueue:
        allowed, wait_s = self.request.failures.equal_failures, self.request.cluster.wait_s
        spent = SweepBudget(
            limit=self.request.selection.limit,
            gpu_s=self.journal.history.spent_gpu_s,
            wall_s=time.monotonic() - began_s,
        )
        rows = self.journal.history.rows.values()
        return TrialQueue(
            trials,
            durations=planned.durations,
            budget=spent,
            patience=Patience(
                wait_s=wait_s, waited_s=0.0 if nodes_ready(planned.nodes, self.request.cluster) else wait_s
            ),
            retries=retries,
            more=True,
            as_started=timings.as_started,
            equal_failures=None if any(row.status is Status.OK for row in rows) else allowed,
        )


def _started(request: Request, started: ExitStack, console: Console, secrets: Secrets) -> Backend:
    """Announce and start the back end, which takes seconds; it is closed along with `started`."""
    if request.cluster.backend == "ray":
        console.print("connecting to Ray …" if request.cluster.address else "starting Ray …")
    backend = make_backend(request, secrets)
    started.callback(backend.close)
    if url := backend.dashboard_url:
        console.print(f"Ray dashboard: {url} (it asks for the token in {token_place()})", soft_wrap=True)
    return backend


def run(checked: CheckedSweep, console: Console) -> int:
    """Run or continue the sweep, write and print its tables, and return the exit status.

    Raises ConfigError if the journal is of another config, LockedError if another driver owns it. The sweep's secrets
    are kept out of everything that is written.
    """
    request, grid = checked.request, checked.grid
    check_reachable(request)
    check_extensions(request)
    layout = Layout(request.results_dir)
    trackers = make_trackers(request.trackers, request.sweep.name, layout.root)
    made = not os.path.exists(layout.root)
    try:
        layout.create()
    except OSError as error:
        raise ConfigError([f"results_dir={request.results_dir} cannot be created: {error.strerror}"]) from error
    with (
        DirectoryLock(layout, made=made),
        _copying(request, layout, console),
        Journal.open(layout.journal) as journal,
        Interrupt() as interrupt,
        Watcher(layout.root, interrupt.received),
    ):
        if outputs := journal.history.outputs:
            written = ", ".join(sorted(outputs))
            console.print(
                f"every trial writes {written}: its contents do not identify trials", soft_wrap=True, markup=False
            )
            grid = grid.with_outputs(outputs)
        sweep = SweepRun(
            request=request,
            fingerprint=grid.fingerprint(),
            console=console,
            secrets=checked.secrets,
            layout=layout,
            journal=journal,
            interrupt=interrupt,
        )
        sweep.check()
        planned = sweep.plan_and_run(grid, trackers)
        reached(Moment.ALL_RAN)
        return sweep.end(planned)


def _copying(request: Request, layout: Layout, console: Console) -> AbstractContextManager[object]:
    """Context in which results are also copied to the store that the request names."""
    if request.store is None:
        return nullcontext()
    from orchestrator.store.cloud import Copying  # imports pyarrow, which local folders do not need

    return Copying(request.store, layout, console)


def report(checked: CheckedSweep, console: Console, what_if: Callable[[History], str] = lambda history: "") -> int:
    """Rebuild the tables and the report from what is sound in the journal, run nothing, and return the exit status.

    `what_if` names settings that differ from the sweep's own: the files are then written beside those of the sweep.
    """
    request = checked.request
    layout = Layout(request.results_dir)
    with _copying(request, layout, console):
        if not layout.journal.exists():
            kept = [str(path) for path in (layout.table("summary.csv"), layout.page) if path.exists()]
            what_is_left = f"; files made from it earlier are still there: {', '.join(kept)}" if kept else ""
            raise ConfigError([f"there are no results in {layout.root}: it has no {layout.journal.name}{what_is_left}"])
        found = checked.results or read_results(layout)
        layout = replace(layout, what_if=what_if(found.history), set_aside=found.history.set_aside)
        layout.output.mkdir(parents=True, exist_ok=True)
        summary = SweepSummary.of(request, layout, found.history, findings=found.findings)
        summary.show(console)
        return summary.exit_status
