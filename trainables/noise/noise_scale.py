"""How noisy gradients are, from the norms of gradients over few and over many samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DECAY = 0.95
"""Of the moving averages, per estimate."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Unbiased, and so of either sign."""

    signal: float
    """|G|²: of the gradient over infinitely many samples."""
    noise: float
    """tr Σ: the summed variances of the elements of one sample's gradient."""

    @staticmethod
    def of(small: float, big: float, *, small_batch: float, big_batch: float) -> Estimate:
        """From |G_small|² and |G_big|², the squared norms of mean gradients over so many samples, small < big.

        McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1: E|G_B|² = |G|² + tr Σ / B.
        `small` may be a mean over parts of unequal sizes, with their harmonic mean as `small_batch`.
        """
        noise = (small - big) / (1 / small_batch - 1 / big_batch)
        return Estimate(signal=big - noise / big_batch, noise=noise)


class Smoothed:
    """Moving averages of signal and noise, each by itself: a mean of ratios would be biased, and has no variance."""

    def __init__(self) -> None:
        self._signal = self._noise = self._weight = 0.0

    def state(self) -> list[float]:
        """What the averages are made of."""
        return [self._signal, self._noise, self._weight]

    def restore(self, state: Sequence[float]) -> None:
        """Bring that back."""
        self._signal, self._noise, self._weight = state

    def add(self, estimate: Estimate) -> None:
        """Take in the next estimate."""
        self._signal += (1 - DECAY) * (estimate.signal - self._signal)
        self._noise += (1 - DECAY) * (estimate.noise - self._noise)
        self._weight += (1 - DECAY) * (1 - self._weight)

    @property
    def estimate(self) -> Estimate | None:
        """The averages over what there is so far, the latest counting most; None while there is nothing."""
        if not self._weight:
            return None
        return Estimate(signal=self._signal / self._weight, noise=self._noise / self._weight)

    @property
    def noise_scale(self) -> float | None:
        """B_simple = tr Σ / |G|², in samples: beyond such a batch, more samples a step gain little.

        None while there is nothing, and where noise hides the signal: an estimate of |G|² that is not above 0.
        """
        found = self.estimate
        return max(0.0, found.noise) / found.signal if found and found.signal > 0 else None
