"""Timings that are slow among trials with the same steps are repeated."""

from orchestrator.store.record import TrialRecord
from orchestrator.telemetry.timing_gate import needs_repetition, slow_timings
from tests.unit.orchestrator.records import record_of


def seeds(*rates: float, **fields: object) -> dict[str, TrialRecord]:
    records = [record_of(1, s, metrics={"samples_per_s": rate, **fields}) for s, rate in enumerate(rates)]
    return {record.trial_id: record for record in records}


def test_a_slow_seed_is_repeated() -> None:
    rows = seeds(100.0, 98.0, 10.0)
    (slow,) = needs_repetition(rows)
    assert rows[slow].seed == 2 and slow_timings(list(rows.values())) == {slow: 9.8}


def test_usual_variation_and_two_seeds_are_not() -> None:
    assert not needs_repetition(seeds(100.0, 95.0, 80.0)) and not needs_repetition(seeds(100.0, 10.0))


def test_a_window_that_is_too_short_would_be_too_short_again() -> None:
    assert not needs_repetition(seeds(100.0, 98.0, 10.0, window_s=0.1, window_steps=5))
