"""A sample of the simulations (`pytest -m "" benchmarks/simulation`); the module `report` beside it runs them in full.

Bounds allow three standard errors; the generator is seeded, so that they hold on every run or on none.
"""

import numpy as np
import pytest

from benchmarks.simulation import margins, yardstick
from benchmarks.simulation.worlds import CLEAN, CONTAMINATED, DRIFTS, LOSSES, PROCESSES, Noise
from tests.unit.orchestrator.frames import collect


@pytest.fixture
def generator():
    return np.random.default_rng(7)


SWEEPS, SPEEDUP, ACCURACY, LOST = 400, 1.7, 0.9, 0.004


def records(noise, seeds, generator):
    """Return the records of many sweeps, each with a cell on one GPU at the reference batch, and one on two."""
    logs, accuracies = (noise.draw(generator, SWEEPS, 2, seeds) for _ in range(2))
    for sweep, two, seed in np.ndindex(logs.shape):
        speed = 1000 * SPEEDUP**two * np.exp(logs[sweep, two, seed])
        accuracy = ACCURACY - LOST * two + accuracies[sweep, two, seed] / 5
        asked = yardstick.on_gpus(1 + two, 32, seed)
        yield yardstick.recorded(asked, sweep, speed, accuracy=accuracy)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_in_summary_csv_cover_the_truth(seeds, generator):
    """Tests from the journal's records to the table's columns; three standard errors of 400 sweeps are 3.3%."""
    cells = collect(list(records(CLEAN, seeds, generator)), scaling="weak", reference_batch_size=32)[1]
    cells = cells[cells["gpus"] == 2]
    truth = {"speedup": SPEEDUP, "efficiency": SPEEDUP / 2, "accuracy": ACCURACY - LOST, "accuracy_difference": -LOST}
    for column, true in truth.items():
        covered = ((cells[f"{column}_lo"] <= true) & (true <= cells[f"{column}_hi"])).mean()
        assert len(cells) == SWEEPS and 0.915 <= covered <= 0.985, (column, covered)


def test_one_process_for_all_seeds_narrows_intervals(generator):
    """As docs/numbers.md says; with one process per seed the difference is part of the variation of seeds."""
    kept, fresh = (Noise(process=0.1, kept=kept) for kept in (True, False))
    assert yardstick.interval_coverage(kept, 3, 4000, generator)["paired ratio"] < 0.4
    assert 0.93 <= yardstick.interval_coverage(fresh, 3, 4000, generator)["paired ratio"] <= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_in_clean_sweeps(seeds, generator):
    coverage = yardstick.interval_coverage(CLEAN, seeds, 4000, generator)
    assert all(0.93 <= rate <= 0.97 for rate in coverage.values()), coverage


def test_pairing_withstands_drift(generator):
    drift = CONTAMINATED["AR(1) drift, ρ = 0.6"]
    assert yardstick.interval_coverage(drift, 5, 4000, generator)["paired ratio"] > 0.94


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("drift", ["+2%, trials ± 0.5%", "-0.5%, trials ± 0.13%"])
def test_drift_over_a_sweep_on_gpus_stays_within_the_interval(drift, seeds, generator):
    """Coverage is 92 to 98% (docs/results/statistics.md); the cells of a sweep share its drift, hence wider bounds."""
    coverage = yardstick.coverage_in_order(DRIFTS[drift], seeds, 60, generator)["coverage"]
    assert 0.9 <= coverage <= 0.995


@pytest.mark.parametrize("seeds", [2, 3, 10])
@pytest.mark.parametrize(("cells", "sims"), [(4, 500), (18, 100)])
def test_shrunken_variances_cover_too(cells, sims, seeds, generator):
    assert 0.92 <= yardstick.shrunken_coverage(CLEAN, seeds, sims, generator, cells) <= 0.98


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_false_equivalence_is_rare(seeds, generator):
    assert yardstick.false_equivalence(CLEAN, seeds, 4000, generator, 0.03) <= 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


def test_the_recommendation_is_good_and_calibrated(generator):
    rates = yardstick.recommendations(CLEAN, 3, 12, generator)
    assert rates["median regret"] <= 0.02
    assert abs(rates["probability of within, as told"] - rates["truly within the margin"]) < 0.3
    assert rates["behind by no more than told (95%)"] >= 10 / 12


@pytest.mark.parametrize(
    ("law", "cells", "sims"),
    [
        ("cliff", 16, 50),
        pytest.param("cliff", 16, 150, marks=pytest.mark.slow),
        pytest.param("all near the margin", 16, 150, marks=pytest.mark.slow),
        pytest.param("unrelated", 16, 150, marks=pytest.mark.slow),
        pytest.param("one law", 256, 20, marks=pytest.mark.slow),
    ],
)
def test_misses_of_the_margin_are_told_and_the_safe_choice_has_few(law, cells, sims, generator):
    """Told and true misses differ by about 4% (docs/results/statistics.md), and three standard errors are 10 to 27%."""
    rates = margins.safe_and_fast(law, cells, 3, sims, generator)
    told, missed = rates["fast bet misses, told"], rates["fast bet misses"]
    assert abs(told - missed) <= margins.TOLD + 3 * (0.2 * 0.8 / sims) ** 0.5
    assert (
        rates["safe misses"] <= 0.05 + 3 * (0.05 * 0.95 / sims) ** 0.5 and rates["slowdown"] < rates["safe: slowdown"]
    )


@pytest.mark.slow
def test_few_validation_samples_rarely_make_sure(generator):
    """The fastest of the digits' cells truly miss the margin by 0.2%, and their shares are often equal by chance."""
    rates = margins.safe_and_fast("digits", 16, 2, 150, generator)
    assert rates["P(near best) over 90%"] <= 0.06
    assert rates["safe misses"] <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


@pytest.mark.parametrize("seeds", [3, 10])
def test_a_collapsed_seed_is_found_and_its_cell_is_not_recommended(seeds, generator):
    rates = yardstick.collapses(CLEAN, seeds, 10, generator)
    assert (
        rates["its cell is recommended"] == rates["… without a warning"] == rates["no collapse: a false warning"] == 0
    )
    assert rates["baseline's seed: no warning"] == 0 and rates["baseline's seed: truly within the margin"] >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_slow_seed_does_not_change_the_choice(seeds, generator):
    """At least 90% of the choices are right (docs/results/statistics.md); three standard errors of 20 are 20%."""
    rates = yardstick.slow_seeds(CLEAN, seeds, 20, generator)
    assert rates["truly best (within 2%)"] >= 0.7 and rates["the slow seed is told, if its cell is chosen"] == 1
    assert rates["clear"] <= 0.3


@pytest.mark.parametrize("truth", LOSSES)
@pytest.mark.parametrize("seeds", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_extrapolations_cover_whatever_the_cause(truth, seeds, generator):
    """Coverage is 90% or more (docs/results/statistics.md)."""
    sims = 40 if seeds == 3 else 200
    rates = yardstick.extrapolation_coverage(truth, CLEAN, seeds, sims, generator)
    told = sims * (1 - rates["cannot be predicted"])
    least = 0.9 - 3 * (0.9 * 0.1 / told) ** 0.5
    assert min(rates["coverage, 8 GPUs"], rates["coverage, 16 GPUs"]) >= least, rates
    assert rates["half width, 8 GPUs"] <= 0.55, rates


@pytest.mark.parametrize("noise", [CLEAN, *CONTAMINATED.values(), *PROCESSES.values()])
@pytest.mark.parametrize("cells", [4, pytest.param(18, marks=pytest.mark.slow)])
def test_identical_cells_are_rarely_marked_after_another_session(noise, cells, generator):
    sims = 150 if cells == 4 else 400
    rates = yardstick.marked_by_compare(noise, 3, sims, generator, cells)
    assert rates["marked"] <= 0.06 and rates["marked if each cell is judged alone"] > rates["marked"]


@pytest.mark.parametrize("claims", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_some_false_verdict_of_all_claims_is_as_frequent_as_the_table_says(claims, generator):
    sims, most = 1200 // claims, 1 - 0.95**claims
    share = yardstick.false_verdicts(claims, 3, sims, generator)["some verdict"]
    assert 0.05 < share <= most + 3 * (most * (1 - most) / sims) ** 0.5


@pytest.mark.parametrize("noise", [Noise(own=0.005), Noise(own=0.01), CLEAN])
def test_ties_go_to_the_cheapest(noise, generator):
    assert yardstick.hours_of_ties(noise, 3, 300, generator)["hours over the fewest"] <= 1.05
