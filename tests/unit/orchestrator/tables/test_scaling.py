from collections.abc import Callable
from dataclasses import replace

from orchestrator.collection.collector import collect
from orchestrator.journal.record import TrialRecord
from orchestrator.tables.scaling import scaling

RecordOf = Callable[..., TrialRecord]


def trial(record_of: RecordOf, gpus: int, seed: int, rule: str = "none") -> TrialRecord:
    """By Amdahl's law with α = .1, and E = 1000 (1 + B/200) samples to the target."""
    speed = 100 * gpus / (1 + 0.1 * (gpus - 1)) * (1 + (seed - 1) / 1000)
    reached = 1000 * (1 + 32 * gpus / 200) / speed
    return record_of(
        gpus, seed, lr_rule=rule, metrics={"samples_per_s": speed, "time_to_target_s": reached, "noise_scale": 150.0}
    )


def test_laws_and_critical_batch(record_of: RecordOf) -> None:
    records = [trial(record_of, gpus, seed) for gpus in (1, 2, 4, 8) for seed in range(3)]
    records += [trial(record_of, gpus, seed, "linear") for gpus in (1, 2) for seed in range(3)]
    told = scaling(*collect(records, scaling="weak", reference_batch_size=32))[0]
    amdahl, usl = (line for line in told.splitlines() if "| 1, 2, 4, 8" in line)
    assert "Amdahl" in amdahl and "| 100 [" in amdahl and "| 0.1 [" in amdahl and "a speed-up of 10.0×" in amdahl
    assert "USL" in usl and "| 0.1 [" in usl
    assert "1 group of cells has fewer than 3 GPU counts, too few to fit a law." in told
    (batch,) = (line for line in told.splitlines() if "lr_rule=none, lr_multiplier=1.0" in line)
    assert "| 200 [" in batch and "150" in batch
    (other,) = (line for line in told.splitlines() if "lr_rule=linear, lr_multiplier=1.0" in line)
    assert other.split("|")[2].strip() == ""


def test_laws_that_rest_on_timings_that_are_not_valid_say_so(record_of: RecordOf) -> None:
    sound = [trial(record_of, gpus, seed) for gpus in (1, 2, 4, 8) for seed in range(3)]
    packed = [replace(each, timing="shared") if each.gpus == 8 else each for each in sound]
    told = "1 cell has no valid timing; the laws use their throughputs nevertheless."
    assert told in scaling(*collect(packed, scaling="weak"))[0]
    assert "no valid timing" not in scaling(*collect(sound, scaling="weak"))[0]


def test_nothing_to_fit(record_of: RecordOf) -> None:
    told = scaling(*collect([record_of(1, 0, metrics={"samples_per_s": 5.0})], scaling="weak"))[0]
    assert told == "# Scaling laws\n\n1 group of cells has fewer than 3 GPU counts, too few to fit a law.\n"
