"""Test budgets on the command line: skipped trials are reported, and run with a larger budget."""

import json

import pytest


def ended(place, *arguments):
    process = place.start("sweep=traced", *arguments)
    out, err = process.communicate(timeout=60)
    assert err == "", err
    return process.returncode, out


@pytest.mark.slow
def test_a_larger_budget_runs_the_skipped_trials(place):
    status, out = ended(place, "trainable.pause_s=0.05", "sweep.budget.gpu_hours=0.00003")
    assert status == 1
    ran = len(place.ran())
    assert 1 <= ran < 12
    assert f"{12 - ran} of 12" in out and "sweep.budget.gpu_hours=3e-05" in out
    status, out = ended(place, "mode=plan", "trainable.pause_s=0.05", "format=json")
    told = json.loads(out)
    assert (status, told["to_run"], told["finished"]) == (0, 12 - ran, ran)
    assert told["expected_makespan_s"] > 0 and [row["order"] for row in told["trials"][:2]] == [1, 2]
    assert ended(place, "trainable.pause_s=0.05")[0] == 0
    assert len(place.ran()) == 12 == len(set(place.ran()))
