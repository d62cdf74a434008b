"""The critical batch and the samples to the target, by hand."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from orchestrator.statistics.critical_batch import BatchEconomy, TooFewBatchesError

BATCHES = np.array([32.0, 64.0, 128.0, 256.0])
SAMPLES = 1000 * (1 + BATCHES / 200) * np.array([1.01, 0.99, 1.01, 0.99])


def test_the_critical_batch_equals_the_one_computed_by_hand():
    estimate = BatchEconomy.of(BATCHES, SAMPLES).critical_batch()
    assert float(estimate.point) == pytest.approx(200, rel=0.2) and float(estimate.lo) < 200 < float(estimate.hi)


@pytest.mark.parametrize("critical", [0.5, 200.0, 20_000.0])
@pytest.mark.parametrize("unit", [1.0, 0.001])
def test_a_distant_critical_batch_is_found_in_any_unit(critical, unit):
    samples = 1000 * (1 + BATCHES / critical)
    estimate = BatchEconomy.of(BATCHES * unit, samples * unit).critical_batch()
    assert float(estimate.point) == pytest.approx(critical * unit, rel=0.01)


def test_interval_ends_are_on_the_profile_likelihood_bound():
    def squares(critical):
        errors = np.log(SAMPLES) - np.log1p(BATCHES / critical)
        return float(((errors - errors.mean()) ** 2).sum())

    estimate = BatchEconomy.of(BATCHES, SAMPLES).critical_batch()
    bound = squares(float(estimate.point)) * (1 + stdtrit(2, 0.975) ** 2 / 2)
    assert [squares(float(end)) for end in (estimate.lo, estimate.hi)] == pytest.approx([bound, bound], rel=0.03)


def test_samples_that_do_not_grow_have_no_critical_batch():
    assert float(BatchEconomy.of(BATCHES, np.full(4, 1000.0)).critical_batch().hi) == math.inf


def test_samples_that_grow_with_the_batch_have_one_far_below():
    estimate = BatchEconomy.of(BATCHES, 30 * BATCHES * np.array([1.01, 0.99, 1.01, 0.99])).critical_batch()
    assert float(estimate.lo) == 0


def test_missed_targets_are_excluded():
    more = BatchEconomy.of(np.append(BATCHES, [512, 512, 0]), np.append(SAMPLES, [math.nan, math.inf, 9]))
    assert more.critical_batch() == BatchEconomy.of(BATCHES, SAMPLES).critical_batch()
    with pytest.raises(TooFewBatchesError, match="there are 0"):
        BatchEconomy.of(BATCHES, np.full(4, math.nan))
    with pytest.raises(TooFewBatchesError, match="there are 2"):
        BatchEconomy.of(np.array([32.0, 64.0, 64.0]), np.array([9.0, 9.0, 9.0]))


@pytest.mark.parametrize("batch", [16, 100, 512])
def test_samples_at_another_batch_follow_the_law(batch):
    estimate = BatchEconomy.of(np.repeat(BATCHES, 3), np.repeat(SAMPLES, 3)).samples_at(batch)
    truth = 1000 * (1 + batch / 200)
    assert float(estimate.point) == pytest.approx(truth, rel=0.03)
    assert float(estimate.lo) < truth < float(estimate.hi)
