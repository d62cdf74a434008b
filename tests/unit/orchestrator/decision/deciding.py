"""Decisions about records that a test makes up."""

import functools
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from orchestrator.config.request import Terms
from orchestrator.config.settings import ReportSection
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import Recommendation, Remark
from orchestrator.store.record import TrialRecord
from sweeps.metric import Target
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

AXES = {"gpus": "gpus", "device_batch_size": "device_batch_size", "lr_rule": "lr_rule"}
ARGUMENTS = ("sweep=demo",)
SHORT = {"window_s": 0.6, "window_steps": 600}
"""Metrics of a timed window that is too short."""


def measured(samples_per_s: float, val_accuracy: float, **other: float) -> dict[str, float]:
    return {"samples_per_s": samples_per_s, "samples": 6000, "val_accuracy": val_accuracy, **other}


def swayed(speeds: dict[int, float], accuracies: dict[int, float]) -> list[TrialRecord]:
    """Return three seeds of cells, by GPUs, whose speeds vary by 3% and accuracies by .003, each in its own way."""
    sway = {1: (0, 0.03, -0.03), 2: (0.03, -0.03, 0), 4: (-0.03, 0, 0.03)}
    noise = {1: (0, 0, 0), 2: (0.003, -0.003, 0), 4: (-0.003, 0, 0.003)}
    return [
        record_of(g, s, metrics=measured(speeds[g] * (1 + sway[g][s]), accuracies[g] + noise[g][s] + s / 1000))
        for g in speeds
        for s in range(3)
    ]


def target(value: float) -> Target:
    """A validation accuracy to reach."""
    return Target(metric="val_accuracy", value=value, higher_is_better=True)


def decided(records: list[TrialRecord], **terms: Any) -> Recommendation:
    return decided_with_frames(records, **terms)[2]


def decided_with_frames(records: list[TrialRecord], **terms: Any) -> tuple[pd.DataFrame, pd.DataFrame, Recommendation]:
    """Return the trials, the cells and the decision; equal records are decided on once.

    `terms` are fields of `Terms`, or keys of the section `report`.
    """
    report = {
        name: terms.pop(name) for name in set(terms) & ReportSection.__dataclass_fields__.keys() - {"metric", "target"}
    }
    return _decided(pickle.dumps((records, report, {"axes": AXES, "arguments": ARGUMENTS} | terms)))


@functools.cache
def _decided(pickled: bytes) -> tuple[pd.DataFrame, pd.DataFrame, Recommendation]:
    records, report, terms = pickle.loads(pickled)
    criteria = Terms(report=ReportSection(**report), **terms)
    frames = collect(records, scaling="weak", reference_batch_size=32, report=criteria.report, metric=criteria.metric)
    return *frames, decide(*frames, criteria)


def codes(remarks: Iterable[Remark]) -> list[str]:
    return [remark.code for remark in remarks]


def values(remarks: Iterable[Remark], code: str) -> Mapping[str, Any]:
    """The values of the only remark with this code."""
    (remark_values,) = [remark.values for remark in remarks if remark.code == code]
    return remark_values


def left_out(recommendation: Recommendation) -> dict[str, int]:
    """The number of cells that were not considered, by reason."""
    return {remark.code: remark.values["count"] for remark in recommendation.left_out}
