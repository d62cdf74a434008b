"""Trackers: every trial a run in a tool that one has already. Driven by the driver, so that workers need nothing of it.

A tracker is told what the journal was told before it; one that fails is left out from then on, and the sweep goes on.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from orchestrator.journal.listener import Listener
from orchestrator.journal.outcome import Outcome
from orchestrator.storage.secrets import NO_SECRETS, Secrets
from sweeps.mistakes import MistakesError
from sweeps.number import is_number
from sweeps.trial import TrialSpec

_log = logging.getLogger(__name__)

KINDS: Mapping[str, str] = {
    "tensorboard": "orchestrator.trackers.tensorboard:TensorBoard",
    "mlflow": "orchestrator.trackers.mlflow:MLflow",
    "wandb": "orchestrator.trackers.wandb:WandB",
}
"""By the name of the config's section, which is also that of the package and of the extra that brings it."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a tracker is told of a trial as it begins."""

    name: str
    """For people: the axes' values."""
    params: Mapping[str, Any]
    """The trial's numbers and its config, under dotted keys."""
    tags: Mapping[str, str]
    """What it belongs to: sweep, trial_id, cell_id, device, strategy, timing."""


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


def run_of(trial: TrialSpec, secrets: Secrets = NO_SECRETS) -> Run:
    """What identifies a trial to people, without the secrets."""
    axes = {f"axes.{key}": value for key, value in secrets.value(trial.axes).items()}
    numbers_of_it = {
        "gpus": trial.gpus,
        "global_batch_size": trial.batch.global_batch_size,
        "device_batch_size": trial.batch.device_batch_size,
        "grad_accum_steps": trial.batch.grad_accum_steps,
        "lr_rule": trial.lr.rule,
        "lr_multiplier": trial.lr.multiplier,
        "lr": trial.lr.value,
        "seed": trial.seed,
    }
    return Run(
        name=secrets.text(trial.label.partition("/")[2]),
        params={**numbers_of_it, **dict(_flat(secrets.value(trial.config))), **axes},
        tags={
            "sweep": trial.sweep,
            "trial_id": trial.trial_id,
            "cell_id": trial.cell_id,
            "device": trial.device,
            "strategy": trial.strategy,
            "timing": trial.timing,
        },
    )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What of a row can be drawn."""
    return {key: float(value) for key, value in row.items() if is_number(value) and math.isfinite(value)}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
