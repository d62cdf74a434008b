"""Decides which trials to stop early: Tune's ASHA, with rungs at numbers of samples, and a margin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from orchestrator.backends.ray.tune import Attempt
from orchestrator.config.request import Request
from orchestrator.statistics import margins
from orchestrator.store.grouping_keys import same_speed
from sweeps.trial import TrialSpec

SAMPLES, SCORE = "samples", "score"

REDUCTION = 2  # the lower half at a rung may be stopped, and the next rung is at twice the samples

_END = 1 - 1e-9  # the share of its budget from which a training counts as finished


class EarlyStop:
    """Compares trials of equal speed: same batch size, GPU count and model; rules, rates and seeds compete.

    ASHA (Li et al. 2020, "A system for massively parallel hyperparameter tuning") stops a fixed share of the trials,
    however close they are. Here a trial must also be far behind the best one that had seen no more samples. Trials
    that a table needs are never stopped: those at the reference batch, whose metric others are compared with, and
    all as long as none of equal speed has been timed. Neither are trials whose training is finished, or was finished in
    an earlier attempt that is repeated for its timing.
    """

    def __init__(self, request: Request, is_timed: Callable[[TrialSpec], bool]) -> None:
        self._request = request
        self._is_timed = is_timed
        self._ladders: dict[str, _Ladder] = {}
        self._trained: set[str] = set()

    def reason_to_stop(self, attempt: Attempt, rows: Sequence[Mapping[str, Any]]) -> str:
        """Return why to stop an attempt, given these new rows; empty if it may continue."""
        trial, reason = attempt.spec, ""
        for row in rows if not trial.measures else ():
            samples, value = row.get(SAMPLES), row.get(self._request.metric.name)
            if not samples or value is None or (total := _budget(trial, row)) is None:
                continue
            alike = same_speed(trial.axes)
            if alike not in self._ladders:
                self._ladders[alike] = _Ladder(total, self._request)
            reason = self._ladders[alike].reached(attempt, samples, value) or reason
            if samples >= total * _END:
                self._trained.add(trial.trial_id)
        at_reference = trial.batch.global_batch_size == trial.lr.reference_batch_size
        is_needed = at_reference or trial.trial_id in self._trained or not self._is_timed(trial)
        return "" if is_needed else reason


class _Ladder:
    """The rungs of trials of equal speed, which all have the same budget."""

    def __init__(self, total: float, request: Request) -> None:
        self._metric = request.metric
        self._behind = margins.FAR_BEHIND * request.settings.report.margin
        self._known: set[str] = set()
        self._seen: list[tuple[float, float]] = []
        self._asha = ASHAScheduler(
            time_attr=SAMPLES,
            metric=SCORE,
            mode="max",
            grace_period=request.settings.sweep.early_stop_after * total,
            max_t=total * _END,  # there is nothing left to save
            reduction_factor=REDUCTION,
            stop_last_trials=False,
        )

    def reached(self, attempt: Attempt, samples: float, value: float) -> str:
        """Return why to stop an attempt with this metric after these samples; empty if it may continue."""
        score = self._metric.sign * value
        if attempt.trial_id not in self._known:
            self._known.add(attempt.trial_id)
            self._asha.on_trial_add(None, attempt)
        decision = self._asha.on_trial_result(None, attempt, {SAMPLES: samples, SCORE: score})
        best = max((score for seen, score in self._seen if seen <= samples), default=score)
        self._seen.append((samples, score))
        if decision != TrialScheduler.STOP or best - score <= self._behind:
            return ""
        return (
            f"sweep.early_stop: {self._metric.name} {value:.4f} after {samples:,.0f} samples,"
            f" where the best has {self._metric.sign * best:.4f}"
        )


def _budget(trial: TrialSpec, row: Mapping[str, Any]) -> float | None:
    """Return the trial's budget in samples; None if unknown, as for a budget in seconds."""
    match trial.length:
        case {"samples": samples}:
            return float(samples)
        case {"tokens": tokens} if row.get("tokens"):
            return float(tokens * row[SAMPLES] / row["tokens"])
        case {"steps": steps}:
            return float(steps * trial.batch.global_batch_size)
        case {"epochs": epochs} if row.get("epoch"):
            return float(row[SAMPLES] / row["epoch"] * epochs)
        case _:
            return None
