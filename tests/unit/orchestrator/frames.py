"""The frames of made-up records, collected as a sweep with these settings does."""

import functools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.analysis import trials
from orchestrator.config.request import VAL_ACCURACY, Metric, Request
from orchestrator.config.settings import ReportSection, Settings, SweepSection
from orchestrator.store.record import TrialRecord


def collect(
    records: Sequence[TrialRecord],
    *,
    scaling: str,
    baseline: Mapping[str, Any] | None = None,
    reference_batch_size: int | None = None,
    report: ReportSection | None = None,
    metric: Metric = VAL_ACCURACY,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the trials and the cells; those of equal records are computed once."""
    section = SweepSection(scaling=scaling, baseline=baseline)
    request = Request(
        settings=Settings(sweep=section, report=report or ReportSection()),
        axes={},
        reference_batch_size=reference_batch_size,
        metric=metric,
        target=None,
    )
    rows, cells = _collected(pickle.dumps((request, list(records))))
    return rows.copy(), cells.copy()


@functools.cache
def _collected(pickled: bytes) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, cells, _ = trials.collect(*pickle.loads(pickled))
    return rows, cells
