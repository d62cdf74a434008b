"""Launch-bound steps: GPUs wait for their processes, whose pace is luck."""

from __future__ import annotations

from typing import Any

import pandas as pd

MANY = 0.1
"""Of a step: from here on its pace depends on how fast a process launches (docs/findings.md, E1)."""


def launch_share(step_s: pd.Series[Any], step_host_s: pd.Series[Any], cell_id: pd.Series[Any]) -> pd.Series[Any]:
    """Of a step the share in which GPUs wait for launches, by cell: the mean over its trials."""
    return (step_host_s / step_s).groupby(cell_id).mean()


def launch_bound(cells: pd.DataFrame) -> pd.Series[Any]:
    """Of each cell whether that is a tenth of a step or more; not where it is unknown."""
    return cells["launch_share"] >= MANY
