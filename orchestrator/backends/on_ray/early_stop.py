"""Which trials are hopeless within their training: Tune's ASHA, with rungs by samples seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from orchestrator.backends.conduct import EarlyStopping
from orchestrator.backends.on_ray.attempt import Attempt
from orchestrator.journal.durations import speed
from sweeps.trial import TrialSpec

SAMPLES, ACCURACY = "samples", "val_accuracy"

REDUCTION = 2
"""At a rung the lower half is in danger, and the next rung is at twice the samples."""

_END = 1 - 1e-9
"""Of a budget, from where on a training is over."""


class EarlyStop:
    """Compares trials that are as fast: of one batch size, GPU count and model; rules, rates and seeds compete.

    ASHA (Li et al. 2020, "A system for massively parallel hyperparameter tuning") ends a fixed share of the trials,
    however close they are. Here one that it would end also has to be far `behind` the best that had seen no more
    samples; and never is one ended that a table needs: at the reference batch, whose accuracy the others are compared
    with, or as long as no trial as fast has been timed. Nor is one whose training is over, or was in an earlier attempt
    that is repeated for its timing.
    """

    def __init__(self, rule: EarlyStopping, is_timed: Callable[[TrialSpec], bool]) -> None:
        self._rule = rule
        self._is_timed = is_timed
        self._ladders: dict[str, _Ladder] = {}
        self._trained: set[str] = set()

    def why_hopeless(self, trial: Attempt, rows: Sequence[Mapping[str, Any]]) -> str:
        """After these further rows of the trial, why it is to end; empty where it is not, or they do not tell."""
        spec, said = trial.spec, ""
        for row in rows if not spec.probes else ():
            samples, accuracy = row.get(SAMPLES), row.get(ACCURACY)
            if not samples or accuracy is None or (total := _budget(spec, row)) is None:
                continue
            alike = speed(spec.axes)
            if alike not in self._ladders:
                self._ladders[alike] = _Ladder(total, self._rule)
            said = self._ladders[alike].climbed(trial, samples, accuracy) or said
            if samples >= total * _END:
                self._trained.add(spec.trial_id)
        return said if said and not self._is_needed(spec) else ""

    def _is_needed(self, spec: TrialSpec) -> bool:
        at_reference = spec.batch.global_batch_size == spec.lr.reference_batch_size
        return at_reference or spec.trial_id in self._trained or not self._is_timed(spec)


class _Ladder:
    """The rungs of trials that are as fast, which all have the same budget."""

    def __init__(self, total: float, rule: EarlyStopping) -> None:
        self._rule = rule
        self._climbers: set[str] = set()
        self._seen: list[tuple[float, float]] = []
        self._asha = ASHAScheduler(
            time_attr=SAMPLES,
            metric=ACCURACY,
            mode="max",
            grace_period=rule.after * total,
            max_t=total * _END,  # there is nothing left to save
            reduction_factor=REDUCTION,
            stop_last_trials=False,
        )

    def climbed(self, trial: Attempt, samples: float, accuracy: float) -> str:
        """Why the trial, which has come so far, is hopeless; empty where it is not."""
        if trial.trial_id not in self._climbers:
            self._climbers.add(trial.trial_id)
            self._asha.on_trial_add(None, trial)
        verdict = self._asha.on_trial_result(None, trial, {SAMPLES: samples, ACCURACY: accuracy})
        best = max((each for seen, each in self._seen if seen <= samples), default=accuracy)
        self._seen.append((samples, accuracy))
        if verdict != TrialScheduler.STOP or best - accuracy <= self._rule.behind:
            return ""
        return (
            f"sweep.early_stop: val_accuracy {accuracy:.4f} after {samples:,.0f} samples, where the best has {best:.4f}"
        )


def _budget(spec: TrialSpec, row: Mapping[str, Any]) -> float | None:
    """The samples that the trial is to see; None where a row does not tell, as of a budget in seconds."""
    budget: Mapping[str, Any] = spec.config.get("budget") or {}
    if budget.get("samples") is not None:
        return float(budget["samples"])
    if budget.get("steps") is not None:
        return float(budget["steps"] * spec.batch.global_batch_size)
    if budget.get("epochs") is not None and row.get("epoch"):
        return float(row[SAMPLES] / row["epoch"] * budget["epochs"])
    return None
