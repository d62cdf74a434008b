"""How many epochs a trial trained, a part of one as a part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

_WHOLE = 1e-6
"""By how much a computed number of steps may differ from a whole one: more than rounding of a billion steps."""


def epochs_trained(trials: pd.DataFrame) -> pd.Series[Any]:
    """The passes over the training set, by row: .26 after 100 of 390 steps; NaN where a trial does not report epochs.

    Trials report how many epochs they began: 1 after a single step, too. The project's own loop reports `epoch_s` for a
    whole epoch at the rate `samples_per_s`, so that the product of the two is exactly the samples of an epoch, a whole
    number of steps. Where it is not (code of one's own measures them separately, and batches that grow have steps of
    several sizes), the number stays as it was reported.
    """
    begun, steps = trials["epochs"], trials["steps"]
    with np.errstate(invalid="ignore", divide="ignore"):
        in_an_epoch = trials["epoch_s"] * trials["samples_per_s"] * steps / trials["samples"]
        whole = in_an_epoch.round()
        exact = (whole > 0) & ((in_an_epoch - whole).abs() < _WHOLE)
        return begun.where(~exact, np.minimum(begun, steps / whole))
