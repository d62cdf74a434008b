import math
from typing import Any

import numpy as np
import pytest

from orchestrator.decision.claim_expressions import Claim, Claimed, ExpressionError
from orchestrator.decision.claim_verdicts import Sides, counts_of, judge, verdicts
from orchestrator.tables.predictions import claims_document
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


@pytest.fixture
def frames():
    def trial(gpus, seed):
        speed = {1: 100.0, 2: 190.0}[gpus] + seed
        return record_of(gpus, seed, metrics={"samples_per_s": speed, "accuracy": 0.9 + seed / 100, "epochs": 10})

    records = [trial(gpus, seed) for gpus in (1, 2) for seed in range(3)]
    return collect([*records, record_of(4, 0, Status.OOM)], scaling="weak", reference_batch_size=32)


def judged(frames, expression, **other):
    return verdicts([Claim.of({"sentence": "So it is.", "expression": expression, **other})], *frames)[0]


def has(text, *parts):
    """Return whether a text has all the parts."""
    return all(part in text for part in parts)


def test_speedup_and_efficiency_are_paired_by_seed(frames):
    # 190/100, 191/101, 192/102: 1.9, 1.8911, 1.8824; geometric mean 1.8911, ± 1.2%.
    judgement = judged(frames, "speedup(gpus=2) > 1.8")
    assert (judgement.verdict, judgement.n, judgement.by_ratio) == ("confirmed", 3, True)
    assert (judgement.left, judgement.right) == pytest.approx(((1.9 * 191 / 101 * 192 / 102) ** (1 / 3), 1.8))
    assert judgement.point == pytest.approx(judgement.left / 1.8)
    assert judged(frames, "efficiency(gpus=2) > 0.9").point == pytest.approx(judgement.point)
    assert judged(frames, "speedup(gpus=2) > 2").verdict == "refuted"


def test_a_claim_has_the_same_interval_as_the_table(frames):
    judgement, cells = judged(frames, "speedup(gpus=2) > 1"), frames[1].set_index("gpus")
    assert [judgement.point, judgement.lo, judgement.hi] == pytest.approx(
        cells.loc[2, ["speedup", "speedup_lo", "speedup_hi"]]
    )
    rates = judged(frames, "samples_per_s(gpus=2) > samples_per_s(gpus=1)")
    assert (rates.point, rates.lo, rates.hi) == pytest.approx((judgement.point, judgement.lo, judgement.hi))
    assert not judged(frames, "samples_per_s(gpus=2) - samples_per_s(gpus=1) > 80").by_ratio


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (Status.DIVERGED, "inconclusive"),
        (Status.OOM, "inconclusive"),
        (Status.TIMEOUT, "inconclusive"),
        (Status.FAILED, "confirmed"),  # a lost node is no fault of the cell
        (Status.SKIPPED, "confirmed"),
    ],
)
def test_a_seed_that_its_config_failed_makes_claims_inconclusive(end, verdict):
    records = [
        record_of(gpus, s, metrics={"accuracy": 0.9 + gpus / 100 + s * gpus / 1000})
        for gpus in (1, 2)
        for s in (0, 1, 2)
    ]
    frames = collect([*records, record_of(1, 3, metrics={"accuracy": 0.9}), record_of(2, 3, end)], scaling="weak")
    judgement = judged(frames, "accuracy(gpus=2) > accuracy(gpus=1)")
    assert judgement.verdict == verdict
    assert (
        has(judgement.why, "accuracy(gpus=2)", end.value, "3 of 4")
        if verdict == "inconclusive"
        else judgement.why == ""
    )


def test_accuracies_are_paired_by_seed(frames):
    judgement = judged(frames, "accuracy(gpus=2) == accuracy(gpus=1)", margin=0.001)
    assert (judgement.verdict, judgement.lo, judgement.hi) == ("confirmed", 0, 0)
    assert (
        judged(frames, "accuracy(gpus=2) == accuracy(gpus=1)", margin=0.1, needs_epochs=100).verdict == "inconclusive"
    )


def test_an_invalid_timing_leaves_only_claims_about_timing_inconclusive():
    records = [
        record_of(
            gpus, seed, timing=timing, metrics={"samples_per_s": 100.0 * gpus + seed, "accuracy": 0.9 + seed / 100}
        )
        for gpus, timing in ((1, "device"), (2, "shared"), (4, "device"))
        for seed in range(3)
    ]
    sweep = collect(records, scaling="weak", reference_batch_size=32)
    judgement = judged(sweep, "speedup(gpus=2) > 1.8")
    assert judgement.verdict == "inconclusive" and has(judgement.why, "timing", "not valid")
    near = judged(sweep, "speedup(gpus=2) > 1.98")
    assert near.lo < 1 < near.hi and (near.why, near.seeds_to_settle) == (judgement.why, None)
    assert judged(sweep, "speedup(gpus=4) > 3").verdict == "confirmed"
    assert judged(sweep, "accuracy(gpus=2) == accuracy(gpus=1)", margin=0.01).verdict == "confirmed"


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("accuracy(gpus=2) > 0.8", "inconclusive"),
        ("accuracy(gpus=2) > 0.95", "inconclusive"),
        ("samples_per_s(gpus=2) > samples_per_s(gpus=1)", "inconclusive"),
        ("speedup(gpus=2) > 1.8", "inconclusive"),
        ("peak_memory_gb(gpus=2) < 80", "confirmed"),  # memory does not vary by chance
        ("peak_memory_gb(gpus=2) < 20", "refuted"),
        ("loss(gpus=2) <= loss(gpus=1)", "confirmed"),  # one training under two names: only its seeds differ
    ],
)
def test_identical_seeds_leave_claims_about_random_values_inconclusive(expression, verdict):
    records = [
        record_of(
            gpus,
            seed,
            metrics={"samples_per_s": 100.0 * gpus, "accuracy": 0.9, "peak_memory_gb": 40.0, "loss": 1.0 + seed},
        )
        for gpus in (1, 2)
        for seed in range(3)
    ]
    judgement = judged(collect(records, scaling="weak", reference_batch_size=32), expression)
    assert (judgement.verdict, judgement.seeds_to_settle) == (verdict, None)
    assert has(judgement.why, "all 3 seeds", "identical") if verdict == "inconclusive" else judgement.why == ""


def test_the_table_marks_speed_claims_timed_by_one_process():
    def table(processes, expression):
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
        judgement = verdicts(
            [Claim.of({"sentence": "So", "expression": expression})], *collect(records, scaling="weak")
        )
        return claims_document(judgement, "demo").text

    one, timed_apart = {1: "abc", 2: "aaa"}, {1: "abc", 2: "abc"}
    for marked in (one, {1: "aaa", 2: "abc"}):
        text = table(marked, "speedup(gpus=2) > 1.5")
        assert "| 3 in one process | " in text and "In one process: " in text
    for unmarked in (table(timed_apart, "speedup(gpus=2) > 1.5"), table(one, "accuracy(gpus=2) > .8")):
        assert "one process" not in unmarked and "confirmed" in unmarked


@pytest.mark.parametrize(("samples", "verdict"), [(None, "inconclusive"), (100, "inconclusive"), (10_000, "confirmed")])
def test_equal_differences_of_accuracies_are_no_certainty(samples, verdict):
    """Two seeds are both .01 more accurate: 2 of 200 samples may be chance, 200 of 20,000 are not."""
    counted = {} if samples is None else {"test_samples": samples}
    records = [
        record_of(gpus, seed, metrics={"samples_per_s": 100.0, "accuracy": 0.9 + (gpus + seed) / 100, **counted})
        for gpus in (1, 2)
        for seed in range(2)
    ]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    judgement = judged(frames, "accuracy(gpus=2) > accuracy(gpus=1)")
    assert judgement.verdict == verdict and (samples is None or judgement.lo < 0.01 < judgement.hi)
    if samples:
        n = 2 * samples
        half = 1.959964 * math.sqrt((0.01 + 1 / n - 0.01**2) / n)
        assert (judgement.lo, judgement.hi) == pytest.approx((0.01 - half, 0.01 + half))
        cell = frames[1].set_index("gpus").loc[2]
        assert (cell["accuracy_difference_lo"], cell["accuracy_difference_hi"]) == pytest.approx(
            (judgement.lo, judgement.hi)
        )


def test_verdicts_are_counted_in_one_order(frames):
    expressions = ("accuracy() > 2", "accuracy(gpus=2) > 0.95", "accuracy(gpus=2) > 0.5")
    found = verdicts([Claim.of({"sentence": "So", "expression": expression}) for expression in expressions], *frames)
    assert list(counts_of(found).items()) == [("confirmed", 1), ("refuted", 1), ("inconclusive", 1)]
    assert claims_document(found, "demo").line[1].startswith("1 confirmed, 1 refuted, 1 inconclusive (")


def test_the_table_tells_how_often_some_verdict_is_wrong(frames):
    given = [Claim.of({"sentence": "So", "expression": f"accuracy(gpus=2) > {threshold}"}) for threshold in (0.88, 0.5)]
    both, one = (claims_document(verdicts(claims, *frames), "demo").text for claims in (given, given[:1]))
    assert has(both, "of 2 claims", "10%") and "of 1 claims" not in one


def test_golden_table(frames, golden):
    claims = [
        {"sentence": "Two GPUs are 1.8 times as fast | <b>", "expression": "speedup(gpus=2) > 1.8", "about": "us"},
        {"sentence": "They lose nothing", "expression": "accuracy(gpus=2) == accuracy(gpus=1)", "margin": 0.01},
        {"sentence": "15 times", "expression": "samples_per_s(gpus=2) >= 15 * samples_per_s(gpus=1)"},
        {"sentence": "Not faster", "expression": "samples_per_s(gpus=2) <= samples_per_s(gpus=1)", "margin": 20},
        {"sentence": "Below 95%", "expression": "accuracy(gpus=2) < 0.95"},
        {"sentence": "Not worse", "expression": "accuracy(gpus=2) >= accuracy(gpus=1)", "margin": 0.005},
    ]
    golden("claims/table.md", claims_document(verdicts([Claim.of(claim) for claim in claims], *frames), "demo").text)


# t(.975, 2) = 4.302653: three seeds with deviation s have an interval of ± 2.484138 s.


def claim(expression="a() >= b()", **other):
    return Claim.of({"sentence": "It is so.", "expression": expression, **other})


def values(**columns):
    """A lookup where a column has these rows of seeds, whatever is selected."""
    return lambda column, selection: np.array(columns[column], dtype=float)


def difference(text, **columns):
    left, right = Claimed.parse(text).sides(values(**columns))
    return (left - right).tolist()


def of_difference(claim, seeds, **other):
    """Judge a claim whose left side has these values, against 0."""
    return judge(claim, Sides.of(np.array(seeds, dtype=float), np.zeros(len(seeds)), by_ratio=False), **other)


def of_ratio(claim, left, right):
    both = (np.array(side, dtype=float) for side in (left, right))
    return judge(claim, Sides.of(*both, by_ratio=True, margin=claim.margin))


def test_expressions_are_computed_for_each_seed():
    assert difference("a() / b() > 1.5", a=[[4, 9]], b=[[2, 3]]) == [0.5, 1.5]
    assert difference("-a() + 2 * b() - 1 <= 0", a=[[4, 9]], b=[[2, 3]]) == [-1, -4]


def test_min_max_and_mean_join_several_cells():
    rows = [[1, 2], [3, 5]]
    assert difference("min(a(gpus=2)) > 0", a=rows) == [1, 2]
    assert difference("max(a()) > 0", a=rows) == [3, 5]
    assert difference("mean(a()) > 0", a=rows) == [2, 3.5]
    with pytest.raises(ExpressionError, match=r"a\(\) selects 2 cells"):
        difference("a() > 0", a=rows)


def test_selections_reach_the_lookup():
    seen = []

    def lookup(column, selection):
        seen.append((column, dict(selection)))
        return np.ones((1, 1))

    Claimed.parse('a(gpus=2, lr_rule=linear, **{"optimizer.momentum": 0.9}) > b(model="mlp")').sides(lookup)
    assert seen == [("a", {"gpus": 2, "lr_rule": "linear", "optimizer.momentum": 0.9}), ("b", {"model": "mlp"})]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('x') > 0",
        "a().b > 1",
        "(lambda: 1)() > 0",
        "a()[0] > 0",
        "[a()] > 0",
        "a(gpus=open('x')) > 0",
        "a(*x) > 0",
        "a(**x) > 0",
        "a(2) > 0",
        "2 ** 9999999 > a()",
        "a() % 2 > 0",
        "'text' + a() > 0",
        "a().b * 2 > 1",
        "a() - b()[0] > 1",
        "'text' > a()",
        "True > a()",
        "a() > b() > c()",
        "a() != b()",
        "a() and b()",
        "a()",
        "min(a(), b()) > 0",
        "max(2) > a()",
        "(x := a()) > 1",
        "f'{a()}' > 1",
        "a( > 1",
        "(" * 5000 + "1" + ")" * 5000 + " > 0",
        "-" * 990 + "1 > 0",
        "a() > 1" + "0" * 400,
        "a() > 1e999",
        "",
    ],
)
def test_an_expression_outside_the_language_is_an_error(text):
    with pytest.raises(ExpressionError):
        Claimed.parse(text)


@pytest.mark.parametrize("key", ["margin", "needs_seeds", "needs_epochs"])
@pytest.mark.parametrize("value", [-1, math.nan, "1"])
def test_numbers_of_a_claim_are_at_least_0(key, value):
    with pytest.raises(ValueError, match=f"{key} must be a number"):
        Claim.of({"sentence": "s", "expression": "a() > 1", key: value})


def test_an_expression_has_at_most_1000_characters():
    longest = "a() > 1" + " " * 993
    assert Claimed.parse(longest).columns == {"a"}
    with pytest.raises(ExpressionError, match="1000 characters"):
        Claimed.parse(longest + " ")


@pytest.mark.parametrize(
    ("expression", "margin", "seeds", "verdict"),
    [
        ("a() > 0", 0, [1, 2, 3], "inconclusive"),  # 2 ± 2.48
        ("a() > 0", 0, [2, 3, 4], "confirmed"),  # 3 ± 2.48
        ("a() > 0", 0.5, [1, 2, 3], "confirmed"),
        ("a() > 0", 0, [-2, -3, -4], "refuted"),
        ("a() > 0", 5.49, [-2, -3, -4], "confirmed"),  # above −5.49
        ("a() > 0", 0.51, [-2, -3, -4], "refuted"),  # −3 ± 2.484 is below −.51
        ("a() > 0", 0.53, [-2, -3, -4], "inconclusive"),
        ("a() < 0", 0, [-2, -3, -4], "confirmed"),
        ("a() < 0", 0, [2, 3, 4], "refuted"),
        ("a() <= 0", 0, [0, 0, 0], "confirmed"),
        ("a() < 0", 0, [0, 0, 0], "refuted"),
        ("a() == 0", 2.49, [-1, 0, 1], "confirmed"),
        ("a() == 0", 2.48, [-1, 0, 1], "inconclusive"),
        ("a() == 0", 0.5, [2, 3, 4], "refuted"),
    ],
)
def test_verdicts_equal_those_computed_by_hand(expression, margin, seeds, verdict):
    judgement = of_difference(claim(expression, margin=margin), seeds)
    assert judgement.verdict == verdict
    assert judgement.n == 3 and judgement.point == pytest.approx(np.mean(seeds))


def test_seeds_to_settle_equal_those_computed_by_hand():
    # Mean 2, deviation 1: (t + .84) / √n ≤ 2 first at n = 5, where t(.975, 4) = 2.776 gives 1.62; n = 4 gives 2.01.
    assert of_difference(claim("a() > 0"), [1.0, 2.0, 3.0]).seeds_to_settle == 5
    # Mean 1.5: n = 6, where t(.975, 5) = 2.571 gives 1.39; n = 5 gives 1.62.
    assert of_difference(claim("a() > 0"), [0.5, 1.5, 2.5]).seeds_to_settle == 6
    assert of_difference(claim("a() > 0"), [-1.0, 0.0, 1.0]).seeds_to_settle is None
    # With fewer seeds than the claim needs: that number if they already agree, None if no practical number is enough.
    assert of_difference(claim("a() > 0", needs_seeds=3), [9.9, 10.0]).seeds_to_settle == 3
    assert of_difference(claim("a() > 0", needs_seeds=5), [-1.0, 0.0, 1.0]).seeds_to_settle is None


def test_rates_are_compared_by_the_logarithm_of_their_ratio():
    # E3's batch of 128 against 64 on two H200: the difference is above 0 by its interval, the ratio is not shown to be
    # above 1. ln ratios .1027, .0949, .2753 have mean .1576 and deviation .1020; ± 2.484138 · .1020 = .2534.
    left, right = [110.8148, 109.9548, 131.6926], [100.0, 100.0, 100.0]
    judgement = of_ratio(claim("a() > b()"), left, right)
    assert judgement.by_ratio and judgement.verdict == "inconclusive"
    assert [judgement.point, judgement.lo, judgement.hi] == pytest.approx([1.1707, 0.9087, 1.5083], rel=1e-3)
    assert judgement.right == pytest.approx(100) and judgement.left == pytest.approx(117.07, rel=1e-4)
    slower = of_ratio(claim("a() > b()"), right, left)
    assert [slower.point, slower.lo, slower.hi] == pytest.approx(
        [1 / judgement.point, 1 / judgement.hi, 1 / judgement.lo]
    )


@pytest.mark.parametrize(
    ("expression", "margin", "right", "verdict"),
    [
        ("a() >= b()", 0, 1.0, "confirmed"),  # the left side is 2 × e^(−.1, 0, .1): ± 28%, 1.56 to 2.56
        ("a() >= b()", 0, 2.5, "inconclusive"),
        ("a() >= b()", 1, 2.5, "confirmed"),
        ("a() >= b()", 0, 2.6, "refuted"),
        ("a() <= b()", 0, 2.6, "confirmed"),
        ("a() <= b()", 0.5, 2.1, "confirmed"),
        ("a() <= b()", 0.1, 1.4, "refuted"),
        ("a() == b()", 0.6, 2.1, "confirmed"),
        ("a() == b()", 0.5, 2.1, "inconclusive"),
        ("a() == b()", 0.5, 4.0, "refuted"),
    ],
)
def test_margins_of_ratios_are_in_the_units_of_the_sides(expression, margin, right, verdict):
    left = 2 * np.exp([-0.1, 0, 0.1])
    judgement = of_ratio(claim(expression, margin=margin), left, [right] * 3)
    assert (judgement.by_ratio, judgement.verdict) == (True, verdict)


def test_sides_that_reach_0_are_compared_by_difference():
    assert not of_ratio(claim("a() >= b()"), [1, 2, 0], [1, 1, 1]).by_ratio
    assert not of_ratio(claim("a() >= b()"), [1, 2, 3], [1, 1, -1]).by_ratio
    assert not of_ratio(claim("a() >= b()", margin=1), [1, 2, 3], [1, 1, 1]).by_ratio
    assert of_ratio(claim("a() >= b()", margin=0.5), [1, 2, 3], [1, 1, 1]).by_ratio


@pytest.mark.parametrize(
    ("text", "subtracts"), [("a() / b() > 2 * c() + 1", False), ("a() - b() > 1", True), ("-a() < 1", True)]
)
def test_expressions_that_subtract_are_recognised(text, subtracts):
    assert Claimed.parse(text).subtracts is subtracts


def test_golden_reasons(frames, golden):
    """The verdicts and the reasons of claims that are inconclusive, and the errors of malformed ones."""
    missing = ("acuracy(gpus=2)", "accuracy(gpus=8)", "accuracy(gpus=4)", "accuracy(gpu=4)", "accuracy()")
    judgement = [judged(frames, f"{column} > 0") for column in missing]
    for needs_seeds, seeds in ((3, [1.0, 2.0]), (5, [2.0, 3.0, 4.0]), (3, [3.0]), (3, [math.nan])):
        judgement.append(of_difference(claim("a() > 0", needs_seeds=needs_seeds, needs_epochs=100), seeds))
    for epochs in (20.0, math.nan):
        judgement.append(of_difference(claim("a() > 0", needs_epochs=100), [2.0, 3.0, 4.0], epochs=epochs))
    lines = [f"{verdict.verdict}, {verdict.seeds_to_settle} seeds: {verdict.why}" for verdict in judgement]
    malformed: list[Any] = ["text", {"sentence": "x"}, {"sentence": "x", "expression": "a() > 0", "margin": -1}]
    malformed += [{"sentence": "x", "expression": "a() > 0", "marign": 1}]
    malformed += [{"sentence": "x", "expression": text} for text in ("a() == 0", "a()")]
    for given in malformed:
        with pytest.raises(ValueError) as error:
            Claim.of(given)
        lines.append(str(error.value))
    golden("claims/reasons.txt", "\n".join(lines) + "\n")
