"""AdaScale: a step with a large batch counts for as many steps with the reference batch as the noise lets it."""

from __future__ import annotations

from dataclasses import dataclass

from trainables.noise.noise_scale import Estimate


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What one step is worth."""

    gain: float = 1.0
    """Factor on the learning rate."""
    advance: float = 1.0
    """How far budget and schedule go on, as a share of the step's own samples."""


def pace(estimate: Estimate | None, *, kappa: float, reference_batch_size: float) -> Pace:
    """The pace at a batch of κ times the reference batch; for κ > 1 a gain of 1 as long as there is no estimate.

    Johnson et al. 2020, "AdaScale SGD: a user-friendly algorithm for distributed training", equation 4 and section 3.1:
    r = (σ² + μ²) / (σ²/S + μ²), with σ² the variance at the reference batch, S = κ and μ² = |G|². It lies between 1
    and κ; the rate is the reference rate times r, and a step counts for r steps of the reference batch: r/κ of its own
    samples. Below the reference batch, where the paper has no say, r = κ: the linear rule.
    """
    if kappa <= 1:
        return Pace(gain=kappa)
    gain = _gain(estimate, kappa, reference_batch_size) if estimate else 1.0
    return Pace(gain=gain, advance=gain / kappa)


def _gain(estimate: Estimate, kappa: float, reference_batch_size: float) -> float:
    variance = max(0.0, estimate.noise) / reference_batch_size
    signal = max(0.0, estimate.signal)
    return (variance + signal) / (variance / kappa + signal) if variance or signal else 1.0
