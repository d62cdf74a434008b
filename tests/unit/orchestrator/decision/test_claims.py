from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.collection.collector import collect
from orchestrator.collection.loss_curves import loss_curves
from orchestrator.decision.claim import Claim
from orchestrator.decision.claims import verdicts
from orchestrator.decision.verdict import Verdict
from orchestrator.journal.record import TrialRecord
from orchestrator.statistics.curve_distance import Curve
from orchestrator.tables.claims import claims_markdown
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]


@pytest.fixture
def frames(record_of: RecordOf) -> Any:
    def trial(gpus: int, seed: int) -> TrialRecord:
        speed = {1: 100.0, 2: 190.0}[gpus] + seed
        return record_of(gpus, seed, metrics={"samples_per_s": speed, "accuracy": 0.9 + seed / 100, "epochs": 10})

    records = [trial(gpus, seed) for gpus in (1, 2) for seed in range(3)]
    return collect([*records, record_of(4, 0, Status.OOM)], scaling="weak", reference_batch_size=32)


def judged(frames: Any, expression: str, **other: Any) -> Verdict:
    return verdicts([Claim.of({"sentence": "So it is.", "expression": expression, **other})], *frames)[0]


def test_speedup_and_efficiency_are_by_seed(frames: Any) -> None:
    # 190/100, 191/101, 192/102: 1.9, 1.8911, 1.8824; geometric mean 1.8911, ± 1.2%.
    found = judged(frames, "speedup(gpus=2) > 1.8")
    assert (found.verdict, found.n, found.by_ratio) == ("confirmed", 3, True)
    assert (found.left, found.right) == pytest.approx(((1.9 * 191 / 101 * 192 / 102) ** (1 / 3), 1.8))
    assert found.point == pytest.approx(found.left / 1.8)
    assert judged(frames, "efficiency(gpus=2) > 0.9").point == pytest.approx(found.point)
    assert judged(frames, "speedup(gpus=2) > 2").verdict == "refuted"


def test_a_claim_has_the_interval_of_the_table(frames: Any) -> None:
    found, cells = judged(frames, "speedup(gpus=2) > 1"), frames[1].set_index("gpus")
    assert [found.point, found.lo, found.hi] == pytest.approx(cells.loc[2, ["speedup", "speedup_lo", "speedup_hi"]])
    rates = judged(frames, "samples_per_s(gpus=2) > samples_per_s(gpus=1)")
    assert (rates.point, rates.lo, rates.hi) == pytest.approx((found.point, found.lo, found.hi))
    assert not judged(frames, "samples_per_s(gpus=2) - samples_per_s(gpus=1) > 80").by_ratio


@pytest.mark.parametrize(
    ("end", "verdict", "why"),
    [
        (Status.DIVERGED, "inconclusive", "accuracy(gpus=2): a cell is diverged, 3 of 4 ok"),
        (Status.OOM, "inconclusive", "accuracy(gpus=2): a cell is oom, 3 of 4 ok"),
        (Status.TIMEOUT, "inconclusive", "accuracy(gpus=2): a cell is timeout, 3 of 4 ok"),
        (Status.FAILED, "confirmed", ""),  # a lost node says nothing of the cell
        (Status.SKIPPED, "confirmed", ""),
    ],
)
def test_the_seeds_that_came_through_do_not_speak_for_one_that_did_not(
    record_of: RecordOf, end: Status, verdict: str, why: str
) -> None:
    records = [
        record_of(gpus, s, metrics={"accuracy": 0.9 + gpus / 100 + s * gpus / 1000})
        for gpus in (1, 2)
        for s in (0, 1, 2)
    ]
    frames = collect([*records, record_of(1, 3, metrics={"accuracy": 0.9}), record_of(2, 3, end)], scaling="weak")
    found = judged(frames, "accuracy(gpus=2) > accuracy(gpus=1)")
    assert (found.verdict, found.why) == (verdict, why)


def test_accuracies_are_paired_by_seed(frames: Any) -> None:
    found = judged(frames, "accuracy(gpus=2) == accuracy(gpus=1)", margin=0.001)
    assert (found.verdict, found.lo, found.hi) == ("confirmed", 0, 0)
    assert (
        judged(frames, "accuracy(gpus=2) == accuracy(gpus=1)", margin=0.1, needs_epochs=100).verdict == "inconclusive"
    )


def test_a_timing_that_is_not_valid_settles_nothing_and_no_accuracy_is_the_worse_for_it(record_of: RecordOf) -> None:
    records = [
        record_of(
            gpus, seed, timing=timing, metrics={"samples_per_s": 100.0 * gpus + seed, "accuracy": 0.9 + seed / 100}
        )
        for gpus, timing in ((1, "device"), (2, "shared"), (4, "device"))
        for seed in range(3)
    ]
    sweep = collect(records, scaling="weak", reference_batch_size=32)
    found = judged(sweep, "speedup(gpus=2) > 1.8")
    assert (found.verdict, found.why) == ("inconclusive", "the timing of one of its cells is not valid")
    near = judged(sweep, "speedup(gpus=2) > 1.98")
    assert near.lo < 1 < near.hi and (near.why, near.seeds_to_settle) == (found.why, None)
    assert judged(sweep, "speedup(gpus=4) > 3").verdict == "confirmed"
    assert judged(sweep, "accuracy(gpus=2) == accuracy(gpus=1)", margin=0.01).verdict == "confirmed"


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("accuracy(gpus=2) > 0.8", "inconclusive"),
        ("accuracy(gpus=2) > 0.95", "inconclusive"),
        ("samples_per_s(gpus=2) > samples_per_s(gpus=1)", "inconclusive"),
        ("speedup(gpus=2) > 1.8", "inconclusive"),
        ("peak_memory_gb(gpus=2) < 80", "confirmed"),  # what does not depend on chance may well be the same
        ("peak_memory_gb(gpus=2) < 20", "refuted"),
        (
            "loss(gpus=2) <= loss(gpus=1)",
            "confirmed",
        ),  # two names for one training: alike by seed, and the seeds differ
    ],
)
def test_identical_seeds_are_no_certainty(record_of: RecordOf, expression: str, verdict: str) -> None:
    records = [
        record_of(
            gpus,
            seed,
            metrics={"samples_per_s": 100.0 * gpus, "accuracy": 0.9, "peak_memory_gb": 40.0, "loss": 1.0 + seed},
        )
        for gpus in (1, 2)
        for seed in range(3)
    ]
    found = judged(collect(records, scaling="weak", reference_batch_size=32), expression)
    why = "all 3 seeds are identical, which says nothing about chance" if verdict == "inconclusive" else ""
    assert (found.verdict, found.why, found.seeds_to_settle) == (verdict, why, None)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("acuracy(gpus=2) > 0", "there is no column 'acuracy' of numbers (did you mean 'accuracy'?)"),
        ("accuracy(gpus=8) > 0", "no cell has gpus=8"),
        ("accuracy(gpus=4) > 0", "accuracy(gpus=4): a cell is oom"),
        ("accuracy(gpu=4) > 0", "there is no axis 'gpu' (did you mean 'gpus'?)"),
        ("accuracy() > 0", "accuracy(): a cell is oom"),
    ],
)
def test_cells_that_are_not_there_leave_a_claim_inconclusive(frames: Any, expression: str, why: str) -> None:
    found = judged(frames, expression)
    assert (found.verdict, found.why) == ("inconclusive", why)


def test_a_claim_about_speed_that_rests_on_one_process_says_so(record_of: RecordOf) -> None:
    def told(processes: dict[int, str], expression: str) -> str:
        records = [
            record_of(
                gpus,
                seed,
                metrics={"samples_per_s": 100.0 * gpus + seed, "accuracy": 0.9 + seed / 100},
                provenance={"process": f"{gpus} {processes[gpus][seed]}"},
            )
            for gpus in (1, 2)
            for seed in range(3)
        ]
        found = verdicts([Claim.of({"sentence": "So", "expression": expression})], *collect(records, scaling="weak"))
        return claims_markdown(found, "demo")

    one, each = {1: "abc", 2: "aaa"}, {1: "abc", 2: "abc"}
    assert "| 3 in one process | " in told(one, "speedup(gpus=2) > 1.5")
    assert "In one process: a single process timed all seeds" in told({1: "aaa", 2: "abc"}, "speedup(gpus=2) > 1.5")
    for unmarked in (told(each, "speedup(gpus=2) > 1.5"), told(one, "accuracy(gpus=2) > .8")):
        assert "one process" not in unmarked and "confirmed" in unmarked


def test_golden_table(frames: Any) -> None:
    claims = [
        {"sentence": "Two GPUs are 1.8 times as fast | <b>", "expression": "speedup(gpus=2) > 1.8", "about": "us"},
        {"sentence": "They lose nothing", "expression": "accuracy(gpus=2) == accuracy(gpus=1)", "margin": 0.01},
    ]
    told = claims_markdown(verdicts([Claim.of(claim) for claim in claims], *frames), "demo")
    assert told == GOLDEN


@pytest.mark.parametrize(
    ("expression", "margin", "claimed", "compared"),
    [
        ("samples_per_s(gpus=2) >= 15 * samples_per_s(gpus=1)", 0, "at least 1,515", "ratio"),
        ("samples_per_s(gpus=2) <= samples_per_s(gpus=1)", 20, "at most 101.0 + 20", "ratio"),
        ("accuracy(gpus=2) < 0.95", 0, "less than 0.9500", "difference"),
        ("accuracy(gpus=2) >= accuracy(gpus=1)", 0.005, "at least 0.9100 − 0.005", "difference"),
    ],
)
def test_what_is_claimed_is_told_in_words(
    frames: Any, expression: str, margin: float, claimed: str, compared: str
) -> None:
    given = {"sentence": "It is so", "expression": expression, "margin": margin}
    head, _, row = claims_markdown(verdicts([Claim.of(given)], *frames), "demo").splitlines()[-3:]
    cells = dict(zip(*([each.strip() for each in line.split("|")] for line in (head, row)), strict=True))
    assert cells["claimed"] == claimed and compared in cells


GOLDEN = """\
# Claims: demo

Measured and claimed are the two sides of the expression, means over the seeds; next to them is their ratio (×) or\
 difference with its 95% interval, paired by seed. A claim is confirmed if the whole interval agrees with it, and\
 refuted if none of it does.

| claim                                    | verdict   | measured   | claimed                | ratio (×) or\
 difference   | seeds   | about   | expression                           |
|:-----------------------------------------|:----------|:-----------|:-----------------------|:---------------\
-----------|:--------|:--------|:-------------------------------------|
| Two GPUs are 1.8 times as fast \\| &lt;b> | confirmed | 1.891      | more than 1.800        | 1.051× [1.039, 1.063]\
     | 3       | us      | speedup(gpus=2) > 1.8                |
| They lose nothing                        | confirmed | 0.9100     | equal to 0.9100 ± 0.01 | 0.000 [0.000, 0.000]  \
    | 3       |         | accuracy(gpus=2) == accuracy(gpus=1) |
"""


LOSSES = 2.0 * 0.9 ** np.arange(10)
BY_CHANCE = (1.0, 1.02, 1.04)
"""What the losses of a cell's seeds are multiplied by."""


def with_curves(record_of: RecordOf, factors: dict[int, float], by_chance: tuple[float, ...] = BY_CHANCE) -> Any:
    """Frames of cells whose loss curves are those of the first times a factor, with every other row from 2 GPUs on."""
    rows, records = [], []
    for gpus, factor in factors.items():
        for seed, chance in enumerate(by_chance):
            record = record_of(gpus, seed, metrics={"samples_per_s": 100.0, "epochs": 10.0})
            records.append(record)
            for epoch, loss in list(enumerate(LOSSES, start=1))[:: 1 if gpus == 1 else 2]:
                told = {"epoch": epoch, "samples": epoch * 100.0, "loss": loss * factor * chance}
                rows.append({"trial_id": record.trial_id} | told)
    curves = pd.DataFrame(rows, columns=["trial_id", "epoch", "samples", "loss"]).astype({"trial_id": "category"})
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    return trials, cells, loss_curves(trials, curves)


ALIKE = "loss_distance({gpus: 1}, {gpus: 2}) <= seed_distance({gpus: 1}, {gpus: 2})"
APART = "loss_distance({gpus: 1}, {gpus: 2}) > seed_distance({gpus: 1}, {gpus: 2}) + 0.05"


def test_loss_curves_are_judged_by_what_seeds_of_a_cell_are_apart(record_of: RecordOf) -> None:
    # Seeds are ln 1.02, ln 1.04 and ln 1.04/1.02 apart: .02615 in the mean, pseudo-values .03961, 0, .03884, ± .05626.
    same = judged(with_curves(record_of, {1: 1.0, 2: 1.0}), ALIKE, margin=0.05)
    assert (same.verdict, same.n, same.by_ratio) == ("confirmed", 3, False)
    assert [same.left, same.right, same.hi] == pytest.approx([0, 0.02615, 0.05626 - 0.02615], abs=1e-5)
    other = with_curves(record_of, {1: 1.0, 2: 1.5})
    assert judged(other, APART).verdict == "confirmed" and judged(other, ALIKE, margin=0.05).verdict == "refuted"
    assert judged(other, APART).left == pytest.approx(np.log(1.5))
    between = judged(with_curves(record_of, {1: 1.0, 2: 1.1}), ALIKE, margin=0.05)
    assert (between.verdict, between.why) == ("inconclusive", "the interval includes values for and against it")
    assert between.seeds_to_settle is not None and between.seeds_to_settle > 3
    assert judged(other, APART, needs_epochs=50).why == "it needs 50 epochs, and the shortest trial had 10"


@pytest.mark.parametrize(
    ("by_chance", "expression", "why"),
    [
        (BY_CHANCE, "loss_distance({gpus: 1}, {gpus: 8}) > 0", "no cell has gpus=8"),
        (BY_CHANCE, "loss_distance({gpu: 1}, {gpus: 2}) > 0", "there is no axis 'gpu' (did you mean 'gpus'?)"),
        (BY_CHANCE, "loss_distance({gpus: 1}, {}) > 0", "{} of loss_distance selects 2 cells: narrow it"),
        (BY_CHANCE[:2], ALIKE, "seed_distance needs curves of 3 seeds of each cell with 5 epochs in common"),
        ((1.0, 1.0, 1.0), ALIKE, "all 3 seeds are identical, which says nothing about chance"),
    ],
)
def test_what_a_claim_of_loss_curves_lacks_is_told_in_a_line(
    record_of: RecordOf, by_chance: tuple[float, ...], expression: str, why: str
) -> None:
    found = judged(with_curves(record_of, {1: 1.0, 2: 1.5}, by_chance), expression)
    assert (found.verdict, found.why) == ("inconclusive", why)


def test_without_curves_a_claim_of_them_is_inconclusive(record_of: RecordOf) -> None:
    trials, cells, curves = with_curves(record_of, {1: 1.0, 2: 1.5})
    why = "no curves: no trial of one of its cells has a loss in its metrics.jsonl"
    of_one = {cell_id: by_seed for cell_id, by_seed in curves.items() if cell_id.startswith("1-")}
    assert [judged((trials, cells, given), APART).why for given in (None, {}, of_one)] == [why] * 3
    few = {
        cell_id: {seed: Curve(at=each.at[:3], log_loss=each.log_loss[:3]) for seed, each in by_seed.items()}
        for cell_id, by_seed in curves.items()
    }
    short = judged((trials, cells, few), "loss_distance({gpus: 1}, {gpus: 2}) > 0")
    assert short.why == "loss_distance needs curves with 5 epochs in common"


def test_golden_table_of_loss_curves(record_of: RecordOf) -> None:
    claims = [
        {"sentence": "They learn alike", "expression": ALIKE, "margin": 0.05},
        {"sentence": "They do not", "expression": APART},
    ]
    found = verdicts([Claim.of(claim) for claim in claims], *with_curves(record_of, {1: 1.0, 2: 1.5}))
    rows = [line.split(" | ") for line in claims_markdown(found, "demo").splitlines() if line.startswith("| They")]
    assert [[cell.strip("| ") for cell in row] for row in rows] == GOLDEN_OF_CURVES


GOLDEN_OF_CURVES = [
    ["They learn alike", "refuted", "0.4055", "at most 0.02615 + 0.05", "0.3793 [0.3231, 0.4356]", "3"]
    + ["loss_distance({gpus: 1}, {gpus: 2}) &lt;= seed_distance({gpus: 1}, {gpus: 2})"],
    ["They do not", "confirmed", "0.4055", "more than 0.07615", "0.3293 [0.2731, 0.3856]", "3"]
    + ["loss_distance({gpus: 1}, {gpus: 2}) > seed_distance({gpus: 1}, {gpus: 2}) + 0.05"],
]
