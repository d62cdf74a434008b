"""A Tune experiment: each Tune trial is one attempt at one of our trials, with its gang in one placement group."""

from __future__ import annotations

import logging
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.air._internal import usage
from ray.tune import Stopper

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.conduct import Conduct
from orchestrator.backends.guarded_listener import GuardedListener
from orchestrator.backends.on_ray.attempt import Starting
from orchestrator.backends.on_ray.controller import GangController, GangTrainable
from orchestrator.backends.on_ray.demand import Demand
from orchestrator.backends.on_ray.early_stop import EarlyStop
from orchestrator.backends.on_ray.extensions import Extensions
from orchestrator.backends.on_ray.head import HeadWatch
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.on_ray.relay import Relay
from orchestrator.backends.on_ray.temporary import environment, handler_kept, patched
from orchestrator.backends.on_ray.trial_scheduler import AgendaScheduler
from orchestrator.backends.quarantine import Quarantine
from orchestrator.scheduling.node import Node

_TUNE = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # the journal decides what is done, not Tune's experiment state
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # TrialQueue holds trials back, not Tune
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """How trials are run."""

    nodes: Callable[[], Sequence[Node]]
    conduct: Conduct
    quarantine: Quarantine
    extensions: Extensions
    demand: Demand | None
    """Asks for further nodes; None if there are none to be had."""
    verbose: bool

    def run(self, agenda: Agenda, results_dir: Path, guarded: GuardedListener) -> None:
        """Run the agenda's trials until none is left or the listener asks to stop."""
        extensions, rule = self.extensions, self.conduct.early_stopping
        stop = _Stop(guarded)
        starting = Starting(
            results_dir=results_dir.absolute(),
            conduct=self.conduct,
            quarantine=self.quarantine,
            secrets=extensions.secrets,
        )
        queue = TrialQueue(agenda, self.nodes, starting, stop.stop_all, self.demand)
        early_stop = EarlyStop(rule, agenda.is_timed) if rule else None
        with (
            tempfile.TemporaryDirectory() as scratch,
            _plain_tune(verbose=self.verbose),
            handler_kept(signal.SIGUSR1),
            HeadWatch(),
        ):
            tune.run(
                GangTrainable,
                name=extensions.name(results_dir),
                storage_path=extensions.storage_path or scratch,
                search_alg=queue,
                scheduler=AgendaScheduler(queue.stranded, early_stop),
                stop=stop,
                callbacks=[Relay(guarded, self.quarantine), *extensions.callbacks],
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=2 if self.verbose else 0,
            )


class _Stop(Stopper):  # type: ignore[misc]
    """Ends the whole experiment when the listener asks to stop."""

    def __init__(self, guarded: GuardedListener) -> None:
        self._guarded = guarded

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with self._guarded.listening() as listener:
            return listener.stopping()


@contextmanager
def _plain_tune(*, verbose: bool) -> Iterator[None]:
    """Adapt Tune temporarily; it prints its messages only if `verbose`."""
    with (
        environment(_TUNE),
        _quiet(not verbose),
        # For its usage statistics Tune imports Comet, MLflow and W&B if they are installed, which takes seconds.
        patched(usage, "tag_callbacks", lambda callbacks: False),
        patched(tune.tune, "TuneController", GangController),
    ):
        yield


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Silence Tune's logger temporarily: the listener hears of every end anyway."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL if quiet else level)
    try:
        yield
    finally:
        logger.setLevel(level)
