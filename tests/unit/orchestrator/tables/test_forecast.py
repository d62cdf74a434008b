"""Forecasts beside what was measured, by hand."""

from dataclasses import replace

import pytest

from orchestrator.plan.estimates import Estimate, Forecast
from orchestrator.store.record_checks import checked_record
from orchestrator.tables.predictions import against_measured, forecast_error_table
from sweeps.status import Status
from tests.unit.orchestrator.plan.planned import TRIALS, ended

RATE = Estimate(value=100.0, lo=90.0, hi=110.0)
FORECAST = Forecast(fits="yes", samples_per_s=RATE, train_s=Estimate(value=10.0, lo=9.0, hi=12.0)).figures()


def record(number, rate, status=Status.OK, forecast=FORECAST):
    metrics = {"samples_per_s": rate, "train_s": 20.0} if status is Status.OK else {}
    return replace(ended(TRIALS[number], status), metrics=metrics, forecast=forecast)


def test_a_cell_has_the_median_of_its_ok_seeds_and_the_worst_status():
    same = [record(0, 100.0), record(1, 104.0)]
    [row] = against_measured(same).to_dict("records")
    assert (row["status"], row["samples_per_s"], row["samples_per_s_forecast"]) == ("ok", 102.0, 100.0)
    assert (row["samples_per_s_lo"], row["samples_per_s_hi"], row["train_s"]) == (90.0, 110.0, 20.0)
    [row] = against_measured([same[0], record(1, 0.0, Status.OOM)]).to_dict("records")
    assert (row["status"], row["samples_per_s"]) == ("oom", 100.0)


def test_the_table_counts_what_its_intervals_hold():
    table = forecast_error_table(against_measured([record(0, 105.0), record(1, 105.0)]))
    assert list(table.frame.columns) == ["cell", "status", "fits", "samples/s", "train s"]
    assert table.frame.iloc[0]["samples/s"] == "105 (+5%)" and table.frame.iloc[0]["train s"] == "20.0 (+100%)"
    assert table.remarks[0].startswith("1 of 2 ")


def test_cells_without_a_forecast_have_no_row():
    assert against_measured([record(0, 1.0, forecast={})]).empty
    table = forecast_error_table(against_measured([record(0, 0.0, Status.FAILED)]))
    assert list(table.frame.columns) == ["cell", "status", "fits"] and not table.remarks


@pytest.mark.parametrize("forecast", [FORECAST, {}])
def test_a_forecast_is_journaled_with_its_trial(forecast):
    kept, reason = checked_record(record(0, 100.0, forecast=forecast).to_json())
    assert reason == "" and kept.forecast == forecast


def test_cells_are_named_by_what_differs_and_copies_are_left_out():
    first, second = (
        replace(record(number, 105.0), axes={**TRIALS[number].axes, "strategy": strategy, "tensor_parallel": 1})
        for number, strategy in ((0, "ddp"), (2, "fsdp"))
    )
    copy = replace(second, cell_id="copy", same_as=second.trial_id)
    names = list(against_measured([first, second, copy])["cell"])
    assert len(names) == 2 and names[0].endswith(", ddp") and names[1].endswith(", fsdp")
