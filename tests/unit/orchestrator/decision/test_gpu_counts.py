"""What is told of each number of GPUs."""

from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import RecordOf, decided, measured


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


def test_a_sweep_of_one_gpu_count_says_that_it_knows_nothing_of_others(record_of: RecordOf) -> None:
    one = [record_of(1, s, device_batch_size=batch, metrics=measured(batch, 0.9)) for batch in (32, 64) for s in (0, 1)]
    told = "Only gpus=1 was tried: what more of them would be worth is not known (sweep.axes.gpus)."
    assert told in decided(one).would_change
    assert told not in decided([*one, record_of(2, 0, Status.OOM)]).would_change
