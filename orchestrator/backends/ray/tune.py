"""Trials as Tune sees them: an `Attempt`, its `Bundles` of resources, and the `Relay` of its events to the listener."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import ray
from ray.tune import Callback, PlacementGroupFactory, Trainable
from ray.tune.experiment import Trial

from orchestrator.backends.backend import GuardedListener
from orchestrator.backends.gpu_quarantine import Quarantine
from orchestrator.backends.ray.cluster import NODE_ID
from orchestrator.backends.ray.deaths import in_short
from orchestrator.backends.ray.private_tune import CONFIG_ATTRIBUTES
from orchestrator.config.settings import Settings
from orchestrator.schedule.cluster import Node
from orchestrator.store.record import TrialOutcome
from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.layout import Gang
from sweeps.rank_exit import Cause
from sweeps.trial import TrialSpec


class Bundles(PlacementGroupFactory):  # type: ignore[misc]
    """A gang's placement group, reserved as a whole or not at all; the supervisor's empty bundle comes first."""

    def __init__(self, gang: Gang, nodes: Sequence[Node] = ()) -> None:
        """`nodes` has the node of each rank; without them Ray chooses."""
        of_rank = {"CPU": gang.cpus_per_rank, "GPU": gang.gpus_per_rank}
        chosen = {"bundle_label_selector": [{NODE_ID: node.node_id} for node in nodes]} if nodes else {}
        super().__init__([{}] + [of_rank] * gang.ranks, strategy="PACK", **chosen)
        self._node_ids = frozenset(node.node_id for node in nodes)

    def may_hold(self, other: Bundles) -> bool:
        """Return whether this gang might occupy a node that the other one needs."""
        mine, others = self._node_ids, other._node_ids
        return not mine or not others or not mine.isdisjoint(others)


@dataclass(frozen=True, kw_only=True)
class Starting:
    """The values that all attempts of one run share."""

    results_dir: Path  # absolute
    driver_node: str = ""  # see `RankRequest`
    settings: Settings = field(default_factory=Settings)
    quarantine: Quarantine = field(default_factory=Quarantine)
    secrets: Secrets = NO_SECRETS


class Attempt(Trial):  # type: ignore[misc]
    """A Tune trial that shows Tune, its saved state and its callbacks nothing but `shown` and numbers.

    The config that the gang is started with may contain secrets from the environment; it is removed from here as soon
    as the gang has it.
    """

    def __init__(self, name: str, spec: TrialSpec, *, given: Mapping[str, Any], shown: Mapping[str, Any], **known: Any):
        """`name` is the name of Tune's trainable, `given` the supervisor's config; `known` are Tune's arguments."""
        self.spec = spec
        self.rows: Sequence[Mapping[str, Any]] = ()  # the rows of the latest result
        self.outcome: TrialOutcome | None = None  # how it ended; None until the supervisor has reported that
        self.is_retried = False  # whether another attempt follows
        self._shown = dict(shown)
        creators = {"trial_name_creator": attrgetter("spec.label"), "trial_dirname_creator": attrgetter("trial_id")}
        super().__init__(name, config={**given, **shown}, **creators, **known)

    def taken(self) -> None:
        """Remove the config, which the gang has by now."""
        self.__dict__.update(dict.fromkeys(CONFIG_ATTRIBUTES, self._shown))

    def update_last_result(self, result: dict[str, Any]) -> None:
        """Keep the result, but not Tune's statistics of each metric: nothing reads them."""
        super().update_last_result(result)
        # They take 40 kB a trial, in memory and in each save of Tune's state.
        self.run_metadata.metric_analysis.clear()
        self.run_metadata.metric_n_steps.clear()

    def __getstate__(self) -> dict[str, Any]:
        """The state that Tune saves."""
        state: dict[str, Any] = super().__getstate__()
        kept = {key: value for key, value in state.items() if key not in ("spec", "rows", "outcome", "_shown")}
        return kept | dict.fromkeys(CONFIG_ATTRIBUTES, self._shown)


class GangTrainable(Trainable):  # type: ignore[misc]
    """Only a name for Tune: the trial's processes belong to a `Supervisor`."""


_UNREACHED = "The actor never ran"  # Ray's message for every actor if the cluster's head cannot connect to the driver

SILENT_S = 120.0  # a supervisor reports twice a second; one that is silent for this long is killed


class Relay(Callback):  # type: ignore[misc]
    """A Tune callback that informs the listener."""

    def __init__(self, guarded: GuardedListener, quarantine: Quarantine) -> None:
        self._guarded = guarded
        self._quarantine = quarantine
        self._started: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    def on_trial_start(self, iteration: int, trials: list[Attempt], trial: Attempt, **info: Any) -> None:
        """The trial's processes are ready, and it starts."""
        self._start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Attempt], trial: Attempt, result: dict[str, Any], **info: Any
    ) -> None:
        """New rows of the trial, and possibly its outcome."""
        self._heard[trial.trial_id] = time.monotonic()
        # Tune's loggers would write whatever is in the result to their files.
        trial.rows, trial.outcome = result.pop("rows"), result.pop("outcome", None)  # other callbacks get numbers only
        with self._guarded.listening() as listener:
            if trial.rows:
                listener.reported(trial.spec, trial.rows)
            if trial.outcome is not None:
                self._quarantine.add(trial.outcome.lost_devices)
                trial.is_retried = listener.finished(trial.spec, trial.outcome)

    def on_trial_error(self, iteration: int, trials: list[Attempt], trial: Attempt, **info: Any) -> None:
        """The supervisor itself failed, because of its process, its node, or Ray."""
        # A supervisor may fail before its ranks are ready; listeners rely on a start before each end.
        if trial.trial_id not in self._started:
            self._start(trial)
        wall_s = time.monotonic() - self._started[trial.trial_id]
        trial.outcome = _broken(trial.error_file, wall_s)
        with self._guarded.listening() as listener:
            trial.is_retried = listener.finished(trial.spec, trial.outcome)

    def on_step_end(self, iteration: int, trials: list[Attempt], **info: Any) -> None:
        """Let the listener do what is due, and kill supervisors that are silent."""
        with self._guarded.listening() as listener:
            listener.ticked()
        for trial in trials:
            silent_s = time.monotonic() - self._heard.get(trial.trial_id, float("inf"))
            if trial.status == Trial.RUNNING and silent_s > SILENT_S:
                # Killed once: Tune then reports the error, and the trial is retried as after a lost node.
                del self._heard[trial.trial_id]
                ray.kill(trial.temporary_state.ray_actor)

    def _start(self, trial: Attempt) -> None:
        trial.taken()
        self._started[trial.trial_id] = self._heard[trial.trial_id] = time.monotonic()
        with self._guarded.listening() as listener:
            listener.started(trial.spec)


def _broken(error_file: str | None, wall_s: float) -> TrialOutcome:
    trace = Path(error_file).read_text() if error_file else ""
    hint = " If the cluster was started without a token, set RAY_AUTH_MODE=disabled" if _UNREACHED in trace else ""
    # The supervisor computes nothing: only its node or Ray can have ended it.
    return TrialOutcome(
        cause=Cause.NODE,
        note=f"the gang's supervisor failed: {in_short(trace)}{hint}",
        trace=trace,
        wall_s=wall_s,
    )
