"""Trials to run, and a listener that records its calls."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.request import Metric, Request
from orchestrator.config.settings import ClusterSection, Settings
from orchestrator.store.record import TrialOutcome
from sweeps.layout import Gang, Layout
from sweeps.lr_rule import LearningRate
from sweeps.trial import Batch, TrialSpec


def trial(trial_id: str, function: str, *, ranks: int = 1, timing: str = "exclusive", **config: Any) -> TrialSpec:
    """Return a trial on CPUs that calls a function of trainables_for_tests with this config."""
    return TrialSpec(
        trial_id=trial_id,
        cell_id=trial_id,
        sweep="contract",
        axes={"gpus": ranks, "name": trial_id},
        gpus=ranks,
        gang=Gang(ranks=ranks, gpus_per_rank=0, cpus_per_rank=1),
        device="cpu",
        layout=Layout(strategy="ddp" if ranks > 1 else "single", replicas=ranks),
        timing=timing,
        batch=Batch(global_batch_size=8 * ranks, grad_accum_steps=1, shares=(8,) * ranks),
        lr=LearningRate(reference_batch_size=8, value=0.1, warmup_from=0.1),
        seed=0,
        trainable=f"tests.contract.trainables_for_tests:{function}",
        config=config,
    )


def beyond_reference(trial: TrialSpec) -> TrialSpec:
    """Return the trial at a batch other than the reference's, with the same speed."""
    return replace(
        trial, axes={"gpus": trial.gpus, "seed": trial.trial_id}, lr=replace(trial.lr, reference_batch_size=4)
    )


def request(**settings: Any) -> Request:
    """Return a request with these settings; a cluster started here has no dashboard."""
    return Request(
        settings=Settings(**{"cluster": ClusterSection(dashboard=False), "hang_s": None, **settings}),
        axes={},
        reference_batch_size=None,
        metric=Metric(),
        target=None,
    )


class Recorder:
    """A listener that keeps everything, and calls `on_row` at every report."""

    def __init__(self, *, stop_at_row: bool = False, on_row: Callable[[], None] = lambda: None) -> None:
        self.events: list[tuple[str, str]] = []
        self.rows: dict[str, list[Mapping[str, Any]]] = {}
        self.outcomes: dict[str, TrialOutcome] = {}
        self.ticks = 0
        self._stop_at_row = stop_at_row
        self._lock = threading.Lock()  # real listeners hold displays and files: nothing may copy or pickle them
        self._on_row = on_row

    def started(self, trial: TrialSpec) -> None:
        self.events.append(("started", trial.trial_id))

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        self.events.append(("reported", trial.trial_id))
        self.rows.setdefault(trial.trial_id, []).extend(rows)
        self._on_row()

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> bool:
        self.events.append(("finished", trial.trial_id))
        self.outcomes[trial.trial_id] = outcome
        return False

    def ticked(self) -> None:
        self.ticks += 1

    def stopping(self) -> bool:
        return self._stop_at_row and bool(self.rows)
