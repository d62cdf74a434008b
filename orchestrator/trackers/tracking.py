"""Logs each trial as a run of a tracking tool. Only the driver does so, so workers do not need the tools.

A tracker receives what is already in the journal. A tracker that fails is disabled, and the sweep continues.
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

from orchestrator.store.record import TrialOutcome
from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.axes import flat, is_number
from sweeps.errors import ConfigError
from sweeps.printable import printable
from sweeps.trial import TrialSpec

_log = logging.getLogger(__name__)

KINDS: Mapping[str, str] = {
    "tensorboard": "orchestrator.trackers.tensorboard:TensorBoard",
    "mlflow": "orchestrator.trackers.mlflow:MLflow",
    "wandb": "orchestrator.trackers.wandb:WandB",
}
"""Trackers by name, which is also the name of the config section, the Python package and the extra to install."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The start of a run: its name, parameters and tags."""

    name: str  # the values of the axes
    params: Mapping[str, Any]  # the trial's batch, learning rate and config, under dotted keys
    tags: Mapping[str, str]  # the sweep, the ids, device, strategy and timing, by which tools group runs


class Tracker(Protocol):
    """A tracking tool. Trials are identified by their ids; several may run at the same time."""

    def begin(self, trial_id: str, run: Run) -> None:
        """Start a run for a new attempt at a trial."""

    def log(self, trial_id: str, row: Mapping[str, float], step: int) -> None:
        """Log the figures of an epoch."""

    def end(self, trial_id: str, figures: Mapping[str, float], status: str, note: str) -> None:
        """Log the figures of the whole trial and its status, and end the run."""

    def close(self) -> None:
        """End the runs that have not ended."""


def run_of(trial: TrialSpec, secrets: Secrets = NO_SECRETS) -> Run:
    """Return the run of a trial, without secrets."""
    axes = {f"axes.{key}": value for key, value in secrets.value(trial.axes).items()}
    config = {key: value for key, value in flat(secrets.value(trial.config)) if value not in (None, {})}
    columns = trial.columns
    return Run(
        name=secrets.text(trial.label.partition("/")[2]),
        params={**{name: columns[name] for name in _PARAMS}, **config, **axes},
        tags={name: columns[name] for name in _TAGS},
    )


_PARAMS = (
    *("gpus", "global_batch_size", "device_batch_size", "grad_accum_steps"),
    *("lr_rule", "lr_multiplier", "lr", "seed"),
)
_TAGS = ("sweep", "trial_id", "cell_id", "device", "strategy", "timing")


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row."""
    return {key: float(value) for key, value in row.items() if is_number(value) and math.isfinite(value)}


def make_trackers(section: Mapping[str, Any], sweep: str, results_dir: Path) -> dict[str, Tracker]:
    """Return the trackers that the config section `tracker` enables, by name. Raises ConfigError if one fails."""
    made: dict[str, Tracker] = {}
    for name in _enabled(section):
        options = {key: value for key, value in section[name].items() if key != "enabled"}
        try:
            made[name] = resolve_name(KINDS[name])(sweep=sweep, results_dir=results_dir, **options)
        except Exception as error:
            raise ConfigError([f"tracker.{name}: {type(error).__name__}: {error}"]) from error
    return made


def tracker_errors(section: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every enabled tracker whose package is not installed."""
    for name in _enabled(section):
        if importlib.util.find_spec(name) is None:
            yield f"tracker.{name} needs the package {name}: pip install 'sweep-orchestrator[{name}]'"


def tracker_remarks(section: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every tracker that is not enabled and has settings which are null by default."""
    for name in (name for name in KINDS if name not in _enabled(section)):
        given = [key for key, value in section.get(name, {}).items() if value is not None and key not in _WITH_VALUES]
        yield from (f"tracker.{name}.{key} has no effect: tracker.{name}.enabled=false" for key in given)


_WITH_VALUES = ("enabled", "mode")  # keys of a tracker that are set by default


def _enabled(section: Mapping[str, Any]) -> list[str]:
    return [name for name in KINDS if section.get(name, {}).get("enabled") is True]


class Trackers:
    """The trackers of one driver. They receive neither probes nor secrets."""

    def __init__(self, trackers: Mapping[str, Tracker], secrets: Secrets = NO_SECRETS) -> None:
        self._trackers, self._secrets = dict(trackers), secrets

    def started(self, trial: TrialSpec) -> None:
        """Start a run."""
        if self._follow(trial):
            self._each(methodcaller("begin", trial.trial_id, run_of(trial, self._secrets)))

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log rows at their epochs."""
        for row in rows if self._follow(trial) else ():
            self._each(methodcaller("log", trial.trial_id, numbers(row), int(row.get("epoch", 0))))

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """End the run as the trial ended; the note has no secrets any more."""
        if self._follow(trial):
            figures = numbers({**outcome.metrics, "wall_s": outcome.wall_s})
            self._each(methodcaller("end", trial.trial_id, figures, outcome.status.value, outcome.note))

    def _follow(self, trial: TrialSpec) -> bool:
        """Return whether any tracker takes the trial, which must be no probe or repetition."""
        return bool(self._trackers) and not trial.measures

    def close(self) -> None:
        """Close the trackers."""
        self._each(methodcaller("close"))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # a tracker's failure must not end the sweep
                del self._trackers[name]
                why = printable(f"{type(error).__name__}: {error}")
                _log.warning("tracker %s is disabled from here on: %s", name, why)
