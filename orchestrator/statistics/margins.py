"""The losses that `report.margin` allows in exchange for speed, and the uses of its multiples, in rising order."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Losses = TypeVar("Losses", float, npt.NDArray[np.float64])

ROUNDING = 1e-9
"""A loss of just the margin is within it, also where 1.0 - 0.99 comes out above 0.01."""


def excess(loss: Losses, margin: float) -> Losses:
    """Return by how much each loss exceeds the margin: losses within it have at most 0, unknown ones NaN."""
    return loss - (margin + ROUNDING)


EXPECTED = 0.5
"""The loss that is expected of a cell before any measurement: most cells that are tried keep the margin."""

SHORT = 2
"""A cell whose chance is unknown, with one seed, is out if it is this much below the baseline, and is not timed."""

FAR_BEHIND = 3
"""Chance explains no such gap: a seed that far behind has collapsed, and such a training is stopped early."""

BAR = 3.0
"""A bar of the metric in a table ends this far from the baseline."""

PLOTTED = 4
"""A plot of the metric shows cells to this far below the baseline, so that the margin is well in sight."""

IMPLAUSIBLE = 10
"""No batch or rate costs so much: a baseline that far behind is none, and seeds that far apart are doubtful."""
