"""What is told of each number of GPUs, and of the cells that nothing beats."""

import math

from orchestrator.decision.recommendation import TradeOff
from orchestrator.decision.trade_offs import pareto_front
from orchestrator.tables.trade_offs import gpu_count_table
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import RecordOf, decided, measured


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
    assert told in decided(one).would_change
    assert told not in decided([*one, record_of(2, 0, Status.OOM)]).would_change


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
