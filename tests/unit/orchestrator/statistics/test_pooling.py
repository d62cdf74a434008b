import numpy as np
import pytest

from orchestrator.statistics.pooling import Likeness, pooled_draws

BATCHES = np.tile([32.0, 64.0, 128.0, 256.0, 512.0, 1024.0], 2)
LIKENESS = Likeness(batch=BATCHES, recipe=np.repeat([0, 1], 6))
LAW = 0.9 - 0.01 * np.log2(BATCHES / 32) * np.repeat([1.0, 0.5], 6)
ERROR = 0.005


def pooled(mean, error=ERROR, freedom=np.inf, likeness=LIKENESS, draws=2000, seed=0):
    error = np.broadcast_to(np.asarray(error, dtype=float), np.shape(mean))
    return pooled_draws(np.asarray(mean), error, freedom, likeness, np.random.default_rng(seed), draws)


def errors(truths, generator):
    """Root mean squares of what the means and the pooled ones are off, and how many 95% intervals of these cover."""
    off, covered = [], []
    for truth in truths:
        mean = truth + ERROR * generator.standard_normal(len(truth))
        drawn = pooled(mean, draws=1000, seed=int(generator.integers(1 << 30)))
        off.append([mean - truth, drawn.mean(axis=0) - truth])
        lo, hi = np.quantile(drawn, [0.025, 0.975], axis=0)
        covered.append(((lo <= truth) & (truth <= hi)).mean())
    alone, together = np.sqrt((np.array(off) ** 2).mean(axis=(0, 2)))
    return alone, together, float(np.mean(covered))


def test_cells_of_one_law_are_pooled():
    alone, together, covered = errors([LAW] * 60, np.random.default_rng(1))
    assert together < 0.75 * alone and 0.92 <= covered <= 0.98


def test_an_outlying_cell_is_not_pooled():
    mean = LAW.copy()
    mean[4] = 0.1
    pooled_mean = pooled(mean).mean(axis=0)
    assert pooled_mean == pytest.approx(mean, abs=3 * ERROR) and pooled_mean[4] == pytest.approx(0.1, abs=ERROR)


def test_means_without_error_are_unchanged():
    drawn = pooled(LAW, error=0.0)
    assert drawn.shape == (2000, 12) and drawn == pytest.approx(np.broadcast_to(LAW, drawn.shape), abs=1e-9)


def test_neither_level_nor_unit_of_the_means_matters():
    mean = LAW + 0.01 * np.sin(np.arange(12))
    plain, higher, larger = pooled(mean), pooled(5 + mean) - 5, pooled(100 * mean, 100 * ERROR) / 100
    for other in (higher, larger):
        assert other == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize("count", [1, 4])
def test_too_few_cells_are_not_pooled(count):
    likeness = Likeness(batch=np.full(count, 32.0), recipe=np.zeros(count, dtype=int))
    assert pooled(np.linspace(0.8, 0.9, count), likeness=likeness) is None


def test_equal_means_and_missing_batches_are_not_pooled():
    assert pooled(np.full(12, 0.9)) is None
    unknown = Likeness(batch=np.where(np.arange(12) == 3, np.nan, BATCHES), recipe=LIKENESS.recipe)
    assert pooled(LAW, likeness=unknown) is None


def test_errors_of_similar_cells_are_correlated():
    """A draw with a high value for one batch has a high value for an almost equal batch."""
    equivalent_cells = Likeness(
        batch=np.array([32.0, 33.0, 512.0, 2048.0, 8192.0, 32768.0]), recipe=np.zeros(6, dtype=int)
    )
    drawn = pooled([0.9, 0.9, 0.88, 0.85, 0.82, 0.8], likeness=equivalent_cells, draws=4000)
    like, unlike = (np.corrcoef(drawn[:, [0, other]].T)[0, 1] for other in (1, 5))
    assert like > 0.4 and abs(unlike) < 0.3


@pytest.mark.parametrize(("cells", "pools"), [(4, False), (5, True)])
def test_pooling_needs_five_cells(cells, pools):
    some = Likeness(batch=BATCHES[:cells], recipe=np.zeros(cells, dtype=int))
    assert (pooled(LAW[:cells], likeness=some) is not None) is pools
