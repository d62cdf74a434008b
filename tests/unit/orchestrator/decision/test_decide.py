"""The recommendation of small sweeps whose figures are worked out by hand.

What is told of each number of GPUs, and of the cells that nothing beats.
"""

import json
import math
import shlex

import pytest

from orchestrator.cli.app import main
from orchestrator.decision.decide import command, narrowed_to, pareto_front, with_more
from orchestrator.decision.recommendation import TradeOff
from orchestrator.store.record import TrialRecord
from orchestrator.tables.recommendation import gpu_count_table, recommendation_markdown
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import RecordOf, decided, measured

GOLDEN = """\
# Recommendation: demo

**Use 2 GPUs with a batch of 32 each (64 in all) and the learning rate unchanged: training for the fixed budget takes \
30.0 s (baseline: 60.0 s), costs 60.0 GPU-seconds (baseline: 60.0), and validation accuracy is the same as the \
baseline's (up to 0.01 lower is allowed).** The baseline is 1 GPU with a batch of 32 and the learning rate unchanged.

The probability that the chosen cell is the best or within 2% of the best is over 99%. The probability that its \
validation accuracy is within the margin is over 99%.

With 95% probability its time for the fixed budget is no more than that of the best cell within the margin.

The best cell for each number of GPUs, among those whose accuracy is within the margin (means over seeds):

| cell                                                                                | time [s]   | times as fast   \
| validation accuracy   | cost [GPU-seconds]   |
|:------------------------------------------------------------------------------------|:-----------|:----------------|\
:----------------------|:---------------------|
| 1 GPU with a batch of 32 and the learning rate unchanged                            | 60.0       | 1.00×           \
| 0.910                 | 60.0                 |
| 2 GPUs with a batch of 32 each (64 in all) and the learning rate unchanged (chosen) | 30.0       | 2.00×           \
| 0.910                 | 60.0                 |
| 4 GPUs: no cell is within the margin                                                |            |                 \
|                       |                      |

Why:

- Of 3 cells, it has the least time for the fixed budget, among those whose accuracy is more likely than not within \
the margin.
- The time to a target accuracy is not compared, because the sweep has no trainable.target_accuracy.
- 1 cell is shown to lose more than 0.01 in validation accuracy.
- Not considered: 1 cell is not ok.

What would change it:

- report.margin=0.05 would allow 4 GPUs with a batch of 32 each (128 in all) and the learning rate unchanged: 20.0 s, \
validation accuracy 0.0500 lower than the baseline's (within 0.01 with probability below 1%).

Cells that no other one beats in time, validation accuracy and cost at once (means over seeds):

| cell                                                                                | time [s]   | validation \
accuracy   | cost [GPU-seconds]   |
|:------------------------------------------------------------------------------------|:-----------|:-----------------\
-----|:---------------------|
| 4 GPUs with a batch of 32 each (128 in all) and the learning rate unchanged         | 20.0       | 0.860            \
     | 80.0                 |
| 2 GPUs with a batch of 32 each (64 in all) and the learning rate unchanged (chosen) | 30.0       | 0.910            \
     | 60.0                 |
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
    assert "training for the fixed budget costs 0.0500" in by_time and ("60.0 s" in by_time or "30.0 s" in by_time)
    assert {(p.cell_id, round(p.cost, 6)) for p in found.front} == {
        ("4-32-none", round(4 * 20 / 3600 * 3, 6)),
        ("2-32-none", 0.05),
    }


def test_a_cost_in_ones_own_currency_is_told_as_a_cost(records: list[TrialRecord]) -> None:
    both = decided(records, price_per_gpu_hour=3.0).lead
    assert (
        "takes 30.0 s (baseline: 60.0 s), costs 0.0500 (baseline: 0.0500), and validation accuracy is the same" in both
    )
    alone = decided([each for each in records if each.gpus == 1], price_per_gpu_hour=3.0).lead
    assert alone.endswith("which is the baseline: training for the fixed budget takes 60.0 s and costs 0.0500.")
    dearest = decided(records, objective="cost", price_per_gpu_hour=3.0)
    assert "your price" not in dearest.sentence and "cost [at your price]" in recommendation_markdown(dearest, "demo")


def test_of_cells_on_several_device_models_one_is_to_be_chosen(record_of: RecordOf) -> None:
    valid = [record_of(1, s, metrics=measured(100, 0.9), provenance={"device_model": "A"}) for s in range(3)]
    mixed = [record_of(2, s, metrics=measured(200, 0.9), provenance={"device_model": "AAB"[s]}) for s in range(3)]
    assert "To find out, choose one device model (cluster.gpu_type)." in decided([*valid, *mixed]).lead


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
    assert "The time to a target accuracy is not compared, because no trial reached the target." in found.reasons


def test_without_a_price_the_cost_is_what_gpus_are_held_and_the_time_beside_it(record_of: RecordOf) -> None:
    records = [record_of(g, s, metrics=measured(100 * g**0.5, 0.9)) for g in (1, 2) for s in range(3)]
    told = decided(records, objective="cost").sentence
    assert "the baseline: training for the fixed budget costs 60.0 GPU-seconds and takes 60.0 s." in told


def test_whole_gpus_beside_fractions_of_one_are_told_as_a_config_has_them(record_of: RecordOf) -> None:
    found = decided([record_of(g, s, metrics=measured(100 * g, 0.9)) for g in (0.5, 1) for s in range(3)])
    assert found.sentence.startswith("Use 1 GPU with ") and "1.0 GPU" not in recommendation_markdown(found, "demo")


def test_energy_that_was_not_measured_recommends_nothing(records: list[TrialRecord]) -> None:
    found = decided(records, objective="energy")
    assert (found.cell_id, found.provisional, math.isnan(found.p_best)) == (None, True, True)
    assert found.sentence.startswith("No recommendation by energy for the fixed budget: ")
    assert "3 cells have no energy for the fixed budget" in found.sentence


def test_figures_that_code_of_ones_own_has_yet_to_report_are_named(record_of: RecordOf) -> None:
    found = decided([record_of(1, seed, metrics={"samples_per_s": 100.0}) for seed in range(3)])
    assert found.cell_id is None and found.sentence.endswith(
        "1 cell has no time for the fixed budget (trials need to report samples_per_s and samples, or train_s)."
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
    assert (
        "the baseline: training for the fixed budget uses 12.0 kJ, takes 60.0 s, and costs 60.0 GPU-seconds."
        in found.sentence
    )


def test_without_a_reference_the_most_accurate_cell_is_the_baseline(record_of: RecordOf) -> None:
    good = [record_of(2, s, batch=64, metrics=measured(200, 0.9 + s / 1000)) for s in range(3)]
    bad = [record_of(4, s, batch=64, metrics=measured(400, 0.2 + s / 1000)) for s in range(3)]
    found = decided(good + bad)
    assert found.cell_id == found.baseline_cell_id == "2-64-none"
    assert "No cell is known to be at the reference batch, so the baseline is the most accurate one." in found.reasons


def test_cells_that_tie_are_chosen_by_accuracy_and_say_so(record_of: RecordOf) -> None:
    records = [record_of(g, s, metrics=measured(100, 0.9 + g / 1000)) for g in (1, 2) for s in range(3)]
    found = decided(records)
    assert found.cell_id == "2-32-none"
    assert found.reasons[0] == (
        "The cells whose accuracy is more likely than not within the margin are within 2% of each other in time for the"
        " fixed budget: this one is the most accurate of them."
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
    told = "Even 30 seeds would not distinguish it from 1 GPU with a batch of 32: use either."
    assert told in found.sensitivity


def test_of_cells_that_are_as_fast_the_most_accurate_is_chosen(record_of: RecordOf) -> None:
    """Four GPUs take 1% less than two, and are less accurate: within the margin, but for nothing."""
    speeds, accuracies = {1: 50, 2: 100, 4: 101}, {1: 0.905, 2: 0.906, 4: 0.9}
    records = [record_of(g, s, metrics=measured(speeds[g], accuracies[g] + s / 1000)) for g in speeds for s in range(3)]
    found = decided(records)
    assert found.cell_id == "2-32-none"
    assert found.reasons[0] == (
        "Of 3 cells, 2 are within 2% of the least time for the fixed budget, among those whose accuracy is more likely"
        " than not within the margin: this one is the most accurate of them."
    )


def test_a_step_that_hangs_on_one_process_s_launches_says_so(record_of: RecordOf) -> None:
    def changes(host_s: float, *processes: str) -> tuple[str, ...]:
        step = {"step_s": 0.01, "step_host_s": host_s}
        where = [{"device_model": "NVIDIA H200", "process": each} for each in processes]
        records = [
            record_of(gpus, seed, metrics=measured(100 * gpus, 0.9) | step, provenance=each)
            for gpus in (1, 2)
            for seed, each in enumerate(where)
        ]
        return decided(records).sensitivity

    luck = "Its GPUs spend 40% of a step waiting for their processes, mostly for kernel launches"
    assert any(line.startswith(luck) for line in changes(0.004, "7", "7", "7"))
    assert not any("launches" in line for line in changes(0.004, "7", "8", "9"))
    assert not any("launches" in line for line in changes(0.0009, "7", "7", "7"))


def test_an_axis_ends_where_the_sweep_does_and_not_where_its_ok_cells_do(record_of: RecordOf) -> None:
    fine = [record_of(g, s, metrics=measured(100 * g, 0.9)) for g in (1, 2) for s in range(3)]
    edge = "Its GPU count, 2, is the largest of the sweep: a larger one may be better."
    assert edge in decided(fine).sensitivity
    failed = [record_of(4, s, Status.OOM) for s in range(3)]
    assert not [line for line in decided([*fine, *failed]).sensitivity if "of the sweep" in line]


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
    assert found.reasons[0].endswith(
        "this one is the most accurate of those that are as good as any with 90% probability."
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_loss_of_just_the_margin_is_within_it(record_of: RecordOf, seeds: int) -> None:
    """1.0 - 0.99 is more than 0.01 in floating point, and scripts print accuracies with few digits."""
    accuracy = {1: 1.0, 2: 0.99}
    found = decided([record_of(g, s, metrics=measured(100 * g, accuracy[g])) for g in (1, 2) for s in range(seeds)])
    assert found.cell_id == "2-32-none" and not any("report.margin" in line for line in found.sensitivity)


def test_of_each_number_of_gpus_the_best_cell_within_the_margin_is_told(record_of: RecordOf) -> None:
    rates = {(1, "none"): 100, (1, "adascale"): 110, (2, "none"): 205, (2, "sqrt"): 202, (2, "linear"): 300}
    accuracies = {(2, "none"): 0.9, (2, "sqrt"): 0.905, (2, "linear"): 0.8}  # the first two tie: accuracy chooses
    records = [
        record_of(gpus, s, lr_rule=rule, metrics=measured(rate, accuracies.get((gpus, rule), 0.9) + s / 1000))
        for (gpus, rule), rate in rates.items()
        for s in range(3)
    ]
    found = decided(records)
    best = {count.gpus: count.best.cell_id for count in found.gpu_counts if count.best}
    assert best == {1: "1-32-adascale", 2: "2-32-sqrt"} and found.cell_id == best[2]
    dearest = decided(records, objective="cost").gpu_counts
    assert [count.gpus for count in dearest] == [1, 2]
    assert decided([record for record in records if record.gpus == 2]).gpu_counts == ()


def test_of_the_cells_that_tie_at_a_number_of_gpus_the_most_accurate_is_its_best(record_of: RecordOf) -> None:
    """One GPU is much slower than two: that `none` has 1% less time there is chance, that it has .004 less is not."""
    found = decided(
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
    assert [count.best and count.best.cell_id for count in found.gpu_counts] == ["1-32-lars", "2-32-none"]
    assert found.cell_id == "2-32-none"


def test_worker_processes_are_not_called_gpus(record_of: RecordOf) -> None:
    def title(device: str) -> str:
        records = [record_of(g, s, device=device, metrics=measured(100 * g, 0.9)) for g in (1, 2) for s in range(3)]
        table = gpu_count_table(decided(records))
        assert table is not None
        return table.title

    assert title("cpu").startswith("The best cell for each number of processes, among those")
    assert title("cuda").startswith("The best cell for each number of GPUs, among those")


def test_a_sweep_of_one_gpu_count_says_that_it_knows_nothing_of_others(record_of: RecordOf) -> None:
    one = [record_of(1, s, device_batch_size=batch, metrics=measured(batch, 0.9)) for batch in (32, 64) for s in (0, 1)]
    told = "Only gpus=1 was tried, so nothing is known about other numbers of GPUs (sweep.axes.gpus)."
    assert told in decided(one).sensitivity
    assert told not in decided([*one, record_of(2, 0, Status.OOM)]).sensitivity


def point(name, time_s, val_accuracy, cost=math.nan):
    return TradeOff(cell_id=name, name=name, time_s=time_s, val_accuracy=val_accuracy, cost=cost)


def names(*points):
    return [each.name for each in pareto_front(points)]


def test_what_nothing_beats_stays_by_time():
    assert names(point("slow", 3, 0.9), point("fast", 1, 0.8), point("beaten", 3, 0.85)) == ["fast", "slow"]


def test_equals_both_stay():
    assert names(point("a", 1, 0.9), point("b", 1, 0.9)) == ["a", "b"]


def test_cost_keeps_a_cell_on_the_front_and_a_missing_figure_decides_nothing():
    assert names(point("a", 1, 0.9, 5), point("b", 2, 0.9, 4)) == ["a", "b"]
    assert names(point("a", 1, math.nan), point("b", 2, 0.9)) == ["a"]


def test_the_smallest_free_seeds_come_next():
    assert with_more([0, 1, 2], 2) == [0, 1, 2, 3, 4]
    assert with_more([1, 7], 2) == [0, 1, 2, 7]


def test_the_command_repeats_what_was_asked_but_for_mode_and_axes():
    given = ["sweep=demo", "mode=report", "sweep.axes.gpus=[1,2]", '++sweep.axes={"a.b":[1]}', "budget.epochs=5"]
    told = command(given, narrowed_to([{"gpus": 2.0, "a.b": "x y", "model": "mlp"}], [0, 1]))
    assert shlex.split(told)[3:] == [
        "sweep=demo",
        "budget.epochs=5",
        "sweep.axes.gpus=[2]",
        'sweep.axes."a.b"=["x y"]',
        "sweep.axes.model=[mlp]",
        "sweep.axes.seed=[0,1]",
    ]


def test_of_a_section_that_only_a_program_can_give_it_is_the_programs_call():
    told = command(["sweep.name=mine", "trainable=<of the program>"], narrowed_to([{"gpus": 1, "a.b": "x y"}], [0, 1]))
    assert told == """run_sweep(…, 'sweep.axes.gpus=[1]', 'sweep.axes."a.b"=["x y"]', 'sweep.axes.seed=[0,1]')"""


def test_the_command_plans_the_same_cell_with_more_seeds(capsys):
    given = ["sweep=batch_scaling", "sweep.axes.gpus=[1]", "resources.device=cpu"]
    axes = {"gpus": 1, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.8}

    def planned(*arguments):
        assert main([*arguments, "mode=plan", "plan.format=json"]) == 0
        return json.loads(capsys.readouterr().out)["trials"]

    before = planned(*given, 'sweep.axes."optimizer.momentum"=[0.8,0.9]')
    after = planned(*shlex.split(command(given, narrowed_to([axes], list(range(7)))))[3:])
    known = {trial["trial_id"] for trial in before} & {trial["trial_id"] for trial in after}
    assert (len(after), len(known)) == (7, 3)


CELLS = [
    {"gpus": 1, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.8},
    {"gpus": 2, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.9},
    {"gpus": 1, "device_batch_size": 32, "lr_rule": "none", "optimizer.momentum": 0.8},
]


def test_one_command_has_several_cells_and_no_other_one(capsys):
    given = ["sweep=batch_scaling", "resources.device=cpu", "sweep.zip=[[gpus,lr_rule]]"]
    given += ["sweep.exclude=[{gpus: 1, device_batch_size: 512}]"]
    told = command(given, narrowed_to(CELLS, [0, 1, 2, 7], excludes=True))
    assert "'sweep.axes.gpus=[1,2,1]' 'sweep.axes.device_batch_size=[32]'" in told
    assert main([*shlex.split(told)[3:], "mode=plan", "plan.format=json"]) == 0
    planned = json.loads(capsys.readouterr().out)["trials"]
    points = {tuple(trial["axes"][axis] for axis in (*CELLS[0], "seed")) for trial in planned}
    assert points == {(*cell.values(), seed) for cell in CELLS for seed in (0, 1, 2, 7)} and len(planned) == 12


def test_cells_that_make_a_grid_need_no_zip():
    told = command(["sweep=demo", "sweep.zip=[[a,b]]"], narrowed_to(CELLS[::2], [0]))
    assert "'sweep.axes.lr_rule=[sqrt,none]'" in told and told.count("zip") == 1


def test_axes_that_advance_together_do_so_no_more_where_cells_are_narrowed_to_a_grid():
    told = command(["sweep=demo", "sweep.zip=[[gpus,lr_rule]]"], narrowed_to(CELLS[::2], [0], zips=True))
    assert told.endswith("sweep.zip=[]") or "'sweep.zip=[]'" in told
    assert told.count("zip") == 1


def test_what_was_set_to_null_for_the_user_is_not_told_to_type():
    asked = ["budget.epochs=4", "budget.samples=null", "budget.steps=null", "sweep.budget.wall_s=null"]
    assert "budget.epochs=4 sweep.budget.wall_s=null 'sweep.axes" in command(asked, narrowed_to([{"gpus": 1}], [0, 1]))


def test_values_that_are_lists_or_mappings_are_those_of_the_sweep(capsys):
    given = ["sweep=batch_scaling", "optimizer=adamw"]
    cell = {"gpus": 1, "device_batch_size": 32, "lr_rule": "none", "optimizer.betas": [0.9, 0.99]}
    cell["trainable.slow_down"] = {"rank": 0, "factor": 2.0}
    told = command(given, narrowed_to([cell], [0]))
    assert main([*shlex.split(told)[3:], "resources.device=cpu", "mode=plan", "plan.format=json"]) == 0
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    assert cell.items() <= trial["axes"].items()
