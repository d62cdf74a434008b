"""What cells of like batches and recipes tell of a cell, in the recommendation."""

from orchestrator.analysis.trials import collect
from orchestrator.config.request import Terms
from orchestrator.decision.candidates import Contenders
from orchestrator.store.record import TrialRecord
from tests.unit.orchestrator.decision.deciding import RecordOf, decided, measured

NOISE = {1: (0, 4, -4), 2: (3, -3, 0), 4: (-4, 1, 3), 8: (-2, 4, -2), 16: (4, -3, -1), 32: (-1, -3, 4)}
"""Thousandths of accuracy by GPUs and seed: 0 in the mean."""


def flat_but_for_the_fastest(record_of: RecordOf, short: float) -> list[TrialRecord]:
    return [
        record_of(gpus, seed, metrics=measured(100 * gpus, 0.9 + noise / 1000 - short * (gpus == 32)))
        for gpus, by_seed in NOISE.items()
        for seed, noise in enumerate(by_seed)
    ]


def test_cells_of_like_batches_tell_what_few_seeds_do_not(record_of: RecordOf) -> None:
    # All but the fastest are as accurate as the baseline; that one misses the margin by .0002, and errors are .0015.
    found = decided(flat_but_for_the_fastest(record_of, 0.0102))
    assert found.name.startswith("32 GPUs ") and 0.5 < found.p_within_margin < 0.9
    told = [
        reason for reason in found.reasons if reason.startswith("The mean of its own seeds is more than 0.01 lower")
    ]
    assert len(told) == 1 and told[0].endswith("it is more likely than not within the margin.")
    # What its own seeds show beyond doubt is believed.
    assert decided(flat_but_for_the_fastest(record_of, 0.03)).name.startswith("16 GPUs ")


def test_other_recipes_are_no_like_cells(record_of: RecordOf) -> None:
    records = flat_but_for_the_fastest(record_of, 0.0)
    frames = collect(records, scaling="weak", reference_batch_size=32)
    cells = frames[1].assign(lr_rule=["none", "linear"] * 3, **{"axes.model": ["a", "a", "b", "b", "c", "c"]})
    axes = {"gpus": "gpus", "lr_rule": "lr_rule", "model": "axes.model"}
    found = Contenders.of(frames[0], cells, Terms(axes=axes)).contest.likeness
    assert found is not None and len(set(found.recipe.tolist())) == 6
    assert sorted(found.batch.tolist()) == [32, 64, 128, 256, 512, 1024]
    only = Contenders.of(*frames, Terms(axes={"gpus": "gpus", "device_batch_size": "device_batch_size"}))
    assert only.contest.likeness is not None and set(only.contest.likeness.recipe.tolist()) == {0}


def falling_but_for_the_fastest(record_of: RecordOf) -> list[TrialRecord]:
    """Each doubling costs .006, and so the fastest .03; by its own seeds it came out .0097 short."""
    short = {gpus: 0.006 * place for place, gpus in enumerate(NOISE)} | {32: 0.0097}
    return [
        record_of(gpus, seed, metrics=measured(100 * gpus, 0.9 + noise / 1000 - short[gpus]))
        for gpus, by_seed in NOISE.items()
        for seed, noise in enumerate(by_seed)
    ]


def test_the_margin_that_lets_a_cell_in_is_told_by_what_like_cells_tell_too(record_of: RecordOf) -> None:
    records = falling_but_for_the_fastest(record_of)
    found = decided(records)
    (line,) = [each for each in found.sensitivity if "would allow 32 GPUs " in each]
    margin = float(line.removeprefix("report.margin=").split()[0])
    assert margin > 0.01 and "0.0097 lower than the baseline's" in line and line.endswith("similar batch size).")
    assert decided(records, margin=margin).name.startswith("32 GPUs ")
    (fastest,) = [each for each in found.shortlist if each.name.startswith("32 GPUs ")]
    assert fastest.why_not.endswith("judged together with cells of similar batch size)")
    # And where they speak for it, by a margin below what its own seeds lost.
    more = decided(flat_but_for_the_fastest(record_of, 0.0125)).sensitivity
    line = next(each for each in more if "would allow 32 GPUs " in each)
    assert float(line.removeprefix("report.margin=").split()[0]) < 0.0125 and line.endswith("similar batch size).")
