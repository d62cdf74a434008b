"""Trackers: every trial a run in a tool that one has already. Driven by the driver, so that workers need nothing of it.

A tracker is told what the journal was told before it; one that fails is left out from then on, and the sweep goes on.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from orchestrator.journal.listener import Listener
from orchestrator.journal.outcome import Outcome
from orchestrator.storage.secrets import NO_SECRETS, Secrets
from orchestrator.trackers.run import Run, numbers, run_of
from sweeps.mistakes import MistakesError
from sweeps.trial import TrialSpec

_log = logging.getLogger(__name__)

KINDS: Mapping[str, str] = {
    "tensorboard": "orchestrator.trackers.tensorboard:TensorBoard",
    "mlflow": "orchestrator.trackers.mlflow:MLflow",
    "wandb": "orchestrator.trackers.wandb:WandB",
}
"""By the name of the config's section, which is also that of the package and of the extra that brings it."""


class Tracker(Protocol):
    """A tool, told of trials by their identities; several may run at a time."""

    def begin(self, trial_id: str, run: Run) -> None:
        """A new attempt at a trial is a new run."""

    def log(self, trial_id: str, row: Mapping[str, float], step: int) -> None:
        """Figures of an epoch."""

    def end(self, trial_id: str, figures: Mapping[str, float], status: str, note: str) -> None:
        """Figures of the whole trial, and how it ended."""

    def close(self) -> None:
        """Nothing more comes; runs that have not ended were given up."""


def make_trackers(section: Mapping[str, Any], sweep: str, results_dir: Path) -> dict[str, Tracker]:
    """The trackers that the config's section `tracker` enables, by name; MistakesError for one that does not begin."""
    made: dict[str, Tracker] = {}
    for name in _enabled(section):
        options = {key: value for key, value in section[name].items() if key != "enabled"}
        try:
            made[name] = resolve_name(KINDS[name])(sweep=sweep, results_dir=results_dir, **options)
        except Exception as error:
            raise MistakesError([f"tracker.{name}: {type(error).__name__}: {error}"]) from error
    return made


def tracker_mistakes(section: Mapping[str, Any]) -> Iterator[str]:
    """A line for every tracker whose package is not installed here."""
    for name in _enabled(section):
        if importlib.util.find_spec(name) is None:
            yield f"tracker.{name} needs the package {name}: pip install 'sweep-orchestrator[{name}]'"


def _enabled(section: Mapping[str, Any]) -> list[str]:
    return [name for name in KINDS if section.get(name, {}).get("enabled")]


class TrackedListener:
    """Tells a session first, since only its journal counts; of probes and `secrets` the trackers hear nothing."""

    def __init__(self, session: Listener, trackers: Mapping[str, Tracker], secrets: Secrets = NO_SECRETS) -> None:
        self._session, self._trackers, self._secrets = session, dict(trackers), secrets

    def started(self, trial: TrialSpec) -> None:
        """A run begins."""
        self._session.started(trial)
        if trial.probes:
            return
        self._tell(methodcaller("begin", trial.trial_id, run_of(trial, self._secrets)))

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows are logged at their epochs."""
        self._session.reported(trial, rows)
        if trial.probes:
            return
        for row in rows:
            self._tell(methodcaller("log", trial.trial_id, numbers(row), int(row.get("epoch", 0))))

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        """The run ends as the trial did."""
        self._session.finished(trial, outcome)
        if trial.probes:
            return
        figures = numbers({**outcome.metrics, "wall_s": outcome.wall_s})
        self._tell(methodcaller("end", trial.trial_id, figures, outcome.status.value, self._secrets.text(outcome.note)))

    def ticked(self) -> None:
        """Of no interest to trackers."""
        self._session.ticked()

    def stopping(self) -> bool:
        """The session decides."""
        return self._session.stopping()

    def close(self) -> None:
        """The trackers write what they still hold."""
        self._tell(methodcaller("close"))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                what(tracker)
            except Exception as error:  # a tracker's server that is down must not cost the sweep
                del self._trackers[name]
                _log.warning("tracker %s is left out from here on: %s: %s", name, type(error).__name__, error)
