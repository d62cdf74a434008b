"""Cells that were only timed: after a step or two, an accuracy is that of the initial weights."""

from __future__ import annotations

from typing import Any

import pandas as pd

FEWEST_STEPS = 10
"""Optimizer steps; after fewer, an accuracy says nothing about batches or learning rates."""


def is_untrained(cells: pd.DataFrame) -> pd.Series[Any]:
    """For each cell of a summary whether a trial took fewer than FEWEST_STEPS; not where that is unknown."""
    return cells["steps"] < FEWEST_STEPS
