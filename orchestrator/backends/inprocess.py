"""Runs trials one after another in the driver's process: no Ray, one rank, and easy to debug."""

from __future__ import annotations

import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import Any
from uuid import uuid4

from orchestrator.backends.backend import RANK_ENTRY, GuardedListener, HangWatch, Listener, outcome_of
from orchestrator.config.settings import Settings
from orchestrator.schedule.cluster import Footprint, Node
from orchestrator.schedule.queue import TrialQueue
from orchestrator.store.files import write_whole
from orchestrator.store.record import TrialOutcome
from orchestrator.telemetry.columns import with_telemetry
from orchestrator.telemetry.sampler import Sampler, Sampling, Watched
from sweeps.rank_exit import RankExit
from sweeps.trial import RankRequest, TrialSpec

_AGAIN_S = 0.05


class OverdueError(BaseException):
    """Raised inside a trial that exceeded its time; not an Exception, so that the trial's handlers do not catch it."""

    def __init__(self, rank_exit: RankExit) -> None:
        self.rank_exit = rank_exit
        super().__init__(rank_exit.note)


class RunningTrial(HangWatch):
    """The functions that a running trial calls; each call also ticks the listener. A context manager around the trial.

    Within the context, OverdueError is raised in the main thread once the limits are exceeded. Python code and blocking
    system calls are interrupted at once, C code when it returns. Without limits, and outside the main thread, nothing
    is watched.
    """

    def __init__(self, trial: TrialSpec, listener: Listener, limits: Settings) -> None:
        super().__init__(limits, ranks=1, now=time.monotonic())
        self._trial = trial
        self._count = 0
        self._in_driver = False
        """True while the driver's code runs, which must not be interrupted: the alarm waits until it is done."""
        self.guarded = GuardedListener(listener)
        self.is_interrupted = False  # whether the trial was asked to stop, so that its end does not count

    def __enter__(self) -> RunningTrial:
        # Python delivers signals to the main thread alone.
        has_limit = self._limits.hang_s is not None or self._limits.time_limit_s is not None
        watched = has_limit and threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGALRM, self._ring) if watched else None
        if watched:
            signal.setitimer(signal.ITIMER_REAL, self._next_s())
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _next_s(self) -> float:
        return min(self.look_again_s() or 10.0, self._limits.time_limit_s or 10.0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.heard({0: self._count}, now)
        overdue = self.overdue(now)
        if overdue is None:
            limit_s = self._limits.time_limit_s
            signal.setitimer(signal.ITIMER_REAL, self._next_s() if limit_s is None else min(self._next_s(), 1.0))
        elif self._in_driver:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            raise OverdueError(overdue)

    def emit(self, row: dict[str, Any]) -> None:
        """Report a row."""
        with self._listening() as listener:
            listener.reported(self._trial, [row])
            listener.ticked()

    def should_stop(self, *, progress: bool = True) -> bool:
        """Return whether the driver has been asked to stop."""
        with self._listening(progress) as listener:
            listener.ticked()
            self.is_interrupted = self.is_interrupted or listener.stopping()
        return self.is_interrupted

    @contextmanager
    def _listening(self, progress: bool = True) -> Iterator[Listener]:
        self._count += progress
        # An alarm in the driver's code could leave half a record in the journal.
        self._in_driver = True
        try:
            with self.guarded.listening() as listener:
                yield listener
        finally:
            self._in_driver = False


FORGET = "trainables.isolation:forget"
"""Called once per back end: the program may have changed its folder and environment since its last sweep."""


def slot() -> Node:
    """Return the only slot of this back end: one core of this machine, and no GPU."""
    return Node(name=socket.gethostname(), cpus=1, gpus=0)


class InProcessBackend:
    """A back end with a single slot: one core, no GPU. A trial of several ranks is infeasible here.

    All trials share the process, even after a failure. Output stays on the terminal; the rank's log holds only the
    trace of a failure. The listener is not called while a trial neither reports nor asks whether to stop.
    """

    dashboard_url = ""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._gang_id = uuid4().hex
        resolve_name(FORGET)()

    def nodes(self) -> tuple[Node, ...]:
        """Return the one slot."""
        return (slot(),)

    def ask_for(self, footprints: Sequence[Footprint]) -> None:
        """Do nothing: there is only one slot."""

    def run(self, trial_queue: TrialQueue, results_dir: Path, listener: Listener) -> None:
        """Run the trials; see `Backend`. An exception from the listener ends the run."""
        trial_queue.set_nodes(self.nodes(), time.monotonic())
        while not (listener.stopping() or trial_queue.over):
            start = trial_queue.next(time.monotonic())
            # A trial that waits for other nodes waits for nothing here.
            if start is None:
                return
            trial = start.trial
            outcome = self._run(trial, results_dir / "trials" / trial.trial_id, listener)
            is_retried = outcome is not None and listener.finished(trial, outcome)
            trial_queue.ended(trial.trial_id, time.monotonic(), outcome, is_retried=is_retried)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _run(self, trial: TrialSpec, trial_dir: Path, listener: Listener) -> TrialOutcome | None:
        """Run one trial. Return how it ended; None if it was abandoned."""
        trial_dir.mkdir(mode=0o700, exist_ok=True)
        request = RankRequest(trial=trial, trial_dir=trial_dir, gang_id=self._gang_id)
        started = time.monotonic()
        listener.started(trial)
        rank = RunningTrial(trial, listener, self._settings)
        with Sampler(Sampling(), Watched.of(request)) as sampler:
            try:
                with rank:
                    rank_exit = resolve_name(RANK_ENTRY)(request, rank.emit, rank.should_stop, sampler.observe)
            except OverdueError as error:
                rank_exit = replace(error.rank_exit, trace="".join(traceback.format_exception(error)))
        # The listener's error ends the sweep, even if the trainable has caught it.
        rank.guarded.reraise()
        if rank_exit.trace:
            write_whole(trial_dir / "rank0.log", rank_exit.trace.encode())
        # What an interrupted trial reports is not its result.
        if rank.is_interrupted:
            return None
        outcome = outcome_of([rank_exit], names=["rank 0"], wall_s=time.monotonic() - started)
        return with_telemetry(outcome, [sampler.readings()], trial, trial_dir)
