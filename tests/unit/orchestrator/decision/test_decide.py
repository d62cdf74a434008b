"""Decisions on small sweeps whose figures are worked out by hand, the Pareto front, and further seeds."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.decision.more_seeds import with_more
from orchestrator.decision.shortlist import on_front
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import SHORT, codes, decided, measured, swayed, target, values
from tests.unit.orchestrator.records import record_of


def test_equal_costs_are_decided_by_accuracy(records):
    decision = decided(records, objective="cost", price_per_gpu_hour=3.0)
    # One and two GPUs cost as much, 1/60 GPU-hour at 3 each: accuracy chooses, and it ties as well.
    assert decision.measure.startswith("cost ") and not decision.provisional
    assert decision.shortlist[0].figures["cost"].unit == "at your price"
    assert decision.cell_id in ("1-32-none", "2-32-none") and decision.common_baseline_id == "1-32-none"
    assert decision.p_best > 0.99 and decision.headline.values["objective"] == pytest.approx(0.05)
    time = decision.shortlist[0].figures["time"]
    assert time.unit == "s" and round(time.value) in (30, 60)
    costs = {cell.cell_id: round(cell.value("cost"), 6) for cell in decision.shortlist if cell.on_front}
    assert costs == {"4-32-none": round(4 * 20 / 3600 * 3, 6), "2-32-none": 0.05}
    assert decided(records, margin=0.051).cell_id == "4-32-none"


def test_test_accuracy_never_affects_the_choice(records):
    def with_test_accuracy(record):
        worst_where_chosen = 0.1 if record.gpus == 2 else 0.99
        return record_of(record.gpus, record.seed, metrics={**record.metrics, "accuracy": worst_where_chosen})

    ok = [record for record in records if record.status is Status.OK]
    assert decided([with_test_accuracy(record) for record in ok]).cell_id == "2-32-none"


def test_time_to_target_counts_seeds_that_missed_it():
    def trial(gpus, seed, reached_s):
        reached = {} if reached_s is None else {"time_to_target_s": reached_s}
        return record_of(gpus, seed, metrics=measured(100 * gpus, 0.9, train_s=30, **reached))

    # Two GPUs reach it in 5 s twice, and miss it once in 30 s: (5 + 5 + 30) / 2 = 20 s each, compared with 15 s.
    records = [trial(1, s, 15) for s in range(3)] + [trial(2, s, t) for s, t in enumerate([5, 5, None])]
    decision = decided(records, target=target(0.95))
    assert decision.cell_id == "1-32-none"
    assert decision.measure.startswith("time to the target ") and "0.95" in decision.measure
    times_s = {cell.cell_id: cell.value("time") for cell in decision.shortlist if cell.on_front}
    assert times_s == pytest.approx({"1-32-none": 15})


def test_energy_is_minimised_if_measured():
    joules = {1: 2.0, 2: 3.0}
    records = [
        record_of(g, s, metrics=measured(100 * g, 0.9, energy_j_per_sample=joules[g])) for g in (1, 2) for s in range(3)
    ]
    decision = decided(records, objective="energy")
    assert (decision.cell_id, decision.headline.values["objective"]) == ("1-32-none", pytest.approx(12_000))
    took = {name: decision.shortlist[0].figures[name].value for name in ("time", "cost")}
    assert took == {"time": pytest.approx(60), "cost": pytest.approx(60 / 3600)}
    assert "is_baseline" in codes(decision.details)


def test_without_a_reference_the_most_accurate_cell_is_the_baseline():
    good = [record_of(2, s, batch=64, metrics=measured(200, 0.9 + s / 1000)) for s in range(3)]
    bad = [record_of(4, s, batch=64, metrics=measured(400, 0.2 + s / 1000)) for s in range(3)]
    decision = decided(good + bad)
    assert decision.cell_id == decision.common_baseline_id == "2-64-none" and "no_reference" in codes(decision.reasons)


def test_the_baseline_is_the_plainest_at_the_reference_batch():
    records = [
        record_of(1, 0, lr_rule=rule, lr_multiplier=times, axes={"lr_multiplier": times}, metrics=measured(100, 0.9))
        for rule in ("sqrt", "none")
        for times in (0.5, 1.0, 2.0)
    ]
    assert decided(records).common_baseline_id == "1-32-none-1.0"


@pytest.mark.parametrize("seeds", [2, 5])
def test_a_cell_with_a_collapsed_seed_is_not_recommended(seeds):
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000)) for g in (1, 2, 4) for s in range(seeds)]
    assert decided(records).cell_id == "4-32-none"
    decision = decided([*records[:-1], record_of(4, seeds - 1, metrics=measured(400, 0.1))])
    assert decision.cell_id == "2-32-none" and codes(decision.caveats) == codes(decided(records).caveats)
    remark = values(decision.sensitivity, "collapsed_rival")
    assert (remark["hits"], remark["n"]) == (1, seeds) and remark["lo"] < 1 / seeds < remark["hi"]
    assert round(remark["drop"], 1) == 0.8


def test_a_baseline_with_a_collapsed_seed_counts_by_its_other_seeds():
    """Four GPUs lose .1, which the baseline's own mean with a seed at chance would allow."""
    lost = {1: 0.0, 2: 0.0, 4: 0.1}
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 - lost[g] + s / 1000)) for g in lost for s in range(3)]
    records[0] = record_of(1, 0, metrics=measured(100, 0.1))
    decision = decided(records)
    assert (decision.cell_id, decision.verdict) == ("2-32-none", "undecided")
    assert values(decision.caveats, "baseline_collapsed")["hits"] == 1


def poorly_trained(accuracies, noise=0.001):
    """Return three seeds of cells on one GPU, by batch; the reference batch is 32, and larger batches are faster."""
    sway = (0.0, noise, -noise)
    return [
        record_of(1, s, batch=batch, metrics=measured(100 + batch, accuracy + sway[(s + batch // 16) % 3]))
        for batch, accuracy in accuracies.items()
        for s in range(3)
    ]


def test_a_reference_far_below_another_cell_is_no_baseline():
    """At the margin of .01, batch 32 is 20 margins below batch 16: the faster batches 32 and 64 lose accuracy."""
    decision = decided(poorly_trained({16: 0.8, 32: 0.6, 64: 0.6}))
    assert (decision.cell_id, decision.common_baseline_id) == ("1-16-none", "1-16-none")
    assert decision.verdict == "clear" and decision.poor_reference_cell_id == "1-32-none"
    remark = values(decision.details, "poor_reference")
    assert (round(remark["difference"], 2), round(remark["margins"])) == (-0.2, 20)
    assert remark["of_chosen"] / remark["objective"] == pytest.approx(132 / 116)
    assert "1-32-none" in [setting.cell_id for setting in decision.shortlist]
    assert "no_reference" not in codes(decision.reasons)


def test_a_reference_that_is_not_shown_to_be_poor_stays_the_baseline():
    kept = [
        poorly_trained({16: 0.69, 32: 0.6, 64: 0.6}),  # nine margins
        poorly_trained({16: 0.8, 32: 0.6, 64: 0.6}, noise=0.2),  # by chance
    ]
    assert [decided(records).common_baseline_id for records in kept] == ["1-32-none"] * 2
    wider = decided(poorly_trained({16: 0.8, 32: 0.6, 64: 0.6}), margin=0.03)
    assert wider.common_baseline_id == "1-32-none" and wider.cell_id == "1-64-none"


def test_margins_that_would_make_the_poor_reference_the_baseline_are_not_proposed():
    decision = decided(poorly_trained({16: 0.8, 32: 0.6, 64: 0.785}))
    assert [remark.values["name"] for remark in decision.sensitivity if remark.code == "wider_margin"] == ["1×64 none"]
    assert "wider_margin" not in codes(decided(poorly_trained({16: 0.8, 32: 0.6, 64: 0.7})).sensitivity)


def test_verdicts():
    """Four GPUs are clearly the best; they tie with two at nearly the same speed; one seed decides nothing."""
    clear = decided(swayed({1: 100, 2: 200, 4: 400}, {1: 0.9, 2: 0.9, 4: 0.9}))
    assert (clear.verdict, clear.rivals, clear.cell_id) == ("clear", (), "4-32-none")
    tied = decided(swayed({1: 100, 2: 200, 4: 201}, {1: 0.9, 2: 0.9, 4: 0.9}))
    (rival,) = tied.rivals
    assert tied.verdict == "tied" and {rival.cell_id, tied.cell_id} == {"2-32-none", "4-32-none"}
    assert rival.tied and rival.eligible and (rival.n_timed, rival.n_ok) == (3, 3)
    assert rival.p_best + tied.p_best >= 1  # both are the best if they are within 2%
    few = decided([record_of(g, 0, metrics=measured(100 * g, 0.9)) for g in (1, 2)])
    assert few.verdict == "undecided" and decided([], objective="none").verdict == ""


def test_only_valid_timings_are_counted_as_timed():
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000)) for g in (1, 2) for s in range(3)]
    records[-1] = record_of(2, 2, metrics=measured(200, 0.902, **SHORT))
    two = next(setting for setting in decided(records).shortlist if setting.cell_id == "2-32-none")
    assert (two.n_timed, two.n_ok) == (2, 3)
    untimed = decided([record_of(1, s, metrics=measured(100, 0.9, **SHORT)) for s in range(3)])
    assert untimed.verdict == "undecided" and [setting.n_timed for setting in untimed.shortlist] == [0]


def test_three_seeds_do_not_show_that_cells_are_indistinguishable():
    speeds = {1: [100, 130, 70], 2: [125, 105, 71], 4: [20, 30, 10]}
    decision = decided([record_of(g, s, metrics=measured(speeds[g][s], 0.9)) for g in speeds for s in range(3)])
    assert decision.cell_id == "1-32-none" and decision.provisional
    assert decision.more_seeds and "indistinguishable" not in codes(decision.sensitivity)


@pytest.mark.parametrize(
    ("speeds", "accuracies", "chosen", "code", "by"),
    [
        ({1: 100, 2: 100}, {1: 0.9, 2: 0.93}, "2-32-none", "all_tie", "accuracy"),
        ({1: 100, 2: 100}, {1: 0.9, 2: 0.905}, "1-32-none", "all_tie", "hours"),
        ({1: 50, 2: 100, 4: 101}, {1: 0.905, 2: 0.906, 4: 0.9}, "2-32-none", "ties", "hours"),
    ],
)
def test_ties_go_to_the_cheapest_unless_the_metric_gains_more_than_the_margin(speeds, accuracies, chosen, code, by):
    records = [record_of(g, s, metrics=measured(speeds[g], accuracies[g] + s / 1000)) for g in speeds for s in range(3)]
    decision = decided(records)
    assert (decision.cell_id, decision.reasons[0].code) == (chosen, code)
    reason = decision.reasons[0].values
    assert (reason["tied"], reason["count"], reason["by"]) == (2, len(speeds), by)


def test_a_cell_without_a_chance_does_not_matter():
    fast = swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9})
    slow = [record_of(1, s, batch=64, metrics=measured(50 + s, 0.85 + s / 1000)) for s in range(3)]
    decision = decided([*fast, *slow])
    matters = {cell_id: decision.matters(cell_id) for cell_id in ("1-32-none", "2-32-none", "1-64-none", "unknown")}
    assert matters == {"1-32-none": True, "2-32-none": True, "1-64-none": False, "unknown": True}


@pytest.mark.parametrize("two", [99, 101])
def test_more_gpus_at_the_same_time_are_not_recommended(two):
    """The accuracies differ by chance."""
    noise = {1: (0, 0.004, -0.004), 2: (0.005, -0.002, 0.001), 4: (0.003, -0.004, 0.004)}
    records = [
        record_of(g, s, metrics=measured(rate * (1 + s / 1000), 0.9 + noise[g][s]))
        for g, rate in {1: 100, 2: two, 4: 100.5}.items()
        for s in range(3)
    ]
    decision = decided(records)
    assert decision.cell_id == "1-32-none" and {step.worth for step in decision.gpu_steps} == {"not worth it"}
    four = next(cell.why_not for cell in decision.shortlist if cell.cell_id == "4-32-none")
    assert four and four.code == "needs_more_hours" and four.values["ratio"] == pytest.approx(4, rel=0.01)


def test_a_certain_time_precedes_a_slightly_better_uncertain_metric():
    """`sqrt` is 1.5% slower than `none` for sure, and .0001 more accurate by chance: no reason to be less sure."""
    cells = {"none": (101.5, 0.9, (0.01, -0.01, 0)), "sqrt": (100.0, 0.9001, (0, 0.012, -0.012))}
    records = [
        record_of(2, s, lr_rule=rule, batch=64, metrics=measured(rate * (1 + sway[s]), accuracy + sway[s - 1] / 10))
        for rule, (rate, accuracy, sway) in cells.items()
        for s in range(3)
    ]
    decision = decided([*records, *(record_of(1, s, metrics=measured(50, 0.9)) for s in range(3))])
    assert decision.cell_id == "2-64-none" and decision.reasons[0].values["by"] == "certainty"


def test_a_fast_cell_near_the_margin_is_a_rival_and_gets_more_seeds():
    """Four GPUs are surely twice as fast as two; whether they lose more than .01 is unknown."""
    drops = {1: [0, 0.002, -0.002], 2: [0.001, -0.001, 0], 4: [-0.009, -0.019, -0.008]}
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + drops[g][s])) for g in drops for s in range(3)]
    decision = decided(records)
    assert decision.cell_id == "2-32-none" and decision.provisional and decision.p_best < 0.9
    assert [more.cell_id for more in decision.more_seeds if more.seeds > 0] == ["2-32-none", "1-32-none", "4-32-none"]
    rivals = [(rival.cell_id, rival.eligible, rival.tied) for rival in decision.rivals]
    assert (decision.verdict, rivals) == ("undecided", [("4-32-none", False, False)])
    assert "near_margin" not in codes(decision.sensitivity)  # which three seeds cannot show


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_loss_of_just_the_margin_is_within_it(seeds):
    """1.0 - 0.99 is more than 0.01 in floating point, and scripts print accuracies with few digits."""
    accuracy = {1: 1.0, 2: 0.99}
    decision = decided([record_of(g, s, metrics=measured(100 * g, accuracy[g])) for g in (1, 2) for s in range(seeds)])
    assert decision.cell_id == "2-32-none" and "wider_margin" not in codes(decision.sensitivity)


def test_each_gpu_count_has_its_best_cell():
    rates = {(1, "none"): 100, (1, "adascale"): 110, (2, "none"): 205, (2, "sqrt"): 202, (2, "linear"): 300}
    accuracies = {(2, "none"): 0.9, (2, "sqrt"): 0.905, (2, "linear"): 0.8}  # the first two tie: accuracy chooses
    records = [
        record_of(gpus, s, lr_rule=rule, metrics=measured(rate, accuracies.get((gpus, rule), 0.9) + s / 1000))
        for (gpus, rule), rate in rates.items()
        for s in range(3)
    ]
    decision = decided(records)
    best = {count.gpus: count.cell_id for count in decision.gpu_counts if count.cell_id}
    assert best == {1: "1-32-adascale", 2: "2-32-sqrt"} and decision.cell_id == best[2]
    dearest = decided(records, objective="cost").gpu_counts
    assert [count.gpus for count in dearest] == [1, 2]
    assert decided([record for record in records if record.gpus == 2]).gpu_counts == ()


def test_ties_at_a_gpu_count_are_decided_by_accuracy():
    """One GPU is much slower than two: that `none` has 1% less time there is chance, that it has .004 less is not."""
    decision = decided(
        [
            record_of(gpus, s, lr_rule=rule, metrics=measured(rate, accuracy + s / 1000))
            for gpus, rule, rate, accuracy in (
                (1, "none", 101, 0.9),
                (1, "lars", 100, 0.904),
                (1, "adascale", 98, 0.95),
                (2, "none", 200, 0.9),
            )
            for s in range(3)
        ]
    )
    assert [count.cell_id for count in decision.gpu_counts] == ["1-32-lars", "2-32-none"]
    assert decision.cell_id == "2-32-none"


def names_on_front(*figures):
    """Return the names on the front of cells given as (name, time, metric, cost)."""
    rows = [(*row, math.nan)[:4] for row in figures]
    names, times, scores, costs = zip(*rows, strict=True)
    totals = {
        "time": SimpleNamespace(means=lambda: np.array(times)),
        "cost": SimpleNamespace(means=lambda: np.array(costs)),
    }
    contenders: Any = SimpleNamespace(
        deciding_time="time",
        totals=totals,
        cells=pd.DataFrame({"score": scores}),
        choice=SimpleNamespace(log_objective=SimpleNamespace(point=np.log(times))),
    )
    return {name for name, is_on in zip(names, on_front(contenders), strict=True) if is_on}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([("slow", 3, 0.9), ("fast", 1, 0.8), ("beaten", 3, 0.85)], {"fast", "slow"}),
        ([("a", 1, 0.9), ("b", 1, 0.9)], {"a", "b"}),  # equal cells
        ([("a", 1, 0.9, 5), ("b", 2, 0.9, 4)], {"a", "b"}),
        ([("a", 1, math.nan), ("b", 2, 0.9)], {"a"}),  # missing figures are ignored
        ([("untimed", math.nan, 0.95, 1), ("b", 2, 0.9, 4)], {"b"}),
    ],
)
def test_no_cell_beats_one_on_the_front(figures, expected):
    assert names_on_front(*figures) == expected


def test_further_seeds_are_the_smallest_free_ones():
    assert with_more([0, 1, 2], 2) == [0, 1, 2, 3, 4]
    assert with_more([1, 7], 2) == [0, 1, 2, 7]


def test_a_straggler_of_the_chosen_cell_is_in_the_doubts():
    """Two GPUs take 30 s instead of 60 s; one seed is 10 times slower, and with it the mean would be 65 s."""
    records = swayed({1: 100, 2: 200}, {1: 0.9, 2: 0.9})
    sound = decided(records)
    assert (sound.cell_id, sound.verdict, sound.commands) == ("2-32-none", "clear", ())
    slow = next(record for record in records if (record.gpus, record.seed) == (2, 1))
    slow.metrics["samples_per_s"] /= 10
    decision = decided(records)
    assert (decision.cell_id, decision.provisional) == ("2-32-none", True) and decision.verdict != "clear"
    assert values(decision.caveats, "straggler") == {"of_baseline": False, "stragglers": 1, "timed": 2, "n": 3}
    assert len(decision.commands) == 1 and "mode=settle" in decision.commands[0]


def test_a_straggler_of_the_baseline_is_in_the_doubts():
    """Without it the speed-up is 2, with it over 4."""
    records = swayed({1: 100, 2: 200}, {1: 0.9, 2: 0.9})
    next(record for record in records if (record.gpus, record.seed) == (1, 1)).metrics["samples_per_s"] /= 10
    decision = decided(records)
    assert values(decision.caveats, "straggler") == {"of_baseline": True, "stragglers": 1, "timed": 2, "n": 3}
    assert (decision.cell_id, decision.verdict, len(decision.commands)) == ("2-32-none", "undecided", 1)


def test_cells_that_all_did_half_their_work_give_no_clear_choice():
    records = swayed({1: 100, 2: 200}, {1: 0.9, 2: 0.9})
    assert decided(records, budget={"epochs": 8}).verdict == "clear"
    halved = [replace(record, budget={"epochs": 8}, metrics=record.metrics | {"epochs": 4}) for record in records]
    decision = decided(halved, budget={"epochs": 8})
    assert values(decision.caveats, "short_work") == {"share": 0.5} and decision.verdict == "undecided"


def test_a_cell_with_one_valid_timing_is_not_clear():
    records = swayed({1: 100, 2: 200}, {1: 0.9, 2: 0.9})
    for record in records:
        if record.gpus == 2 and record.seed:
            record.metrics["foreign_cpu"] = 0.4
    decision = decided(records)
    assert decision.cell_id == "2-32-none" and decision.shortlist[0].n_timed == 1 and decision.verdict != "clear"
    assert values(decision.caveats, "timed_once") == {"n": 3} and decision.commands
