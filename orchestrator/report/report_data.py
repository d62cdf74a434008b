"""The data that a report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from orchestrator.decision.recommendation import Recommendation
from orchestrator.store.history import Finding
from orchestrator.text.table import TextTable


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The frames of a sweep, as of `collector.collect`, and what is known beside them."""

    trials: pd.DataFrame
    cells: pd.DataFrame
    """At least one row."""
    recommendation: Recommendation | None = None
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial_id", "epoch", "loss"]))
    """As of `curves.curves_frame`."""
    further: Sequence[TextTable] = ()
    """Tables of claims and scaling laws, where the sweep has any."""
    driver: Mapping[str, Any] = field(default_factory=dict)
    """Who ran the sweep last: host, versions, commit, command."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The config that it ran, as of `setup.fingerprint`."""
    findings: Sequence[Finding] = ()
    """What in the results directory is not sound."""

    @property
    def sweep(self) -> str:
        """Its name."""
        return str(self.cells["sweep"].iloc[0])
