"""Trials in the driver's own process, one after another: no Ray, one rank, and a debugger reaches everywhere."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from uuid import uuid4

from orchestrator.backend import RANK_ENTRY, Listener
from orchestrator.gang_end import RankEnd, outcome_of
from orchestrator.hearing import Hearing
from orchestrator.telemetry_outcome import with_telemetry
from orchestrator.telemetry_sampler import Sampler, Sampling
from sweeps.feasibility import Node
from sweeps.trial import TrialSpec

FORGET = "trainables.clean_slate:forget"
"""The program may have changed its folder and its environment since its last sweep, and is not to be taken back."""


class InProcessBackend:
    """A back end with a single slot: one core, no GPU. A trial of several ranks is infeasible here.

    Trials share the process whatever became of the one before. Output stays on the terminal; the rank's log holds only
    the trace of a failure. The listener hears nothing while a trial neither reports nor asks whether to stop.
    """

    def __init__(self, telemetry_hz: float = 5.0) -> None:
        self._gang_id = uuid4().hex
        self._sampling = Sampling(hz=telemetry_hz)
        resolve_name(FORGET)()

    def nodes(self) -> tuple[Node, ...]:
        """The one slot."""
        return (Node(name=socket.gethostname(), cpus=1, gpus=0),)

    def run(self, trials: Sequence[TrialSpec], results_dir: Path, listener: Listener) -> None:
        """Run the trials as `Backend` says; what the listener raises ends them."""
        for trial in trials:
            if listener.stopping():
                return
            self._run(trial, results_dir / "trials" / trial.trial_id, listener)

    def close(self) -> None:
        """Nothing is left to give back."""

    def _run(self, trial: TrialSpec, trial_dir: Path, listener: Listener) -> None:
        trial_dir.mkdir(parents=True, exist_ok=True)
        own = {"rendezvous": None, "gang_id": self._gang_id, "trial_dir": str(trial_dir)}
        rank = _Rank(trial, Hearing(listener))
        started = time.monotonic()
        listener.started(trial)
        request = trial.rank_request(0) | own
        with Sampler.on(self._sampling, request) as sampler:
            answer = resolve_name(RANK_ENTRY)(request, rank.emit, rank.should_stop, sampler.observe)
        rank.hearing.reraise()
        end = RankEnd.told(answer)
        if end.trace:
            (trial_dir / "rank0.log").write_text(end.trace)
        if not rank.given_up:
            outcome = outcome_of([end], world_size=1, wall_s=time.monotonic() - started)
            listener.finished(trial, with_telemetry(outcome, [sampler.readings()], trial, trial_dir))


class _Rank:
    """What the running trial calls: each call is also a moment for the listener's clock."""

    def __init__(self, trial: TrialSpec, hearing: Hearing) -> None:
        self._trial = trial
        self.hearing = hearing
        self.given_up = False
        """Whether the trial was told to stop, so that its end is not its own."""

    def emit(self, row: dict[str, Any]) -> None:
        with self.hearing.listening() as listener:
            listener.reported(self._trial, [row])
            listener.ticked()

    def should_stop(self) -> bool:
        with self.hearing.listening() as listener:
            listener.ticked()
            self.given_up = self.given_up or listener.stopping()
        return self.given_up
