"""The input of a report: the frames of a sweep and what is known about its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from orchestrator.decision.recommendation import Recommendation
from orchestrator.store.results import Finding
from orchestrator.text.table import TextTable


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The frames of a sweep, as returned by `analysis.trials.collect`, with its decision and its provenance."""

    trials: pd.DataFrame
    cells: pd.DataFrame
    """At least one row."""
    recommendation: Recommendation | None = None
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial_id", "epoch", "loss"]))
    """The learning curves, as returned by `analysis.curves.curves_frame`."""
    further: Sequence[TextTable] = ()
    """Tables of claims and scaling laws, where the sweep has any."""
    driver: Mapping[str, Any] = field(default_factory=dict)
    """The last driver: host, versions, commit, command."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The config that it ran, as of `setup.fingerprint`."""
    findings: Sequence[Finding] = ()
    """Damaged files in the results directory."""

    @property
    def sweep(self) -> str:
        """The sweep's name."""
        return str(self.cells["sweep"].iloc[0])
