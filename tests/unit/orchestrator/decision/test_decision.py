"""The recommendation of small sweeps whose figures are worked out by hand."""

import math
from typing import Any

import pytest

from orchestrator.collection.collector import collect
from orchestrator.config.terms import Terms
from orchestrator.decision.claim import Claim
from orchestrator.decision.claims import verdicts
from orchestrator.decision.decision import decide
from orchestrator.decision.recommendation import Recommendation
from orchestrator.journal.record import TrialRecord
from orchestrator.tables.recommendation import at_most_behind, recommendation_markdown
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import AXES, RecordOf, decided, measured


@pytest.fixture
def records(record_of: RecordOf) -> list[TrialRecord]:
    """6,000 samples at 100, 200 and 300 a second: 60, 30 and 20 s. Four GPUs lose .05, and a rule ran out of memory."""
    fine = [record_of(1, s, metrics=measured(100, 0.9 + s / 100)) for s in range(3)]
    fine += [record_of(2, s, metrics=measured(200, 0.9 + s / 100)) for s in range(3)]
    fine += [record_of(4, s, metrics=measured(300, 0.85 + s / 100)) for s in range(3)]
    return [*fine, *(record_of(4, s, Status.OOM, lr_rule="sqrt", note="out of memory") for s in range(3))]


GOLDEN = """\
# Recommendation: demo

**Use gpus=2, device_batch_size=32, lr_rule=none: time for the fixed budget 30.0 s, against 60.0 s of the baseline \
(gpus=1, device_batch_size=32, lr_rule=none); 60.0 GPU-seconds, against 60.0; validation accuracy the same as the \
baseline's (0.01 lower is allowed).**

Probability that it is the best cell or within 2% of the best: over 99%. Probability that its validation accuracy is \
within the margin: over 99%.

With 95% probability its time for the fixed budget is no more than that of the best cell within the margin.

The best cell of each number of GPUs, of those whose accuracy is within the margin (means over seeds):

| cell                                                | time [s]   | times as fast   | validation accuracy   | cost \
[GPU-seconds]   |
|:----------------------------------------------------|:-----------|:----------------|:----------------------|:-----\
----------------|
| gpus=1, device_batch_size=32, lr_rule=none          | 60.0       | 1.00×           | 0.910                 | 60.0 \
                |
| gpus=2, device_batch_size=32, lr_rule=none (chosen) | 30.0       | 2.00×           | 0.910                 | 60.0 \
                |
| gpus=4: no cell keeps the margin                    |            |                 |                       |      \
                |

Why:

- Of 3 cells it has the least time for the fixed budget, of those whose accuracy is more likely than not within the \
margin.
- Not the time to a target accuracy: the sweep has no trainable.target_accuracy.
- 1 cell is shown to lose more than 0.01 in validation accuracy.
- Not considered: 1 cell is not ok.

What would change it:

- report.margin=0.05 would let in gpus=4, device_batch_size=32, lr_rule=none: 20.0 s, validation accuracy 0.0500 lower \
than the baseline's (within 0.01 with probability below 1%).

No other cell beats one of these in time, validation accuracy and cost at once (means over seeds):

| cell                                                | time [s]   | validation accuracy   | cost [GPU-seconds]   |
|:----------------------------------------------------|:-----------|:----------------------|:---------------------|
| gpus=4, device_batch_size=32, lr_rule=none          | 20.0       | 0.860                 | 80.0                 |
| gpus=2, device_batch_size=32, lr_rule=none (chosen) | 30.0       | 0.910                 | 60.0                 |
"""


def test_golden_text(records: list[TrialRecord]) -> None:
    assert recommendation_markdown(decided(records), "demo") == GOLDEN


def test_golden_values(records: list[TrialRecord]) -> None:
    found = decided(records, objective="cost", price_per_gpu_hour=3.0)
    # One and two GPUs cost as much, 1/60 GPU-hour at 3 each: accuracy chooses, and it ties as well.
    assert (found.measure, found.cost_unit, found.provisional) == ("cost for the fixed budget", "at your price", False)
    assert found.cell_id in ("1-32-none", "2-32-none") and found.baseline_cell_id == "1-32-none"
    assert found.p_best > 0.99
    by_time = decided(records, objective="cost", price_per_gpu_hour=3.0).sentence
    assert "cost for the fixed budget 0.0500, " in by_time and ("60.0 s" in by_time or "30.0 s" in by_time)
    assert {(p.cell_id, round(p.cost, 6)) for p in found.front} == {
        ("4-32-none", round(4 * 20 / 3600 * 3, 6)),
        ("2-32-none", 0.05),
    }


def test_a_cost_in_ones_own_currency_is_told_as_a_cost(records: list[TrialRecord]) -> None:
    both = decided(records, price_per_gpu_hour=3.0).lead
    assert "30.0 s, against 60.0 s of the baseline (gpus=1, device_batch_size=32, lr_rule=none); cost 0.0500, " in both
    assert "; cost 0.0500, against 0.0500; validation accuracy the same" in both
    alone = decided([each for each in records if each.gpus == 1], price_per_gpu_hour=3.0).lead
    assert alone.endswith("60.0 s, the baseline itself, at cost 0.0500.")
    dearest = decided(records, objective="cost", price_per_gpu_hour=3.0)
    assert "your price" not in dearest.sentence and "cost [at your price]" in recommendation_markdown(dearest, "demo")


def test_of_each_number_of_gpus_the_best_cell_within_the_margin_is_told(record_of: RecordOf) -> None:
    rates = {(1, "none"): 100, (1, "sqrt"): 110, (2, "none"): 205, (2, "sqrt"): 202, (2, "linear"): 300}
    accuracies = {(2, "none"): 0.9, (2, "sqrt"): 0.905, (2, "linear"): 0.8}  # the first two tie: accuracy chooses
    records = [
        record_of(gpus, s, lr_rule=rule, metrics=measured(rate, accuracies.get((gpus, rule), 0.9) + s / 1000))
        for (gpus, rule), rate in rates.items()
        for s in range(3)
    ]
    found = decided(records)
    best = {count.gpus: count.best.cell_id for count in found.gpu_counts if count.best}
    assert best == {1: "1-32-sqrt", 2: "2-32-sqrt"} and found.cell_id == best[2]
    dearest = decided(records, objective="cost").gpu_counts
    assert [count.gpus for count in dearest] == [1, 2]
    assert decided([record for record in records if record.gpus == 2]).gpu_counts == ()


SHORT = {"window_s": 0.6, "window_steps": 600}
LONG = {"window_s": 2.5, "window_steps": 600}


def test_nothing_is_recommended_while_a_cell_seems_better_whose_timing_is_not_valid(record_of: RecordOf) -> None:
    """A fast cell's window is the first to be too short: whoever reads the first words would take the slower one."""
    fast = [record_of(1, s, metrics=measured(400, 0.9) | SHORT) for s in range(3)]
    slow = [record_of(2, s, metrics=measured(100, 0.9) | LONG) for s in range(3)]
    found = decided([*fast, *slow])
    assert (found.cell_id, found.name, found.provisional, found.more_seeds) == (None, "", True, ())
    first, second = (f"gpus={gpus}, device_batch_size=32, lr_rule=none" for gpus in (1, 2))
    assert found.lead == (
        f"No recommendation yet: {first} seems the best, with time for the fixed budget 15.0 s against 60.0 s of"
        f" {second}, but its timing is not valid (timed window below 2 s or 50 steps). To know, give the trials a"
        " longer budget (budget.epochs), or trainable.window_s where there is that key."
    )
    assert found.further == ("Not considered: 1 cell has no valid timing.",)
    assert "(chosen)" not in recommendation_markdown(found, "demo")
    assert [(each.gpus, each.why_none) for each in found.gpu_counts] == [
        (1, "no cell has a valid time for the fixed budget"),
        (2, ""),
    ]
    assert {each.cell_id: each.why_not for each in found.shortlist}["2-32-none"] == (
        f"{first} seems better, and its timing is not valid"
    )


@pytest.mark.parametrize(
    ("rate", "val_accuracy", "chosen"),
    [(101.0, 0.9, "2-32-none"), (103.0, 0.9, None), (400.0, 0.88, "2-32-none"), (400.0, 0.892, None)],
)
def test_a_spoiled_cell_seems_better_beyond_a_tie_and_within_the_margin(
    record_of: RecordOf, rate: float, val_accuracy: float, chosen: str | None
) -> None:
    slow = [record_of(1, s, metrics=measured(50, 0.9 + s / 1000) | LONG) for s in range(3)]
    slow += [record_of(2, s, metrics=measured(100, 0.9 + s / 1000) | LONG) for s in range(3)]
    spoiled = [record_of(4, s, metrics=measured(rate, val_accuracy + s / 1000) | SHORT) for s in range(3)]
    found = decided([*slow, *spoiled])
    assert found.cell_id == chosen and found.lead.startswith(
        "Use gpus=2" if chosen else "No recommendation yet: gpus=4"
    )


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"metrics": {"foreign_cpu": 0.2}}, "run it again (rerun=all), or with further seeds, while nothing else uses"),
        ({"timing": "shared"}, "let each trial have its devices to itself (resources.timing=auto)."),
    ],
)
def test_the_remedy_is_one_against_what_spoiled_the_timing(
    record_of: RecordOf, fields: dict[str, Any], remedy: str
) -> None:
    valid = [record_of(1, s, metrics=measured(100, 0.9)) for s in range(3)]
    given = {**fields, "metrics": measured(200, 0.9) | fields.get("metrics", {})}
    found = decided([*valid, *(record_of(g, s, **given) for g in (2, 4, 8, 16) for s in range(3))])
    assert found.cell_id is None and f"To know, {remedy}" in found.lead
    named = "; ".join(f"gpus={gpus}, device_batch_size=32, lr_rule=none (30.0 s)" for gpus in (4, 8))
    assert found.further[0] == f"Others seem better without a valid timing, too: {named}; 1 more."


def test_of_cells_on_several_device_models_one_is_to_be_chosen(record_of: RecordOf) -> None:
    valid = [record_of(1, s, metrics=measured(100, 0.9), provenance={"device_model": "A"}) for s in range(3)]
    mixed = [record_of(2, s, metrics=measured(200, 0.9), provenance={"device_model": "AAB"[s]}) for s in range(3)]
    assert "To know, choose one device model (cluster.gpu_type)." in decided([*valid, *mixed]).lead


def test_a_wider_margin_lets_the_fast_cell_in(records: list[TrialRecord]) -> None:
    assert decided(records, margin=0.051).cell_id == "4-32-none"


def test_test_accuracy_chooses_nothing(records: list[TrialRecord], record_of: RecordOf) -> None:
    def with_test_accuracy(record: TrialRecord) -> TrialRecord:
        worst_where_chosen = 0.1 if record.gpus == 2 else 0.99
        return record_of(record.gpus, record.seed, metrics={**record.metrics, "accuracy": worst_where_chosen})

    ok = [record for record in records if record.status is Status.OK]
    assert decided([with_test_accuracy(record) for record in ok]).cell_id == "2-32-none"


def test_time_to_target_counts_what_was_spent_in_vain(record_of: RecordOf) -> None:
    def trial(gpus: int, seed: int, reached_s: float | None) -> TrialRecord:
        reached = {} if reached_s is None else {"time_to_target_s": reached_s}
        return record_of(gpus, seed, metrics=measured(100 * gpus, 0.9, train_s=30, **reached))

    # Two GPUs reach it in 5 s twice, and miss it once in 30 s: (5 + 5 + 30) / 2 = 20 s each, against 15 s.
    records = [trial(1, s, 15) for s in range(3)] + [trial(2, s, t) for s, t in enumerate([5, 5, None])]
    found = decided(records, target=0.95)
    assert found.cell_id == "1-32-none"
    assert found.measure == "time to the target (validation accuracy 0.95)"
    assert {p.cell_id: p.time_s for p in found.front} == pytest.approx({"1-32-none": 15})


def test_a_target_that_nobody_reached_falls_back_and_says_so(records: list[TrialRecord]) -> None:
    found = decided(records, target=0.99)
    assert found.measure == "time for the fixed budget"
    assert found.provisional and "Provisional: no trial reached the target accuracy." in found.sentence
    assert "no trial reached" not in decided(records).sentence
    assert "Not the time to a target accuracy: no trial reached the target." in found.reasons


def test_without_a_price_the_cost_is_what_gpus_are_held_and_the_time_beside_it(record_of: RecordOf) -> None:
    records = [record_of(g, s, metrics=measured(100 * g**0.5, 0.9)) for g in (1, 2) for s in range(3)]
    told = decided(records, objective="cost").sentence
    assert "cost for the fixed budget 60.0 GPU-seconds, the baseline itself, in 60.0 s" in told


def test_whole_gpus_beside_fractions_of_one_are_told_as_a_config_has_them(record_of: RecordOf) -> None:
    found = decided([record_of(g, s, metrics=measured(100 * g, 0.9)) for g in (0.5, 1) for s in range(3)])
    assert found.sentence.startswith("Use gpus=1, ") and "gpus=1.0" not in recommendation_markdown(found, "demo")


def test_cells_that_could_not_be_chosen_are_told_where_none_is(record_of: RecordOf) -> None:
    good = [record_of(1, s, metrics=measured(100, 0.9), provenance={"device_model": f"GPU {s}"}) for s in range(3)]
    bad = [record_of(2, s, metrics=measured(200, 0.5), provenance={"device_model": "GPU 0"}) for s in range(3)]
    assert decided([*good, *bad]).sentence == (
        "No recommendation: the validation accuracy of every cell that could be chosen is likely to be more than 0.01"
        " below that of the baseline (gpus=1, device_batch_size=32, lr_rule=none, device=GPU 0 + GPU 1 + GPU 2)."
        " Not considered: 1 cell has no valid timing."
    )


def test_energy_that_was_not_measured_recommends_nothing(records: list[TrialRecord]) -> None:
    found = decided(records, objective="energy")
    assert (found.cell_id, found.provisional, math.isnan(found.p_best)) == (None, True, True)
    assert found.sentence.startswith("No recommendation by energy for the fixed budget: ")
    assert "3 cells have no energy for the fixed budget" in found.sentence


def test_figures_that_code_of_ones_own_has_yet_to_report_are_named(record_of: RecordOf) -> None:
    found = decided([record_of(1, seed, metrics={"samples_per_s": 100.0}) for seed in range(3)])
    assert found.cell_id is None and found.sentence.endswith(
        "1 cell has no time for the fixed budget (trials have one that report samples_per_s and samples, or train_s)."
    )
    failed = decided([record_of(1, 0, Status.FAILED, note="broken")])
    assert "samples_per_s" not in failed.sentence


def test_energy_is_minimised_where_it_is_measured(record_of: RecordOf) -> None:
    joules = {1: 2.0, 2: 3.0}
    records = [
        record_of(g, s, metrics=measured(100 * g, 0.9, energy_j_per_sample=joules[g])) for g in (1, 2) for s in range(3)
    ]
    found = decided(records, objective="energy")
    assert found.cell_id == "1-32-none"
    assert "energy for the fixed budget 12.0 kJ, the baseline itself" in found.sentence


def test_one_seed_is_provisional_and_asks_for_three(record_of: RecordOf) -> None:
    found = decided([record_of(g, 0, metrics=measured(100 * g, 0.9)) for g in (1, 2)])
    assert found.provisional and math.isnan(found.p_best)
    assert found.sentence.endswith("Provisional: one seed tells nothing about chance.")
    assert [(more.cell_id, more.seeds) for more in found.more_seeds] == [("2-32-none", 2), ("1-32-none", 2)]
    assert found.commands == (
        "python -m orchestrator sweep=demo 'sweep.axes.gpus=[2,1]' 'sweep.axes.device_batch_size=[32]'"
        " 'sweep.axes.lr_rule=[none]' 'sweep.axes.seed=[0,1,2]'",
    )


def test_invalid_timings_stand_back_behind_valid_ones(record_of: RecordOf) -> None:
    records = [record_of(1, s, metrics=measured(100, 0.9)) for s in range(3)]
    shared = [record_of(2, s, timing="shared", metrics=measured(101, 0.9)) for s in range(3)]
    assert decided(records + shared).cell_id == "1-32-none"
    alone = decided(shared)
    assert alone.cell_id == "2-32-none" and "no timing is valid" in alone.sentence


def test_accuracies_are_compared_with_a_baseline_of_no_valid_timing(record_of: RecordOf) -> None:
    shared = [record_of(1, s, timing="shared", metrics=measured(100, 0.9 + s / 1000)) for s in range(3)]
    good = [record_of(2, s, metrics=measured(200, 0.9 + s / 1000)) for s in range(3)]
    bad = [record_of(4, s, metrics=measured(400, 0.2 + s / 1000)) for s in range(3)]
    found = decided(shared + good + bad)
    assert (found.cell_id, found.baseline_cell_id) == ("2-32-none", "1-32-none")
    assert found.sentence == (
        "Use gpus=2, device_batch_size=32, lr_rule=none: time for the fixed budget 30.0 s, for 60.0 GPU-seconds;"
        " validation accuracy the same as that of the baseline (gpus=1, device_batch_size=32, lr_rule=none) (0.01 lower"
        " is allowed)."
    )
    assert found.reasons[0].startswith("Of 2 cells") and "1 cell has no valid timing" in found.reasons[-1]
    assert {point.cell_id for point in found.front} == {"2-32-none", "4-32-none"}


def test_without_a_reference_the_most_accurate_cell_is_the_baseline(record_of: RecordOf) -> None:
    good = [record_of(2, s, batch=64, metrics=measured(200, 0.9 + s / 1000)) for s in range(3)]
    bad = [record_of(4, s, batch=64, metrics=measured(400, 0.2 + s / 1000)) for s in range(3)]
    found = decided(good + bad)
    assert found.cell_id == found.baseline_cell_id == "2-64-none"
    assert "No cell is known to be at the reference batch: the baseline is the most accurate one." in found.reasons


def test_without_accuracies_the_fastest_is_provisional(record_of: RecordOf) -> None:
    metrics = {"samples_per_s": 100.0, "samples": 6000}
    faster = {**metrics, "samples_per_s": 150.0}
    records = [record_of(g, s, metrics=each) for g, each in ((1, metrics), (2, faster)) for s in range(3)]
    found = decided(records)
    assert (found.cell_id, found.provisional) == ("2-32-none", True)
    assert found.sentence == (
        "Least time for the fixed budget: gpus=2, device_batch_size=32, lr_rule=none, 40.0 s, for 80.0 GPU-seconds, at"
        " 1.50× its baseline's throughput. Whether it trains as well as the others is not known: no trial reported a"
        " validation accuracy."
    )
    told = recommendation_markdown(found, "demo")
    assert "in time and cost at once" in told
    assert "Probability that it has the least time for the fixed budget or is within 2% of it: over 99%." in told
    assert "best cell or within" not in told  # nobody knows which cell is best


def test_the_fastest_is_not_taken_for_the_most_accurate_where_only_a_test_set_tells(
    record_of: RecordOf,
) -> None:
    records = [
        record_of(g, metrics={"samples_per_s": 100.0 * g, "samples": 6000, "accuracy": 0.9 - g / 10}) for g in (1, 2)
    ]
    told = decided(records).sentence
    assert "On the test set its accuracy is 0.700; the highest is 0.800 (gpus=1, device_batch_size=32, " in told


def test_of_one_cell_no_chance_of_being_the_best_is_told(records: list[TrialRecord]) -> None:
    found = decided(records[:3])
    assert found.sentence.endswith("Provisional: no other cell has a figure to compare it with.") and found.provisional
    assert math.isnan(found.p_best) and math.isnan(found.behind) and found.more_seeds == ()
    assert "robability" not in recommendation_markdown(found, "demo")


def test_cells_of_different_work_get_no_recommendation(records: list[TrialRecord]) -> None:
    claims = [Claim.of({"sentence": each, "expression": each}) for each in ("gpus(gpus=2) > 1.5", "accuracy() > 2")]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    found = decide(*frames, Terms(objective="none", axes=AXES), verdicts(claims, *frames))
    assert (found.cell_id, found.provisional, found.more_seeds, found.front) == (None, False, (), ())
    assert found.sentence == (
        "Claims: 1 confirmed, 1 inconclusive. The largest speed-up is 3.00× [3.00, 3.00], 75% of the ideal, with"
        " gpus=4. Nothing is recommended, as asked: report.objective=none."
    )
    assert recommendation_markdown(found, "demo").startswith("# In short: demo\n\n**Claims: 1 confirmed")


def test_a_sweep_that_no_more_gpus_speed_up_says_so(record_of: RecordOf) -> None:
    frames = collect([record_of(g, metrics=measured(100 / g, 0.9)) for g in (1, 2)], scaling="weak")
    told = decide(*frames, Terms(objective="none", axes=AXES)).sentence
    assert told.startswith("No cell gains by more GPUs: the best is 0.50×, 25% of the ideal, with gpus=2, ")


def test_the_largest_speed_up_is_one_whose_timing_is_valid(record_of: RecordOf) -> None:
    def told(*timings: str) -> str:
        records = [
            record_of(g, metrics=measured(90 * g, 0.9), timing=each) for g, each in zip((1, 2, 4), timings, strict=True)
        ]
        return decide(*collect(records, scaling="weak"), Terms(objective="none", axes=AXES)).sentence

    assert "The largest speed-up is 2.00×, 100% of the ideal, with gpus=2, " in told("device", "device", "shared")
    assert "with gpus=4 (its timing is not valid)." in told("device", "shared", "shared")


def test_cells_that_tie_are_chosen_by_accuracy_and_say_so(record_of: RecordOf) -> None:
    records = [record_of(g, s, metrics=measured(100, 0.9 + g / 1000)) for g in (1, 2) for s in range(3)]
    found = decided(records)
    assert found.cell_id == "2-32-none"
    assert found.reasons[0] == (
        "The cells whose accuracy is more likely than not within the margin are within 2% of each other in time for the"
        " fixed budget: it is the most accurate of them."
    )


def test_the_baseline_is_the_plainest_at_the_reference_batch(record_of: RecordOf) -> None:
    records = [
        record_of(1, 0, lr_rule=rule, lr_multiplier=times, axes={"lr_multiplier": times}, metrics=measured(100, 0.9))
        for rule in ("sqrt", "none")
        for times in (0.5, 1.0, 2.0)
    ]
    assert decided(records).baseline_cell_id == "1-32-none-1.0"


def test_no_trial_with_a_figure(record_of: RecordOf) -> None:
    found = decided([record_of(1, 0, Status.FAILED, note="boom")])
    assert found.cell_id is None
    assert found.sentence == "No recommendation: 1 cell is not ok. 1 of 1 trials ended as failed: boom."


def test_what_no_practical_number_of_seeds_tells_apart_asks_for_none(record_of: RecordOf) -> None:
    speeds = {1: [100, 130, 70], 2: [125, 105, 71]}
    records = [record_of(g, s, metrics=measured(speeds[g][s], 0.9)) for g in (1, 2) for s in range(3)]
    records += [record_of(4, s, metrics=measured(speed, 0.9)) for s, speed in enumerate([20, 30, 10])]
    found = decided(records)
    assert found.cell_id == "2-32-none" and found.provisional
    assert found.more_seeds == found.commands == ()
    told = "Up to 30 seeds would not tell it from gpus=1, device_batch_size=32, lr_rule=none: take either."
    assert told in found.would_change


def test_of_cells_that_are_as_fast_the_most_accurate_is_chosen(record_of: RecordOf) -> None:
    """Four GPUs take 1% less than two, and are less accurate: within the margin, but for nothing."""
    speeds, accuracies = {1: 50, 2: 100, 4: 101}, {1: 0.905, 2: 0.906, 4: 0.9}
    records = [record_of(g, s, metrics=measured(speeds[g], accuracies[g] + s / 1000)) for g in speeds for s in range(3)]
    found = decided(records)
    assert found.cell_id == "2-32-none"
    assert found.reasons[0] == (
        "Of 3 cells 2 are within 2% of the least time for the fixed budget, of those whose accuracy is more likely than"
        " not within the margin: it is the most accurate of them."
    )


def test_an_axis_ends_where_the_sweep_does_and_not_where_its_ok_cells_do(record_of: RecordOf) -> None:
    fine = [record_of(g, s, metrics=measured(100 * g, 0.9)) for g in (1, 2) for s in range(3)]
    edge = "Its GPU count, 2, is the sweep's largest: a wider axis may hold a better cell."
    assert edge in decided(fine).would_change
    failed = [record_of(4, s, Status.OOM) for s in range(3)]
    assert not [line for line in decided([*fine, *failed]).would_change if "wider axis" in line]


def test_a_sweep_of_one_gpu_count_says_that_it_knows_nothing_of_others(record_of: RecordOf) -> None:
    one = [record_of(1, s, device_batch_size=batch, metrics=measured(batch, 0.9)) for batch in (32, 64) for s in (0, 1)]
    told = "Only gpus=1 was tried: what more of them would be worth is not known (sweep.axes.gpus)."
    assert told in decided(one).would_change
    assert told not in decided([*one, record_of(2, 0, Status.OOM)]).would_change


def test_a_faster_cell_whose_accuracy_is_near_the_margin_is_asked_for_seeds_until_that_is_known(
    record_of: RecordOf,
) -> None:
    """Four GPUs are twice as fast as two, surely; whether they lose more than .01 is what nobody knows."""
    drops = {1: [0, 0.002, -0.002], 2: [0.001, -0.001, 0], 4: [-0.009, -0.019, -0.008]}
    records = [
        record_of(g, s, metrics=measured(100 * g, 0.9 + drop))
        for g, given in drops.items()
        for s, drop in enumerate(given)
    ]
    found = decided(records)
    assert found.cell_id == "2-32-none" and found.provisional and found.p_best < 0.9
    assert [more.cell_id for more in found.more_seeds if more.seeds > 0] == ["2-32-none", "1-32-none", "4-32-none"]


def test_what_is_too_near_the_margin_is_said(record_of: RecordOf) -> None:
    drops = {1: [0, 0.004, -0.004], 2: [0.001, -0.001, 0], 4: [-0.0101, -0.0201, -0.0001]}
    records = [
        record_of(g, s, metrics=measured(100 * g, 0.9 + drop))
        for g, given in drops.items()
        for s, drop in enumerate(given)
    ]
    told = "Up to 30 seeds would not tell whether the accuracy of gpus=4, device_batch_size=32, lr_rule=none keeps the"
    assert f"{told} margin of 0.01: it is too near it." in decided(records).would_change


def test_seeds_that_change_nothing_make_it_provisional(record_of: RecordOf) -> None:
    told = "all seeds of each cell came to the same accuracy, as if the seed changed nothing"
    alike = [record_of(g, s, metrics=measured(100 * g + s, 0.9)) for g in (1, 2) for s in range(3)]
    found = decided(alike)
    assert found.provisional and found.sentence.endswith(f"Provisional: {told}.")
    assert told not in decided([*alike, record_of(2, 3, metrics=measured(203, 0.901))]).sentence


def test_what_was_skipped_is_not_told_as_if_it_had_failed(record_of: RecordOf) -> None:
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000)) for g in (1, 2) for s in range(3)]
    records += [record_of(4, 0, Status.SKIPPED, note="a rule"), record_of(8, 0, Status.OOM, note="memory")]
    assert "Not considered: 1 cell is not ok; 1 cell was skipped." in decided(records).reasons


def test_of_cells_that_are_as_fast_those_come_first_that_surely_are(record_of: RecordOf) -> None:
    """Four GPUs are 1.5% slower than two for sure, and .0001 more accurate: no reason to be less sure."""
    accuracies, speeds = {1: 0.9, 2: 0.9, 4: 0.9001}, {1: 50.0, 2: 101.5, 4: 100.0}
    sway, other = (0, 0.012, -0.012), (0.01, -0.01, 0)
    records = [
        record_of(g, s, metrics=measured(speeds[g] * (1 + (sway[s] if g == 4 else other[s])), accuracies[g] + s / 1000))
        for g in speeds
        for s in range(3)
    ]
    found = decided(records)
    assert found.cell_id == "2-32-none"
    assert found.reasons[0].endswith("it is the most accurate of those that are as good as any with 90% probability.")


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (0.0, "With 95% probability its time is no more than that of the best cell."),
        (0.031, "With 95% probability its time is at most 4% above that of the best cell."),
        (41_548.3, "How far its time may be above that of the best cell is not known: the seeds are too few to tell."),
    ],
)
def test_how_far_the_choice_may_be_behind_is_told_where_it_is_bounded(behind: float, told: str) -> None:
    found = Recommendation(
        objective="time", measure="time", margin=0.01, cell_id="a", lead="", provisional=True, behind=behind
    )
    assert at_most_behind(found) == told


def test_no_cell_is_called_more_accurate_where_none_tells_its_accuracy(record_of: RecordOf) -> None:
    records = [
        record_of(gpus, seed, metrics={"samples_per_s": pace * 1.001**seed, "samples": 6000})
        for gpus, pace in ((1, 100), (2, 101))
        for seed in range(3)
    ]
    chosen, other = decided(records).shortlist
    assert chosen.name.startswith("gpus=2,")
    assert other.why_not == f"its time for the fixed budget is within 2% of that of {chosen.name}, which has no more"


@pytest.mark.parametrize(
    ("speeds", "accuracies", "told"),
    [
        (
            {1: 50, 2: 100, 4: 101},
            {1: 0.9, 2: 0.905, 4: 0.902},
            "64% (86% for gpus=4, device_batch_size=32, lr_rule=none, which came out less accurate, and no more than 2%"
            " ahead).",
        ),
        ({1: 50, 2: 101, 4: 100}, {1: 0.9, 2: 0.905, 4: 0.902}, "87%."),
        (
            {1: 50, 2: 100, 4: 103},
            {1: 0.9, 2: 0.9, 4: 0.8905},
            "58% (61% for gpus=2, device_batch_size=32, lr_rule=none, which came out 3.0% behind); the probability that"
            " its accuracy is within the margin is 60%.",
        ),
        (
            {1: 50, 2: 100, 4: 400},
            {1: 0.9, 2: 0.8905, 4: 0.8895},
            "36% (40% for gpus=4, device_batch_size=32, lr_rule=none, which is more likely than not to miss the"
            " margin); the probability that its accuracy is within the margin is 60%.",
        ),
    ],
)
def test_a_rival_that_is_likelier_to_be_the_best_is_told_with_why_it_is_not_the_one(
    record_of: RecordOf, speeds: dict[int, float], accuracies: dict[int, float], told: str
) -> None:
    sway = {1: (0, 0.03, -0.03), 2: (0.03, -0.03, 0), 4: (-0.03, 0, 0.03)}
    noise = {1: (0, 0, 0), 2: (0.003, -0.003, 0), 4: (-0.003, 0, 0.003)}
    records = [
        record_of(g, s, metrics=measured(speeds[g] * (1 + sway[g][s]), accuracies[g] + noise[g][s] + s / 1000))
        for g in speeds
        for s in range(3)
    ]
    found = decided(records)
    doubt = f"Provisional: the probability that it is the best, or within 2% of it, is {told}"
    assert found.sentence.partition(" is allowed). ")[2] == doubt
