"""Work done against work asked: which trials are short, which samples the budget means, and which rates deviate."""

import numpy as np
import pytest

from orchestrator.analysis.trials import trials_frame
from orchestrator.analysis.work import accounts, rate_deviations
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def share(*records):
    """The shares of the work that these trials did; None if unknown."""
    by_id = accounts(records)
    return [by_id[record.trial_id].share if record.trial_id in by_id else None for record in records]


@pytest.mark.parametrize(
    ("budget", "metrics", "done", "note"),
    [
        ({"epochs": 8}, {"epochs": 8}, 1.0, ""),
        ({"epochs": 8}, {"epochs": 4}, 0.5, "4 of 8 epochs"),
        ({"epochs": 8}, {"epochs": 9}, 1.0, ""),
        ({"epochs": 100}, {"epochs": 98}, 1.0, ""),  # 2% may be missing
        ({"epochs": 100}, {"epochs": 97}, 0.97, "97 of 100 epochs"),
        ({"steps": 1000}, {"steps": 500}, 0.5, "500 of 1,000 steps"),
        ({"samples": 100_000}, {"samples": 61_440}, 0.6144, "61,440 of 100,000 samples"),
        ({"samples": 100}, {"samples": 69}, 1.0, ""),  # less than a batch of 32 is missing
        ({"tokens": 1000}, {"tokens": 690, "samples": 69}, 1.0, ""),
        ({"epochs": 1}, {"epochs": 0.69, "samples": 69}, 1.0, ""),
        ({"tokens": 2000}, {"tokens": 1000}, 0.5, "1,000 of 2,000 tokens"),
        ({"seconds": 60}, {"samples": 10}, None, ""),  # a rule of the sweep ended it
        ({"epochs": 8}, {"epochs": 4, "time_to_target_s": 3.0}, None, ""),  # so did the target
        ({"epochs": 8}, {"epochs": 4, "work_source": "assumed"}, 1.0, ""),  # lines that may not be epochs
        ({"epochs": 8}, {"epochs": 4, "own_length": True}, 1.0, ""),  # the budget does not reach the command
        ({"epochs": 8}, {}, None, ""),
        ({}, {"epochs": 4}, None, ""),  # a record of an earlier version
    ],
)
def test_work_is_compared_with_the_budget(budget, metrics, done, note):
    record = record_of(metrics=metrics, budget=budget)
    assert share(record) == [pytest.approx(done) if done is not None else None]
    frame = trials_frame([record])
    assert frame["note"].item() == note
    assert np.isnan(frame["work_done"].item()) if done is None else frame["work_done"].item() == pytest.approx(done)


@pytest.mark.parametrize(
    ("first", "second", "shares"),
    [
        ({"samples": 86_220}, {"samples": 61_440}, [1.0, 61_440 / 86_220]),
        ({"samples": 86_220}, {"samples": 86_000}, [1.0, 1.0]),
        ({"epochs": 8, "work_source": "assumed"}, {"epochs": 4, "work_source": "assumed"}, [1.0, 0.5]),
        ({"samples": 12_800, "steps": 400}, {"samples": 51_200, "steps": 400}, [None, None]),  # fixed steps
        ({"samples": 0.0}, {"samples": 12_800}, [0.0, 1.0]),
        ({"samples": 3904, "epochs": 8}, {"samples": 4096, "epochs": 8}, [1.0, 1.0]),  # a step of 256 too many
    ],
)
def test_work_is_compared_with_that_of_the_other_cells(first, second, shares):
    records = [record_of(batch=batch, metrics=m, budget={"epochs": 8}) for batch, m in ((32, first), (256, second))]
    if shares[0] is not None and "epochs" not in first:
        assert share(*records) == pytest.approx(shares)
    else:
        assert share(*records) == shares


@pytest.mark.parametrize(
    ("axes", "fields"),
    [
        ({"data": "large"}, {}),  # other data has another number of samples
        ({}, {"lr_rule": "adascale"}),  # decides its length while it trains
        ({}, {"strategy": "independent"}),  # each of its GPUs does the whole budget
        ({}, {"status": Status.TIMEOUT}),
    ],
)
def test_trials_of_another_length_are_not_compared(axes, fields):
    usual = record_of(metrics={"samples": 1000, "epochs": 8}, budget={"epochs": 8})
    longer = record_of(2, metrics={"samples": 9000, "epochs": 8}, budget={"epochs": 8}, axes=axes, **fields)
    assert share(usual) == share(usual, longer)[:1] == [1.0]


def test_time_for_the_budget_is_that_of_the_same_samples_at_the_rate():
    metrics = {"train_s": 10.0, "total_s": 12.0, "energy_j": 5.0, "epoch_s": 1.0, "samples_per_s": 100.0}
    whole = record_of(batch=32, metrics=metrics | {"samples": 1000, "epochs": 8}, budget={"epochs": 8})
    short = record_of(batch=64, metrics=metrics | {"samples": 500, "epochs": 4}, budget={"epochs": 8})
    trials, cells = collect([whole, short], scaling="weak")
    assert list(trials["budget_samples"]) == [1000, 1000]
    assert list(cells["work_done"]) == [1.0, 0.5]
    assert cells["samples_per_s"].tolist() == pytest.approx([100.0, 100.0])  # its speed counts
    assert cells["train_s"].tolist() == pytest.approx([10.0, np.nan], nan_ok=True)  # its time does not
    assert "4 of 8 epochs" in cells["note"][1]


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
    notes, (_, second_id) = rate_deviations(records), [record.trial_id for record in records]
    assert list(notes) == ([] if part is None else [second_id])
    assert (part or "") in notes.get(second_id, "")


def test_trials_without_rates_are_not_compared():
    assert rate_deviations([record_of(batch=32), record_of(batch=64)]) == {}
