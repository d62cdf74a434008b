"""Trials on Ray Tune: one Tune trial is one gang in one placement group."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial

from orchestrator.agenda import Agenda
from orchestrator.backend import Listener, Outcome
from orchestrator.cause import Cause
from orchestrator.hearing import Hearing
from orchestrator.ray_cluster import Cluster, handler_kept
from orchestrator.ray_gang import Supervisor
from orchestrator.ray_queue import TrialQueue
from orchestrator.telemetry_sampler import Sampling
from orchestrator.watch import NO_LIMITS, Limits
from sweeps.feasibility import Node
from sweeps.status import Status
from sweeps.trial import TrialSpec

_TUNE = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # the journal decides what is done, not Tune's experiment state
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # TrialQueue holds trials back, not Tune
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}

SILENT_S = 120.0
"""A supervisor that says nothing for so long, though it has something to say twice a second, is ended from outside."""


class RayBackend:
    """Runs trials on a Ray cluster: the one at `address` (or RAY_ADDRESS), else one started here until `close`.

    `workers`: "warm" keeps a gang's processes for the next trial of the same shape, "fresh" starts new ones for each.
    `cpus` and `gpus` overrule what Ray counts on this machine. Of a cluster only nodes with all `labels` are used.
    `limits` are those of every attempt. Trials are watched `telemetry_hz` times a second.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        dashboard: bool = True,
        workers: str = "warm",
        verbose: bool = False,
        cpus: int | None = None,
        gpus: int | None = None,
        labels: Mapping[str, str] | None = None,
        limits: Limits = NO_LIMITS,
        telemetry_hz: float = 5.0,
    ) -> None:
        self._limits = limits
        self._workers = workers
        self._sampling = Sampling(hz=telemetry_hz)
        self._verbose = verbose
        self._cluster = Cluster(address=address, dashboard=dashboard, verbose=verbose, cpus=cpus, gpus=gpus)
        self._labels = labels or {}

    @property
    def dashboard_url(self) -> str:
        """Where Ray's dashboard answers; empty where there is none."""
        return self._cluster.dashboard_url

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's living nodes that have the labels asked for."""
        return self._cluster.nodes(self._labels)

    def run(self, trials: Sequence[TrialSpec] | Agenda, results_dir: Path, listener: Listener) -> None:
        """Run the trials as `Backend` says; what the listener raises is raised here, after everything has ended."""
        hearing = Hearing(listener)
        agenda = trials if isinstance(trials, Agenda) else Agenda(trials)
        queue = TrialQueue(agenda, self.nodes, results_dir.absolute(), self._workers, self._limits, self._sampling)
        with tempfile.TemporaryDirectory() as scratch, _environment(_TUNE), _quiet("ray.tune", not self._verbose):
            try:
                with handler_kept(signal.SIGUSR1):
                    tune.run(
                        Supervisor,
                        name="sweep",
                        storage_path=scratch,
                        search_alg=queue,
                        stop=_Stop(hearing),
                        callbacks=[_Relay(hearing)],
                        reuse_actors=True,
                        raise_on_failed_trial=False,
                        verbose=2 if self._verbose else 0,
                    )
            finally:
                hearing.reraise()

    def close(self) -> None:
        """Give the cluster back."""
        self._cluster.close()


class _Relay(Callback):  # type: ignore[misc]
    """Tells the listener in the project's words what Tune says in its own."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._started: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._heard[trial.trial_id] = time.monotonic()
        with self._hearing.listening() as listener:
            if result["rows"]:
                listener.reported(trial.config["trial"], result["rows"])
            if "outcome" in result:
                listener.finished(trial.config["trial"], result["outcome"])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """The supervisor itself failed: its process, its node, or Ray."""
        if trial.trial_id not in self._started:
            self._start(trial)
        wall_s = time.monotonic() - self._started[trial.trial_id]
        with self._hearing.listening() as listener:
            listener.finished(trial.config["trial"], _broken(trial.error_file, wall_s))

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        with self._hearing.listening() as listener:
            listener.ticked()
        for trial in trials:
            silent_s = time.monotonic() - self._heard.get(trial.trial_id, float("inf"))
            if trial.status == Trial.RUNNING and silent_s > SILENT_S:
                del self._heard[trial.trial_id]
                ray.kill(trial.temporary_state.ray_actor)

    def _start(self, trial: Trial) -> None:
        self._started[trial.trial_id] = self._heard[trial.trial_id] = time.monotonic()
        with self._hearing.listening() as listener:
            listener.started(trial.config["trial"])


class _Stop(Stopper):  # type: ignore[misc]
    """Ends the whole experiment when the listener says so."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with self._hearing.listening() as listener:
            return listener.stopping()


def _broken(error_file: str | None, wall_s: float) -> Outcome:
    trace = Path(error_file).read_text() if error_file else ""
    lines = trace.strip().splitlines() or ["no reason known"]
    # The supervisor computes nothing: what ends it is its node, or Ray.
    return Outcome(
        status=Status.FAILED,
        cause=Cause.NODE,
        note=f"the gang's supervisor failed: {lines[-1]}",
        trace=trace,
        wall_s=wall_s,
    )


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet(name: str, quiet: bool) -> Iterator[None]:
    """Silence a logger for a while: every end it reports reaches the listener anyway."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL if quiet else level)
    try:
        yield
    finally:
        logger.setLevel(level)
