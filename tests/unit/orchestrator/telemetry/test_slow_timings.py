"""Timings that are slow among trials with the same steps are repeated."""

from orchestrator.telemetry.timing_gate import needs_repetition, slow_timings, superlinear
from tests.unit.orchestrator.records import record_of


def seeds(*rates, **fields):
    records = [record_of(1, s, metrics={"samples_per_s": rate, **fields}) for s, rate in enumerate(rates)]
    return {record.trial_id: record for record in records}


def test_a_slow_seed_is_repeated():
    rows = seeds(100.0, 98.0, 10.0)
    (slow,) = needs_repetition(rows)
    assert rows[slow].seed == 2 and slow_timings(list(rows.values())) == {slow: 9.8}


def test_usual_variation_and_two_seeds_are_not():
    assert not needs_repetition(seeds(100.0, 95.0, 80.0)) and not needs_repetition(seeds(100.0, 10.0))


def test_a_window_that_is_too_short_would_be_too_short_again():
    assert not needs_repetition(seeds(100.0, 98.0, 10.0, window_s=0.1, window_steps=5))


def test_a_superlinear_timing_is_repeated():
    rates = {1: 100.0, 2: 190.0, 4: 500.0}
    records = [record_of(gpus, 0, metrics={"samples_per_s": rate}) for gpus, rate in rates.items()]
    assert superlinear(records) == {"4-32-none-0"} == needs_repetition({row.trial_id: row for row in records})
    # Other seeds, devices and axes are other trainings.
    other = [record_of(4, 1, metrics={"samples_per_s": 500.0}), record_of(1, 0, metrics={"samples_per_s": 100.0})]
    assert not superlinear(other)
