import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import stdtrit

from orchestrator.statistics.scaling_law import AMDAHL, USL, Fit, TooFewCountsError, critical_batch

# γ = 100, α = .1, β = .01: denominators 1, 1.12, 1.42, 2.26 on 1, 2, 4, 8 GPUs.
GPUS = np.array([1.0, 2.0, 4.0, 8.0])
USL_RATES = 100 * GPUS / np.array([1, 1.12, 1.42, 2.26])
AMDAHL_RATES = 100 * GPUS / np.array([1, 1.1, 1.3, 1.7])


def test_usl_equals_values_computed_by_hand():
    fit = Fit.of(USL, GPUS, USL_RATES)
    assert (fit.gamma, *fit.shape) == pytest.approx((100, 0.1, 0.01), rel=1e-4)
    assert float(fit.at(16).point) == pytest.approx(1600 / (1 + 1.5 + 2.4), rel=1e-4)
    assert (fit.freedom, fit.largest) == (1, 8)


def test_amdahls_law_equals_values_computed_by_hand():
    fit = Fit.of(AMDAHL, GPUS, AMDAHL_RATES)
    assert (fit.gamma, *fit.shape) == pytest.approx((100, 0.1), rel=1e-4)
    assert float(fit.at(16).point) == pytest.approx(1600 / 2.5, rel=1e-4)


def test_a_linear_law_has_students_interval():
    # With α fixed to 0 by the data's own shape, log γ is a mean: compare the profile with a direct computation.
    rates = GPUS * np.array([110.0, 100.0, 105.0, 95.0])
    fit = Fit.of(AMDAHL, GPUS, rates)
    found = fit.at(1)
    assert float(found.lo) < fit.gamma < float(found.hi)
    # Any γ at the ends has a profile residual of RSS·(1 + t²/ν), ν = 2.
    level = math.log(float(found.hi))
    grid = np.linspace(0, 1, 20001)[:, None]
    squares = ((np.log(rates) - np.log(GPUS) + np.log(1 + grid * (GPUS - 1)) - level) ** 2).sum(axis=1).min()
    assert squares == pytest.approx(fit.squares * (1 + 4.302652729911275**2 / 2), rel=1e-3)


@pytest.mark.parametrize(("law", "noise"), [(AMDAHL, 0.01), (AMDAHL, 0.1), (USL, 0.01), (USL, 0.05)])
@pytest.mark.parametrize("gpus", [1.0, 16.0])
def test_interval_ends_are_on_the_profile_likelihood_bound(law, noise, gpus):
    """Best fits whose throughput there is held at the end found, by another optimizer."""
    counts = np.repeat(GPUS, 3)
    rates = np.repeat(USL_RATES, 3) * np.exp(noise * np.random.default_rng(3).standard_normal(12))
    sizes = {AMDAHL: 1, USL: 2}

    def logs(shape, at):
        alpha, beta = shape if law == USL else (shape[0], 0.0)
        return np.log(at) - np.log(1 + alpha * (at - 1) + beta * at * (at - 1))

    def least(held=None):
        def squares(shape):
            errors = np.log(rates) - logs(shape, counts)
            level = errors.mean() if held is None else held - logs(shape, gpus)
            return 1e4 * ((errors - level) ** 2).sum()

        starts = [[0.1, 0.01], [0.3, 0.001]]
        bounds = [(0, None)] * sizes[law]
        options = {"ftol": 1e-14, "gtol": 1e-10}
        return min(minimize(squares, x[: sizes[law]], bounds=bounds, options=options).fun for x in starts)

    found, freedom = Fit.of(law, counts, rates).at(gpus), 12 - 1 - sizes[law]
    bound = least() * (1 + stdtrit(freedom, 0.975) ** 2 / freedom)
    assert least(math.log(found.lo)) == pytest.approx(bound, rel=0.05)
    assert least(math.log(found.hi)) == pytest.approx(bound, rel=0.05)


def test_a_seed_with_one_gpu_count_has_no_level():
    """Then all trials have one level, whatever their seeds."""
    gpus, rates = np.append(GPUS, [1, 2, 4, 8, 8]), np.append(USL_RATES, [*(1.1 * USL_RATES), 300.0])
    seeds = np.repeat([0.0, 1.0, 2.0], [4, 4, 1])
    assert Fit.of(USL, gpus, rates, seeds).at(16) == Fit.of(USL, gpus, rates).at(16)
    assert Fit.of(USL, gpus[:-1], rates[:-1], seeds[:-1]).at(16) != Fit.of(USL, gpus[:-1], rates[:-1]).at(16)


def test_the_shape_does_not_go_below_0():
    fit = Fit.of(USL, np.repeat(GPUS, 2), np.repeat(GPUS, 2) * np.tile([99.0, 101.0], 4))
    assert fit.shape == pytest.approx([0, 0], abs=1e-3)
    assert float(fit.shape_interval(0).lo) == 0 < float(fit.shape_interval(0).hi)


def test_without_degrees_of_freedom_there_is_no_interval():
    fit = Fit.of(USL, GPUS[:3], USL_RATES[:3])
    assert float(fit.at(8).point) == pytest.approx(USL_RATES[3], rel=1e-3)
    assert math.isnan(float(fit.at(8).lo))


def test_two_gpu_counts_are_refused():
    with pytest.raises(TooFewCountsError, match="3 GPU counts.* 2"):
        Fit.of(AMDAHL, np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.1, 2.0]))


def test_the_critical_batch_equals_the_one_computed_by_hand():
    # E = 1000 (1 + B/200) samples: 1160, 1320, 1640, 2280 at 32, 64, 128, 256.
    batches = np.array([32.0, 64.0, 128.0, 256.0])
    found = critical_batch(batches, 1000 * (1 + batches / 200) * np.array([1.01, 0.99, 1.01, 0.99]))
    assert float(found.point) == pytest.approx(200, rel=0.2)
    assert float(found.lo) < 200 < float(found.hi)
    assert float(critical_batch(batches, 1000 * (1 + batches / 200)).point) == pytest.approx(200, rel=1e-3)


def test_a_cost_that_does_not_grow_has_no_critical_batch():
    batches = np.array([32.0, 64.0, 128.0])
    assert float(critical_batch(batches, np.array([1000.0, 1000.0, 1000.0])).hi) == math.inf


def test_missed_targets_are_excluded_from_the_critical_batch():
    batches = np.array([32.0, 64, 128, 256])
    samples = 1000 * (1 + batches / 200) * np.array([1.01, 0.99, 1.01, 0.99])
    found = critical_batch(batches, samples)
    more = critical_batch(
        np.append(batches, [512, 512, 0, math.nan, math.inf]), np.append(samples, [math.nan, math.inf, 9, 9, 9])
    )
    assert (more.point, more.lo, more.hi) == (found.point, found.lo, found.hi)
    with pytest.raises(TooFewCountsError, match="no trial .*target"):
        critical_batch(batches, np.full(4, math.nan))


@pytest.mark.parametrize("critical", [0.5, 200.0, 20_000.0])
def test_a_distant_critical_batch_is_found(critical):
    """Whatever a sample is: a thousand tokens are as good a unit as one."""
    batches = np.array([32.0, 64, 128, 256])
    for unit in (1.0, 0.001):
        samples = 1000 * (1 + batches / critical)
        assert float(critical_batch(batches * unit, samples * unit).point) == pytest.approx(critical * unit, rel=0.01)


def test_seed_effects_widen_only_the_level():
    """Seeds 20% apart on every count follow one law exactly; the level is as sure as Student's t of three."""
    counts, levels = np.array([1.0, 2, 4, 8]), np.array([0.8, 1.0, 1.25])
    gpus, seeds = np.repeat(counts, 3), np.tile([0.0, 1.0, 2.0], 4)
    rates = 100 * gpus / (1 + 0.1 * (gpus - 1)) * np.tile(levels, 4)
    paired, apart = Fit.of(AMDAHL, gpus, rates, seeds), Fit.of(AMDAHL, gpus, rates)
    known = paired.shape_interval(0)
    assert float(known.point) == pytest.approx(0.1, abs=1e-3) and float(known.hi - known.lo) < 0.005
    assert float(apart.shape_interval(0).hi - apart.shape_interval(0).lo) > 0.1
    half = 4.302653 * np.std(np.log(levels), ddof=1) / math.sqrt(3)
    for count in (1.0, 16.0):
        found, law = paired.at(count), 100 * count / (1 + 0.1 * (count - 1))
        ends = [law * math.exp(-half), law, law * math.exp(half)]
        assert [float(found.lo), float(found.point), float(found.hi)] == pytest.approx(ends, rel=0.02)


@pytest.mark.parametrize(("gpus", "rate"), [(4.0, math.nan), (4.0, 0.0), (4.0, math.inf), (0.0, 100.0)])
def test_invalid_rates_and_counts_are_excluded(gpus, rate):
    counts = np.array([1.0, 2, 4, 8])
    rates = 100 * counts / (1 + 0.1 * (counts - 1)) * np.array([1.01, 0.99, 1.0, 1.01])
    found = Fit.of(AMDAHL, np.append(counts, gpus), np.append(rates, rate))
    assert found.at(16) == Fit.of(AMDAHL, counts, rates).at(16)
