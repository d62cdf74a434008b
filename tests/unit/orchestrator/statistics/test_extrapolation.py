"""Throughput on more GPUs: exact growths by hand, noise, and what is refused."""

import math

import numpy as np
import pytest

from orchestrator.statistics.extrapolation import NoExtrapolationError, counts_to_measure, extrapolated

NOISE = np.array([0.99, 1.0, 1.01])
LOSSES = {
    "Amdahl": lambda n: 0.1 * (n - 1),
    "ring bandwidth": lambda n: 0.4 * (n - 1) / n,
    "tree latency": lambda n: 0.2 * np.log2(n),
}


def rates(loss, counts=(1.0, 2.0, 4.0), noise=NOISE):
    return {n: 100 * n / (1 + loss(n)) * noise for n in counts}


@pytest.mark.parametrize("law", LOSSES)
@pytest.mark.parametrize(("counts", "gpus"), [((1, 2, 4), 8), ((1, 2, 4), 16), ((1, 2, 4, 8), 16), ((2, 4, 8), 64)])
def test_a_geometric_growth_goes_on(law, counts, gpus):
    truth = 100 * gpus / (1 + LOSSES[law](gpus))
    forecast = extrapolated(rates(LOSSES[law], counts), gpus)
    assert float(forecast.point) == pytest.approx(truth, rel=1e-3)  # the noise is the same on all counts
    assert float(forecast.lo) < truth < float(forecast.hi)


@pytest.mark.parametrize("gpus", [3, 4])
def test_measured_counts_and_those_between_them(gpus):
    forecast = extrapolated(rates(LOSSES["Amdahl"]), gpus)
    truth = 100 * gpus / (1 + 0.1 * (gpus - 1))
    assert float(forecast.point) == pytest.approx(truth, rel=1e-3)
    assert float(forecast.lo) < truth < float(forecast.hi)


def test_growth_may_stop_or_follow_a_serial_part():
    """Costs on 1, 2 and 4 GPUs: 1, 1.1 and 1.2; on 8, at least 1.2, and at most 1.2 + 2 · 0.1, apart from noise."""
    forecast = extrapolated(rates(lambda n: 0.1 * math.log2(n), noise=np.ones(10_000)), 8)
    assert [float(end) for end in (forecast.lo, forecast.point, forecast.hi)] == pytest.approx(
        [800 / 1.4, 800 / 1.3, 800 / 1.2], rel=1e-3
    )


def test_an_effect_of_seeds_on_all_counts_widens_only_the_level():
    own = np.random.default_rng(1).normal(1, 0.03, (3, 5))
    shared = {n: rate[0] * own[0] for n, rate in rates(LOSSES["Amdahl"]).items()}
    apart = {n: rate[0] * row for (n, rate), row in zip(rates(LOSSES["Amdahl"]).items(), own, strict=True)}
    widths = [forecast.hi / forecast.lo for forecast in (extrapolated(shared, 8), extrapolated(apart, 8))]
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    "loss",
    [
        lambda n: 0.5 * (n > 2),  # two pairs
        lambda n: max(0.0, n / 2.6 - 1),  # something that all GPUs share is used up
    ],
)
def test_losses_that_disagree_are_refused(loss):
    with pytest.raises(NoExtrapolationError, match="from 1 to 2 and from 2 to 4 disagree"):
        extrapolated(rates(loss), 8)


def test_a_loss_that_may_be_contention_allows_no_gain():
    """The loss on 4 GPUs is not sure: 8 may be no faster than 4."""
    noise = np.array([0.95, 1.0, 1.05])
    measured = {1.0: 100 * noise, 2.0: 200 * noise[::-1], 4.0: 400 / 1.1 * noise}
    forecast = extrapolated(measured, 8)
    assert float(forecast.lo) <= 400 / 1.1 < float(forecast.point) < float(forecast.hi)


def test_one_seed_has_a_wider_interval():
    one, three = (extrapolated(rates(LOSSES["Amdahl"], noise=np.ones(seeds)), 8) for seeds in (1, 3))
    assert one.hi / one.lo > three.hi / three.lo and float(one.point) == pytest.approx(float(three.point))


@pytest.mark.parametrize(("counts", "gpus"), [((1, 2), 4), ((1, 2, 4), 33), ((2, 4, 8), 1)])
def test_few_counts_and_far_ones_are_refused(counts, gpus):
    with pytest.raises(NoExtrapolationError):
        extrapolated(rates(LOSSES["Amdahl"], counts), gpus)


@pytest.mark.parametrize(
    ("measured", "asked", "counts"),
    [
        ([], [8], [1, 2, 4]),
        ([1, 2], [8, 16], [1, 2, 4]),
        ([1, 4], [8], [1, 2, 4]),
        ([2, 4], [100], [2, 4, 8, 16]),
        ([1, 2, 4], [64], [1, 2, 4, 8]),
        ([2, 4, 8], [1], [1, 2, 4, 8]),
        ([1, 2, 4], [8], [1, 2, 4, 8]),  # their losses disagree
    ],
)
def test_the_fewest_counts_that_allow_an_extrapolation(measured, asked, counts):
    assert counts_to_measure(measured, asked) == counts
