"""Learning rates that commands used, compared between cells."""

import pytest

from orchestrator.analysis.rates import deviations
from tests.unit.orchestrator.records import record_of


def flat(*rates):
    return [list(rates)] * 3


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        (flat(0.1), flat(0.4), None),
        (flat(0.1, 0.01), flat(0.4, 0.04), None),
        (flat(0.1), flat(0.1), "in the middle"),  # the rate never reaches the script
        (flat(0.1), flat(0.8), "in the middle"),  # the script scales it once more
        ([[0.5, 0.0], [0.1, 0.1], [0.02, 0.02]], [[0.5, 0.0], [0.4, 0.4], [0.08, 0.08]], None),  # biases in a warm-up
        ([[0.1], [0.05], [0.01]], [[0.4], [0.04], [0.0]], "in the middle"),  # a schedule that steps once a process
        ([[0.1], [0.05], [0.01]], [[0.4], [0.2], [0.0]], "near the end"),
        (flat(0.1, 0.1), flat(0.4, 0.1), "in the middle"),  # one group keeps its rate
        (flat(0.1), flat(0.1, 0.1), None),  # other groups cannot be compared
    ],
)
def test_rates_differ_by_the_ratio_of_the_trials(first, second, part):
    records = [
        record_of(batch=32, lr=0.1, metrics={"rates": first}),
        record_of(batch=128, lr=0.4, metrics={"rates": second}),
    ]
    notes, (_, second_id) = deviations(records), [record.trial_id for record in records]
    assert list(notes) == ([] if part is None else [second_id])
    assert (part or "") in notes.get(second_id, "")


def test_trials_without_rates_are_not_compared():
    assert deviations([record_of(batch=32), record_of(batch=64)]) == {}
