"""How throughput scales, as a table: losses, forecasts of the next GPU counts, and critical batches."""

from dataclasses import replace

from orchestrator.tables.scaling import scaling
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def trial(gpus, seed, rule="none"):
    """By Amdahl's law with α = .1, and E = 1000 (1 + B/200) samples to the target."""
    speed = 100 * gpus / (1 + 0.1 * (gpus - 1)) * (1 + (seed - 1) / 1000)
    reached = 1000 * (1 + 32 * gpus / 200) / speed
    metrics = {"samples_per_s": speed, "time_to_target_s": reached, "noise_scale": 150.0}
    return record_of(gpus, seed, lr_rule=rule, metrics=metrics)


ALL = [trial(gpus, seed) for gpus in (1, 2, 4, 8) for seed in range(3)]


def test_losses_forecasts_and_critical_batch():
    records = [*ALL, *(trial(gpus, seed, "linear") for gpus in (1, 2) for seed in range(3))]
    document = scaling(*collect(records, scaling="weak", reference_batch_size=32))
    told, tables = document.text, document.tables
    [row] = tables[0].frame.to_dict("records")
    assert (row["GPUs"], row["extra GPU time"]) == ("1, 2, 4, 8", "10%, 18%, 31%")
    assert row["2× GPUs [samples/s]"].startswith("640 [") and row["4× GPUs [samples/s]"].startswith("780 [")
    assert "1 group of cells" in told and "3 GPU counts" in told
    by_rule = {row["cells"]: row for row in tables[1].frame.to_dict("records")}
    none, linear = by_rule["lr_rule=none, lr_multiplier=1.0"], by_rule["lr_rule=linear, lr_multiplier=1.0"]
    assert none["by samples to the target"].startswith("200 [") and none["by the noise of gradients"] == "150"
    assert linear["by samples to the target"] == ""


def test_invalid_timings_have_a_sentence():
    packed = [replace(record, timing="shared") if record.gpus == 8 else record for record in ALL]
    assert "1 cell has no valid" in scaling(*collect(packed, scaling="weak")).text
    assert "no valid" not in scaling(*collect(ALL, scaling="weak")).text


def test_one_gpu_count_has_no_forecast():
    document = scaling(*collect([record_of(1, 0, metrics={"samples_per_s": 5.0})], scaling="weak"))
    assert document.tables == [] and document.text.startswith("# Scaling\n\n1 group")


def test_losses_that_disagree_are_told():
    """From 2 to 4 GPUs half of the throughput is lost, and nothing before."""
    speeds = {1: 100.0, 2: 200.0, 4: 200.0}
    records = [record_of(n, seed, metrics={"samples_per_s": rate}) for n, rate in speeds.items() for seed in range(3)]
    [row] = scaling(*collect(records, scaling="weak")).tables[0].frame.to_dict("records")
    assert row["extra GPU time"] == "0%, 100%" and row["2× GPUs [samples/s]"].endswith("disagree")
