import math
from dataclasses import replace

import pytest

from orchestrator.decision.recommendation import TIED
from orchestrator.tables.next_step import next_step
from orchestrator.tables.recommendation import in_sentences
from tests.unit.orchestrator.decision.deciding import decided_with_frames, measured, swayed
from tests.unit.orchestrator.records import record_of


def test_settling_says_what_it_may_gain_over_the_cell_to_use_now():
    # Two GPUs are the fastest and may miss the margin: until that is clear, one GPU is used, which is 1.9× as slow.
    trials, _, recommendation = decided_with_frames(swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.893}))
    assert recommendation.behind == 0 and recommendation.settling_gains == pytest.approx(0.9, abs=0.2)
    of_pair = next_step(recommendation, trials).text
    assert of_pair.endswith(f", gaining up to {1 + recommendation.settling_gains:.2f}×")
    cheap = replace(recommendation.terms, report=replace(recommendation.terms.report, objective="cost"))
    by_cost = replace(recommendation, settling_gains=0.25, terms=cheap)
    assert next_step(by_cost, trials).text.endswith(", saving up to 20%")
    for too_little in (0.02, math.nan):
        assert "up to" not in next_step(replace(by_cost, settling_gains=too_little), trials).text


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_step_beyond_the_grid_has_its_cost_and_its_command(device):
    records = [
        record_of(g, s, device=device, metrics=measured(100 * g, 0.9 + s / 1000), wall_s=70.0)
        for g in (1, 2)
        for s in range(3)
    ]
    terms = {"price_per_gpu_hour": 3.0, "currency": "USD", "axes": {"gpus": "gpus"}}
    trials, _, recommendation = decided_with_frames(records, **terms)
    step = next_step(recommendation, trials)
    assert step.command == "python -m orchestrator sweep=demo 'sweep.axes.gpus=[4]' 'sweep.axes.seed=[0,1,2]'"
    # Three trials of 70 s on twice as many GPUs.
    cost, words = (", 0.700 USD", "GPUs") if device == "cuda" else ("", "processes")
    assert step.text == f"about 4 min{cost}, to try 4 {words}, if available"


def test_settling_names_the_tied_cells_and_the_others():
    rates, sway = {16: 100, 32: 199, 64: 200, 128: 201, 256: 202}, (0, 0.03, -0.03)
    records = [
        record_of(1, seed, batch=batch, metrics=measured(rate * (1 + sway[(seed + place) % 3]), 0.9 + seed / 1000))
        for place, (batch, rate) in enumerate(rates.items())
        for seed in range(3)
    ]
    trials, _, found = decided_with_frames(records)
    ids = {more.cell_id for more in found.more_seeds}
    (tied,) = [answer for label, answer in in_sentences(found).answers if label == "Tied"]
    assert found.verdict == TIED and tied.count("×") == 3
    assert sum(rival.cell_id in ids for rival in found.rivals) == 3
    assert "between the 4 tied cells, gaining up to " in next_step(found, trials).text
    first, *others = found.rivals
    missing = replace(found, rivals=(*others, replace(first, eligible=False, tied=False)))
    assert f"between the 3 tied cells and {first.name}, gaining up to " in next_step(missing, trials).text
    fewer = replace(found, more_seeds=tuple(more for more in found.more_seeds if more.cell_id != first.cell_id))
    assert "between 3 of the 4 tied cells, gaining up to " in next_step(fewer, trials).text


def test_a_cell_that_was_timed_once_is_timed_again_at_an_unknown_cost():
    records = swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9})
    short = [replace(each, metrics={**each.metrics, "window_s": 0.1, "window_steps": 5}) for each in records]
    once = [one if one.seed == 0 else other for one, other in zip(records, short, strict=True)]
    trials, _, recommendation = decided_with_frames(once)
    step = next_step(recommendation, trials)
    assert step.command.endswith("mode=settle") and step.text.startswith("to be surer of 2×")


def test_without_a_metric_the_step_reads_the_one_in_the_output():
    declared = "trainable.metrics.val_accuracy={regex: 'val_accuracy ([0-9.]+)'}"
    note = f'no metric to choose by was read; the output has one: "{declared}"; more'
    for metrics, is_told in ({"samples_per_s": 100.0}, True), (measured(100, 0.9), False):
        records = [record_of(gpus, 0, metrics=metrics, note=note) for gpus in (1, 2)]
        arguments = ["sweep=batch_scaling", "sweep.name=demo", "mode=settle"]
        trials, _, recommendation = decided_with_frames(records, arguments=arguments)
        step = next_step(recommendation, trials)
        assert step.command.endswith(f'sweep.name=demo_metric "{declared}"') == is_told
        assert ("mode=settle" in step.command) != is_told
