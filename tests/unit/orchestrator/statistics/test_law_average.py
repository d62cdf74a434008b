import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from orchestrator.statistics.law_average import EXCHANGE, IMBALANCE, LawAverage, expected_maximum
from orchestrator.statistics.scaling_law import TooFewCountsError

GPUS, SEEDS = np.repeat([1.0, 2.0, 4.0, 8.0], 3), np.tile([0.0, 1.0, 2.0], 4)
NOISE = 1 + 0.001 * np.random.default_rng(5).standard_normal(12)


def average(loss, *, strong=False, until=8, **given):
    kept = until >= GPUS
    rates = (100 * GPUS / (1 + loss(GPUS)) * NOISE)[kept]
    return LawAverage.of(GPUS[kept], rates, SEEDS[kept], strong=strong, **given)


def test_expected_maximum_equals_the_integral_over_its_density():
    for ranks in (1, 2, 5, 64):
        known = quad(lambda x, n=ranks: n * x * norm.pdf(x) * norm.cdf(x) ** (n - 1), -9, 9)[0]
        assert float(expected_maximum(np.array(float(ranks)))) == pytest.approx(known, abs=1e-6)


TRUTHS = {
    "serial part (Amdahl)": lambda n: 0.1 * (n - 1),
    "coherency (USL)": lambda n: 0.01 * n * (n - 1),
    "ring bandwidth": lambda n: 0.4 * (n - 1) / n,
    "tree latency": lambda n: 0.2 * np.log2(n),
    "fixed exchange": lambda n: 0.3 * (n > 1),
    "slowest rank": lambda n: 0.2 * expected_maximum(n),
    "ceiling": lambda n: np.maximum(0.0, n / 3 - 1),
}


@pytest.mark.parametrize("law", TRUTHS)
def test_the_law_that_holds_is_found_on_four_counts(law):
    found, truth = average(TRUTHS[law]), 1600 / (1 + TRUTHS[law](np.array([16.0]))[0])
    interval = found.at(16)
    assert float(interval.lo) < truth < float(interval.hi)
    assert float(interval.point) == pytest.approx(truth, rel=0.03)
    likely = list(found.parts())[:2]  # a ring's latency grows as a serial part
    assert law in likely and sum(found.parts().values()) == pytest.approx(1)


def test_with_a_fixed_batch_an_exchange_grows_with_the_gpus():
    """A ring's latency takes as long, of a step that is N times shorter."""
    found = average(lambda n: 0.02 * n * (n - 1), strong=True)
    assert float(found.at(16).point) == pytest.approx(1600 / 5.8, rel=0.03)
    assert found.parts()["ring latency"] > 0.2 > average(lambda n: 0.02 * n * (n - 1)).parts()["ring latency"]


def test_measured_parts_of_a_step_tell_laws_apart():
    """On 1 and 2 GPUs the throughputs alone do not say whether an exchange or a serial part takes the time."""
    share = np.where(GPUS[:6] > 1, 0.1 / 1.1, 0.0)
    nothing = np.zeros(6)

    def width(**given):
        found = average(lambda n: 0.1 * np.log2(n), until=2, **given)
        assert float(found.at(4).lo) < 400 / 1.2 < float(found.at(4).hi)
        return math.log(float(found.at(4).hi / found.at(4).lo)), found.parts()

    wide, _ = width()
    narrow, parts = width(parts={EXCHANGE: share, IMBALANCE: nothing})
    assert narrow < 0.8 * wide and parts["serial part (Amdahl)"] < 0.1
    slowest = width(parts={EXCHANGE: nothing, IMBALANCE: share})[1]
    assert next(iter(slowest)) == "slowest rank"
    assert width(parts={EXCHANGE: np.full(6, math.nan)})[0] == pytest.approx(wide)


def test_one_seed_has_a_point_and_no_interval():
    kept = SEEDS == 0
    found = LawAverage.of(GPUS[kept], 100 * GPUS[kept] / (1 + 0.1 * (GPUS[kept] - 1)), SEEDS[kept], strong=False).at(16)
    assert float(found.point) == pytest.approx(1600 / 2.5, rel=0.1) and math.isnan(float(found.lo))


def test_one_gpu_count_is_refused():
    with pytest.raises(TooFewCountsError, match="2 GPU counts.* 1"):
        average(lambda n: 0 * n, until=1)
