"""An experiment of Tune's: one Tune trial is one attempt at a trial of ours, its gang in one placement group."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Stopper

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.conduct import Conduct
from orchestrator.backends.guarded_listener import GuardedListener
from orchestrator.backends.on_ray.attempt import Starting
from orchestrator.backends.on_ray.controller import GangTrainable
from orchestrator.backends.on_ray.demand import Demand
from orchestrator.backends.on_ray.early_stop import EarlyStop
from orchestrator.backends.on_ray.extensions import Extensions
from orchestrator.backends.on_ray.head_watch import HeadWatch
from orchestrator.backends.on_ray.plain_tune import plain_tune
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.on_ray.relay import Relay
from orchestrator.backends.on_ray.temporary import handler_kept
from orchestrator.backends.on_ray.trial_scheduler import AgendaScheduler
from orchestrator.backends.quarantine import Quarantine
from sweeps.feasibility import Node


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """How trials are run, whichever they are."""

    nodes: Callable[[], Sequence[Node]]
    conduct: Conduct
    quarantine: Quarantine
    extensions: Extensions
    demand: Demand | None
    """How further nodes are asked for; None: there are none to be had."""
    verbose: bool

    def run(self, agenda: Agenda, results_dir: Path, guarded: GuardedListener) -> None:
        """Run the agenda's trials, until there is nothing more to run or the listener wants to stop."""
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
            plain_tune(verbose=self.verbose),
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
    """Ends the whole experiment when the listener says so."""

    def __init__(self, guarded: GuardedListener) -> None:
        self._guarded = guarded

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with self._guarded.listening() as listener:
            return listener.stopping()
