"""Launch-bound steps: GPUs wait for their processes, whose pace varies by chance."""

from __future__ import annotations

from typing import Any

import pandas as pd

MANY = 0.1
"""Share of a step; from here on the pace depends on how fast a process launches (docs/findings.md, E1)."""


def launch_share(step_s: pd.Series[Any], step_host_s: pd.Series[Any], cell_id: pd.Series[Any]) -> pd.Series[Any]:
    """The share of a step in which GPUs wait for launches, for each cell: the mean over its trials."""
    return (step_host_s / step_s).groupby(cell_id).mean()


def launch_bound(cells: pd.DataFrame) -> pd.Series[Any]:
    """For each cell, whether that is a tenth of a step or more; False if unknown."""
    return cells["launch_share"] >= MANY
