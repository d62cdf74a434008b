"""Runs trials one after another in the driver's own process: no Ray, one rank, and easy to debug."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from uuid import uuid4

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.alarm import Alarm, OverdueError
from orchestrator.backends.backend import RANK_ENTRY
from orchestrator.backends.conduct import Conduct
from orchestrator.backends.gang_end import RankEnd, outcome_of
from orchestrator.backends.guarded_listener import GuardedListener
from orchestrator.journal.listener import Listener
from orchestrator.journal.outcome import Outcome
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from orchestrator.storage.durable import write_whole
from orchestrator.telemetry.outcome import with_telemetry
from orchestrator.telemetry.sampler import Sampler
from sweeps.trial import TrialSpec

FORGET = "trainables.clean_slate:forget"
"""The program may have changed its folder and its environment since its last sweep, and is not to be taken back."""


class InProcessBackend:
    """A back end with a single slot: one core, no GPU. A trial of several ranks is infeasible here.

    Trials share the process whatever became of the one before. Output stays on the terminal; the rank's log holds only
    the trace of a failure. The listener hears nothing while a trial neither reports nor asks whether to stop.
    """

    dashboard_url = ""

    def __init__(self, conduct: Conduct | None = None) -> None:
        self._conduct = conduct or Conduct()
        self._gang_id = uuid4().hex
        resolve_name(FORGET)()

    def nodes(self) -> tuple[Node, ...]:
        """The one slot."""
        return (Node(name=socket.gethostname(), cpus=1, gpus=0),)

    def ask_for(self, shapes: Sequence[Shape]) -> None:
        """Nobody can: there is the one slot."""

    def run(self, trials: Sequence[TrialSpec] | Agenda, results_dir: Path, listener: Listener) -> None:
        """Run the trials as `Backend` says; what the listener raises ends them."""
        agenda = trials if isinstance(trials, Agenda) else Agenda(trials)
        agenda.on(self.nodes(), time.monotonic())
        while not listener.stopping() and (start := agenda.next(time.monotonic())):
            trial = start.trial
            outcome = self._run(trial, results_dir / "trials" / trial.trial_id, listener)
            agenda.ended(trial.trial_id, time.monotonic(), outcome)

    def close(self) -> None:
        """Nothing is left to give back."""

    def _run(self, trial: TrialSpec, trial_dir: Path, listener: Listener) -> Outcome | None:
        """How it ended; None if it was abandoned."""
        trial_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {"rendezvous": None, "gang_id": self._gang_id, "trial_dir": str(trial_dir)}
        alarm = Alarm(self._conduct.limits)
        rank = _Rank(trial, GuardedListener(listener), alarm)
        started = time.monotonic()
        listener.started(trial)
        request = trial.rank_request(0) | own
        with Sampler.on(self._conduct.sampling, request) as sampler:
            try:
                with alarm:
                    answer = resolve_name(RANK_ENTRY)(request, rank.emit, rank.should_stop, sampler.observe)
                end = RankEnd.of(answer)
            except OverdueError as error:
                end = RankEnd.overdue(0, error.overdue, "".join(traceback.format_exception(error)))
        rank.guarded.reraise()
        if end.trace:
            write_whole(trial_dir / "rank0.log", end.trace.encode())
        if rank.given_up:
            return None
        outcome = outcome_of([end], world_size=1, wall_s=time.monotonic() - started)
        outcome = with_telemetry(outcome, [sampler.readings()], trial, trial_dir)
        listener.finished(trial, outcome)
        return outcome


class _Rank:
    """What the running trial calls: each call is also a moment for the listener's clock."""

    def __init__(self, trial: TrialSpec, guarded: GuardedListener, alarm: Alarm) -> None:
        self._trial = trial
        self._alarm = alarm
        self.guarded = guarded
        self.given_up = False
        """Whether the trial was told to stop, so that its end is not its own."""

    def emit(self, row: dict[str, Any]) -> None:
        with self._listening() as listener:
            listener.reported(self._trial, [row])
            listener.ticked()

    def should_stop(self) -> bool:
        with self._listening() as listener:
            listener.ticked()
            self.given_up = self.given_up or listener.stopping()
        return self.given_up

    @contextmanager
    def _listening(self) -> Iterator[Listener]:
        self._alarm.moved()
        self._alarm.held = True
        try:
            with self.guarded.listening() as listener:
                yield listener
        finally:
            self._alarm.held = False
