"""How a sweep ended, as one value: the terminal, the report and the exit status are made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from orchestrator.config.schema import value_at
from orchestrator.decision.recommendation import Recommendation
from orchestrator.store.results import Problem
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.candidates import Candidates
from orchestrator.text.numbers import listed, training
from orchestrator.text.text_tables import Document

_MOST_NAMES = 3
"""The most models, or data, that are named as what was trained."""


@dataclass(frozen=True, kw_only=True)
class SweepEnd:
    """The frames of a sweep, as returned by `analysis.trials.collect`, its decision, its provenance and its problems.

    If no trial has ended, the frames are empty and there are no files but the journal.
    """

    folder: ResultsFolder
    trials: pd.DataFrame
    cells: pd.DataFrame
    recommendation: Recommendation
    documents: Mapping[str, Document] = field(default_factory=dict)
    """Claims, scaling, the critical batch and forecasts, where the sweep has any, by the name of the file."""
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial_id", "epoch", "loss"]))
    """The learning curves, as returned by `analysis.curve_frame.curves_frame`; empty until the report is written."""
    driver: Mapping[str, Any] = field(default_factory=dict)
    """The last driver: host, versions, commit, command."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The config that it ran, as of `config.fingerprint`."""
    problems: Sequence[Problem] = ()
    missing: int = 0  # the number of planned trials without a record, because the sweep was interrupted
    took_s: float | None = None
    """Seconds since the driver began; None if it ran nothing."""
    has_page: bool = False  # whether report.html is written, which takes seconds

    @property
    def sweep(self) -> str:
        """The sweep's name."""
        return str(self.cells["sweep"].iloc[0])

    @property
    def devices(self) -> str:
        """The models of the devices, and what an hour of one costs: `NVIDIA H200 at 2.5 EUR/h`."""
        models = " + ".join("CPU" if model == "cpu" else str(model) for model in self.cells["device"].dropna().unique())
        report = self.recommendation.terms.report
        if report.price_per_gpu_hour is None or self.recommendation.on_cpu:
            return models
        return f"{models} at {report.price_per_gpu_hour:g}{f' {report.currency}' if report.currency else ''}/h"

    @property
    def discussed(self) -> list[str]:
        """The cells of the answer, which plots of some cells show first."""
        candidates = Candidates.of(self.recommendation)
        return [cell.cell_id for cell in candidates.cells] if candidates else []

    @property
    def exit_status(self) -> int:
        """0 if every planned trial has a result or was skipped, though not by a budget, and no claim fails; else 1.

        Where no trial is ok, or none has the metric that the user names, there is no result.
        """
        has_none = self.trials.empty or self.recommendation.headline.code in ("none_ok", "metric_missing")
        return int(has_none or any(problem.fails for problem in self.problems))

    def trained(self, most: int = 2000) -> str:
        """Return what trials trained and for how long: `small_cnn on digits, 10 epochs`.

        A few models or data are all named; other axes, which labels of cells name, are left out. A command is cut to
        `most` characters.
        """

        def fixed(key: str) -> Any:
            axis = next((axis for axis in (key, key.partition(".")[0]) if axis in self.trials), None)
            if axis is None:
                return value_at(self.fingerprint, f"config.{key}")
            values = list(self.trials[axis].dropna().unique())
            is_named = key.endswith(".name") and 1 <= len(values) <= _MOST_NAMES
            return listed(values) if is_named else None

        return training(fixed, most)
