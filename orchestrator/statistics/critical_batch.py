"""The critical batch, up to which larger batches save steps, from the samples that trials took to a target.

McCandlish et al., "An empirical model of large-batch training", arXiv:1812.06162 (2018), section 2.3: with batch B the
target takes S = S_min (1 + B_crit/B) steps, and so E = B·S = E_min (1 + B/B_crit) samples. Targets a step, 1/S = B/E,
grow with B as throughput grows with GPUs by Amdahl's law, with α/(1 − α) = 1/B_crit, and are fitted so (`scaling_law`).
"""

from __future__ import annotations

import numpy as np

from orchestrator.statistics.means import Array, Interval
from orchestrator.statistics.scaling_law import AMDAHL, Fit, TooFewCountsError


def critical_batch(batches: Array, samples: Array) -> Interval:
    """B_crit in samples, from the global batches of trials and the samples that each took to the target.

    The upper end is inf where the data agree with a cost in samples that does not grow. Raises TooFewCountsError for
    fewer than three batch sizes.
    """
    known = (batches > 0) & (samples > 0) & np.isfinite(batches) & np.isfinite(samples)
    if not known.any():
        raise TooFewCountsError("no trial reached the target")
    batches, samples = batches[known], samples[known]
    unit = float(np.min(batches))
    fit = Fit.of(AMDAHL, batches / unit, batches / samples)
    alpha = fit.shape_interval(0)
    point, hi, lo = (_batch(float(each), unit) for each in (fit.shape[0], alpha.lo, alpha.hi))
    return Interval(point=point, lo=lo, hi=hi)


def _batch(alpha: float, unit: float) -> Array:
    """Where α is 1 or more, even the smallest batch is far beyond B_crit."""
    return np.asarray(np.inf if alpha <= 1e-9 else max(0.0, unit * (1 - alpha) / alpha))
