"""The table of candidates: which cells, in which order, with which figures, from values worked out by hand."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config.request import VAL_ACCURACY, Metric
from orchestrator.decision.recommendation import (
    CLEAR,
    COSTLY,
    TIED,
    UNDECIDED,
    WORTH,
    Figure,
    LargerBatch,
    Recommendation,
    remark,
)
from orchestrator.store.record import TrialRecord
from orchestrator.tables.answers import answers, by_batch
from orchestrator.tables.candidates import BEST_SO_FAR, MAY_BECOME, RUN_TODAY, SAFER, USE, Candidates, calls
from orchestrator.tables.recommendation import in_sentences
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import AXES, decided, measured, swayed
from tests.unit.orchestrator.records import record_of

RATES = {(1, 32): 100, (1, 64): 180, (2, 32): 150, (2, 64): 342, (2, 128): 600}
"""Samples per second by GPUs and batch: a trial of 6,000 samples takes 60, 33.3, 40, 17.5 or 10 s."""

ACCURACIES = {(2, 64): 0.895, (2, 128): 0.86}
"""Others have 0.9."""


def records(**fields: object) -> list[TrialRecord]:
    return [
        record_of(gpus, seed, batch=batch, metrics=measured(rate, ACCURACIES.get((gpus, batch), 0.9)), **fields)
        for (gpus, batch), rate in RATES.items()
        for seed in range(3)
    ]


@pytest.fixture(scope="module")
def recommendation() -> Recommendation:
    return decided(records(), price_per_gpu_hour=3.6, currency="EUR", margin=0.01)


def texts(candidates: Candidates | None) -> dict[str, list[str]]:
    assert candidates is not None
    return {line.name: list(line.texts) for line in candidates.lines}


def labels(candidates: Candidates | None) -> list[tuple[str, str]]:
    assert candidates is not None
    return list(zip(candidates.names, candidates.roles, strict=True))


def test_candidates_are_sorted_by_time_and_have_their_roles(recommendation: Recommendation) -> None:
    candidates = Candidates.of(recommendation)
    assert labels(candidates) == [
        ("2×64 none", "run today, best value"),
        ("1×64 none", "cheapest"),
        ("1×32 none", "baseline"),
    ]
    assert candidates is not None and candidates.n_called == 1
    assert candidates.setups == ["2 GPUs, batch 64 each", "1 GPU, batch 64", "1 GPU, batch 32"]
    assert f"**{recommendation.name}** (run today, best value)" in candidates.markdown()[1]


def test_the_speed_up_is_divided_into_gpus_and_batch(recommendation: Recommendation) -> None:
    lines = texts(Candidates.of(recommendation))
    assert lines["time"] == ["17.5", "33.3", "60.0"]
    assert lines["speedup"] == ["3.42×", "1.80×", "1.00×"]
    assert lines["factors"] == ["1.90 × 1.80", "1.00 × 1.80", "1.00 × 1.00"]
    assert lines["cost"] == ["0.0351", "0.0333", "0.0600"]
    alone = [record for record in records() if record.device_batch_size == 32]
    assert "factors" not in texts(Candidates.of(decided(alone)))


def test_bars_of_accuracy_end_at_three_margins(recommendation: Recommendation) -> None:
    candidates = Candidates.of(recommendation)
    assert candidates is not None
    (line,) = [line for line in candidates.lines if line.name == "difference"]
    assert line.texts == ["-0.005", "+0.000", "-"]
    places = [bar.value for bar in line.bars]
    assert places == pytest.approx([0.5 - 0.005 / 0.06, 0.5, 0.5])


def test_the_time_tells_its_interval_and_valid_timings_on_demand(recommendation: Recommendation) -> None:
    candidates = Candidates.of(recommendation)
    assert candidates is not None
    (line,) = [line for line in candidates.lines if line.name == "time"]
    assert all(hint.endswith("3 of 3") and "95%" in hint for hint in line.hints)


def test_the_chosen_cell_and_the_baseline_stay_in_a_short_table(recommendation: Recommendation) -> None:
    assert labels(Candidates.of(recommendation, most=2)) == [
        ("2×64 none", "run today, best value"),
        ("1×32 none", "baseline"),
    ]
    missing = Candidates.of(replace(recommendation, cell_id=None), most=1)
    assert labels(missing) == [("1×32 none", "baseline")] and missing is not None and missing.n_called == 0
    assert Candidates.of(replace(recommendation, shortlist=())) is None


@pytest.mark.parametrize(
    ("verdict", "p_within", "has_safe", "expected"),
    [
        (CLEAR, 0.97, True, {"2-64-none": USE}),
        (CLEAR, 0.93, True, {"2-64-none": USE, "1-32-none": SAFER}),
        (TIED, 0.97, False, {"2-64-none": USE}),
        (TIED, 0.93, True, {"1-32-none": RUN_TODAY, "2-64-none": MAY_BECOME}),
        (UNDECIDED, 0.6, True, {"1-32-none": RUN_TODAY, "2-64-none": MAY_BECOME}),
        (UNDECIDED, 0.95, True, {"2-64-none": RUN_TODAY}),
        (UNDECIDED, 0.6, False, {"2-64-none": BEST_SO_FAR}),
        (UNDECIDED, math.nan, False, {"2-64-none": BEST_SO_FAR}),
    ],
)
def test_what_is_safe_runs_today_and_what_is_better_may_become_the_choice(
    recommendation: Recommendation, verdict: str, p_within: float, has_safe: bool, expected: dict[str, str]
) -> None:
    safe = recommendation.baseline_cell_id if has_safe else None
    changed = replace(recommendation, verdict=verdict, p_within_margin=p_within, safe_cell_id=safe)
    assert list(calls(changed).items()) == list(expected.items())
    candidates = Candidates.of(changed)
    assert candidates is not None and candidates.n_called == len(expected)
    assert [cell.cell_id for cell in candidates.cells][: len(expected)] == list(expected)
    is_pair = MAY_BECOME in expected.values()
    assert in_sentences(changed).lead.startswith("Run today: the baseline") is is_pair


def test_the_best_value_has_the_least_product_of_time_and_cost(recommendation: Recommendation) -> None:
    # 17.5 s × 0.0351 EUR, not 33.3 × 0.0333; on CPUs there is no cost.
    assert recommendation.best_value_cell_id == "2-64-none" and recommendation.cheapest_cell_id == "1-64-none"
    assert decided(records(device="cpu")).best_value_cell_id is None


def test_processes_have_no_cost() -> None:
    on_cpu = Candidates.of(decided(records(device="cpu")))
    assert on_cpu is not None and on_cpu.heading.startswith("process") and "cost" not in texts(on_cpu)


def test_several_steps_are_grouped_by_what_they_are_worth() -> None:
    rates = {1: 100, 2: 200, 4: 201, 8: 390}
    found = decided([record_of(g, s, metrics=measured(rates[g], 0.9)) for g in rates for s in range(3)])
    parts = dict(answers(found))["More GPUs"].split("; ")
    # Eight GPUs are recommended, because they are the fastest, and cost more than they gain. The only row with two GPUs
    # needs no name.
    assert [part.partition(" (")[0] for part in parts] == [
        "1→2 worth it",
        "4 not worth it",
        "2→8 costly",
        "1→8 worth it",
    ]
    assert "2.00×" in parts[0] and found.chosen is not None and found.chosen.values["gpus"] == 8


def test_a_gain_of_another_cell_than_the_chosen_one_names_it() -> None:
    # The fastest cell may miss the margin, the slower one with the same number of GPUs surely keeps it.
    speeds = {(1, 32): (100, 0.9), (2, 32): (190, 0.9), (2, 128): (300, 0.893)}
    sway = (0, 0.03, -0.03)
    records = [
        record_of(
            gpus, seed, batch=batch, metrics=measured(rate * (1 + sway[seed]), accuracy + sway[(seed + place) % 3] / 8)
        )
        for place, ((gpus, batch), (rate, accuracy)) in enumerate(speeds.items())
        for seed in range(3)
    ]
    recommendation = decided(records)
    (step,) = recommendation.gpu_steps
    ((_, text),) = [answer for answer in answers(recommendation) if answer[0] == step.name]
    assert recommendation.chosen is not None
    assert step.cell is not None and step.if_held is not None
    assert (step.if_held.name, step.cell.name) == (recommendation.name, "2×32 none") == ("2×128 none", "2×32 none")
    first, second = text.split("; ")
    assert first.startswith("against 1×32 none: worth it if accuracy holds") and "with 2×32 none" in second
    safe = recommendation.cell(recommendation.safe_cell_id)
    assert safe is not None and (recommendation.verdict, safe.name) == (UNDECIDED, "2×32 none")
    assert in_sentences(recommendation).lead.startswith(f"Run today: {safe.name}")


def test_a_step_that_may_lose_accuracy_depends_on_it() -> None:
    # Two GPUs are faster with certainty, and may miss the margin, so that no cell is surely worth it.
    records = swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.893})
    recommendation = decided(records)
    (step,) = recommendation.gpu_steps
    assert step.worth == UNDECIDED and step.if_held is not None and step.if_held.name == recommendation.name
    ((_, text),) = [answer for answer in answers(recommendation) if answer[0] == step.name]
    assert text.startswith("against 1×32 none: worth it if accuracy holds")


def test_further_axes_in_which_rows_differ_have_columns() -> None:
    momentum = "optimizer.momentum"
    rates = {(1, 0.9): 100, (2, 0.9): 190, (2, 0.5): 150}
    trials = [
        record_of(gpus, seed, axes={momentum: value}, metrics=measured(rate, 0.9))
        for (gpus, value), rate in rates.items()
        for seed in range(3)
    ]
    recommendation = decided(trials, axes=AXES | {momentum: momentum})
    assert recommendation.name == f"2×32 none, {momentum}=0.9"
    assert recommendation.runner_up is not None
    assert recommendation.runner_up.values["name"] == f"2×32 none, {momentum}=0.5"
    candidates = Candidates.of(recommendation)
    assert candidates is not None and candidates.names == ["2×32 none", "2×32 none", "1×32 none"]
    assert candidates.roles == ["run today, best value", "runner-up", "baseline, cheapest"]
    line = candidates.lines[0]
    assert (line.title, line.texts, line.rank) == ("momentum", ["0.9", "0.5", "0.9"], 0)
    alone = Candidates.of(decided([record for record in trials if record.axes[momentum] == 0.9]))
    assert alone is not None and alone.lines[0].name == "lr"


def test_an_axis_with_long_values_stays_in_the_names() -> None:
    values = {"a" * 20: 100, "b" * 30: 190}
    trials = [
        record_of(1, seed, axes={"model": value}, metrics=measured(rate, 0.9))
        for value, rate in values.items()
        for seed in range(3)
    ]
    candidates = Candidates.of(decided(trials, axes=AXES | {"model": "model"}))
    assert candidates is not None and "model=" + "b" * 30 in candidates.names[0]
    assert candidates.lines[0].name == "lr"


def test_larger_batches_the_cheapest_cell_and_the_runner_up_are_known(recommendation: Recommendation) -> None:
    (larger,) = recommendation.larger_batches
    assert (larger.global_batch_size, larger.cell_id) == (256, "2-128-none") and larger.p_within_margin < 0.05
    # 2×64 costs 0.0351 EUR, 1×64 0.0333; 2×128 costs less and is not eligible.
    assert recommendation.cheapest_cell_id == "1-64-none"
    after = recommendation.runner_up
    assert after is not None and after.values["name"] == "1×64 none"
    assert after.values["ratio"].value == pytest.approx(342 / 180)
    told = dict(answers(recommendation))
    assert "256" in told["Larger batch"]


@pytest.mark.parametrize(
    ("chances", "told"),
    [
        ((), "unknown, 128 in all"),
        ((0.99, 0.98), "safe with cell 1 (1.50× as fast as the choice): "),
        ((0.99, 0.3), "safe up to 64 with cell 0 (1.50× as fast as the choice): "),
        ((0.6,), "doubtful: "),
        ((0.01, 0.001), "not safe: "),
        ((math.nan,), "unknown at 64 in all"),
    ],
)
def test_a_larger_batch_is_as_safe_as_its_probability(
    recommendation: Recommendation, chances: tuple[float, ...], told: str
) -> None:
    batches = [
        LargerBatch(
            global_batch_size=64 * 2**place,
            cell_id="",
            name=f"cell {place}",
            status="ok",
            p_within_margin=chance,
            gain=Figure(value=1.5, unit="1"),
        )
        for place, chance in enumerate(chances)
    ]
    text = dict(answers(replace(recommendation, larger_batches=tuple(batches))))["Larger batch"]
    assert text.startswith(told)


def test_a_larger_batch_that_was_tried_has_its_end() -> None:
    trials = [record_of(1, seed, metrics=measured(100, 0.9 + seed / 1000)) for seed in range(2)]
    trials += [record_of(1, batch=64, status=Status.OOM), record_of(1, batch=128, metrics={"samples_per_s": 9.0})]
    trials += [record_of(1, batch=256, status=Status.FAILED)]
    decision = decided(trials)
    ends = [(batch.global_batch_size, batch.status) for batch in decision.larger_batches]
    assert decision.cell_id == "1-32-none" and ends == [(64, "oom"), (128, "ok"), (256, "failed")]
    assert dict(answers(decision))["Larger batch"] == "out of memory at 64 in all, unknown at 128, failed at 256"


@pytest.mark.parametrize(
    ("own", "pooled", "p_within", "text"),
    [
        (-0.006, -0.004, 0.79, "-0.0060 (likely -0.0040)"),
        (-0.004, -0.006, 0.4, "-0.0040 (likely -0.0060)"),
        (-0.004, -0.004, 0.79, "-0.0040"),
        (-0.006, -0.006, 0.4, "-0.0060"),
        (-0.006, -0.006, math.nan, "-0.0060"),
    ],
)
def test_an_accuracy_beyond_the_margin_that_may_be_within_it_shows_both_estimates(
    recommendation: Recommendation, own: float, pooled: float, p_within: float, text: str
) -> None:
    chosen, *others = recommendation.shortlist
    figures = {
        "val_accuracy_difference": Figure(value=own, unit="1"),
        "val_accuracy_difference_pooled": Figure(value=pooled, unit="1"),
    }
    changed = replace(chosen, figures={**chosen.figures, **figures}, p_within_margin=p_within)
    terms = replace(recommendation.terms, report=replace(recommendation.terms.report, margin=0.005))
    candidates = Candidates.of(replace(recommendation, terms=terms, shortlist=(changed, *others)))
    assert texts(candidates)["difference"][0] == text


@pytest.mark.parametrize(
    ("is_costly", "p_within", "cell_id", "text"),
    [
        (False, 0.91, "other", "worth it with 2×64 sqrt if accuracy holds"),
        (False, 0.97, "other", "worth it with 2×64 sqrt"),
        (False, math.nan, "other", "worth it with 2×64 sqrt"),
        (True, 0.91, "other", "costly with 2×64 sqrt"),
        (False, 0.91, "2-64-none", "worth it if accuracy holds"),
        (False, 0.97, "2-64-none", "worth it"),
        (True, 0.97, "2-64-none", "fastest but costly"),
        (False, 0.97, "1-32-none", "worth it with 2×64 sqrt"),
    ],
)
def test_gpus_are_worth_it_with_a_cell_and_if_its_accuracy_holds(
    recommendation: Recommendation, is_costly: bool, p_within: float, cell_id: str, text: str
) -> None:
    (step,) = recommendation.gpu_steps
    assert step.cell is not None
    cell = replace(step.cell, cell_id=cell_id, name="2×64 sqrt", is_costly=is_costly, p_within_margin=p_within)
    judged = replace(step, worth=COSTLY if is_costly else WORTH, cell=cell, if_held=None)
    answer = dict(answers(replace(recommendation, gpu_steps=(judged,))))[step.name]
    assert answer.partition(" (")[0] == f"against 1×64 none: {text}"


def started_late(start_up_s: float, rows: list[TrialRecord] | None = None) -> list[TrialRecord]:
    """Return records whose trials take this much longer than their training."""
    return [
        replace(each, wall_s=each.metrics["samples"] / each.metrics["samples_per_s"] + start_up_s)
        for each in rows or records()
    ]


def numbers_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![×\w])\d+\.\d+", text)]


# Two GPUs at 3.60 an hour cost 0.002 a second. The choice takes 17.5 s on two GPUs, the cheapest 33.3 s on one.
@pytest.mark.parametrize(("start_up_s", "costs"), [(10.0, ["0.0551", "0.0433", "0.0700"]), (1.0, None)])
def test_costs_with_start_up_stand_below_the_costs(start_up_s: float, costs: list[str] | None) -> None:
    found = decided(started_late(start_up_s), price_per_gpu_hour=3.6, currency="EUR", margin=0.01)
    assert found.chosen is not None and found.chosen.figures["total_cost"].value == pytest.approx(
        0.002 * (6000 / 342 + start_up_s)
    )
    lines = texts(Candidates.of(found))
    assert lines["cost"] == ["0.0351", "0.0333", "0.0600"] and lines.get("total_cost") == costs


@pytest.mark.parametrize(
    ("start_up_s", "gains", "steps"),
    [
        # The baseline takes 60 s, the best on one GPU 33.3 s.
        (10.0, [3.42, 3.42, 3.42, 2.54], [1.90, 1.05, 1.57, 1.27]),
        (1.0, [3.42, 3.42, 3.42], [1.90, 1.05]),
    ],
)
def test_gains_with_start_up_stand_beside_the_gains(start_up_s: float, gains: list[float], steps: list[float]) -> None:
    found = decided(started_late(start_up_s), price_per_gpu_hour=3.6, currency="EUR", margin=0.01)
    lead = in_sentences(found).lead.partition("): ")[2].partition(" as fast")[0]
    assert numbers_in(lead) == gains
    assert numbers_in(dict(answers(found))["2nd GPU"]) == steps


@pytest.mark.parametrize(
    ("terms", "accuracy", "figures"),
    [
        # Of the baseline's cost, 0.0333 of 0.06 EUR; with start-up, 0.0433 of 0.07.
        ({"objective": "cost", "price_per_gpu_hour": 3.6}, True, [0.56, 0.62]),
        # Without accuracies the fastest cell has 10 s, and takes 20 s.
        ({}, False, [10.0, 20.0]),
    ],
)
def test_other_headlines_have_the_start_up_too(terms: dict[str, Any], accuracy: bool, figures: list[float]) -> None:
    known = started_late(10.0)
    if not accuracy:
        known = [replace(each, metrics={**each.metrics, "val_accuracy": math.nan}) for each in known]
    lead = in_sentences(decided(known, margin=0.01, **terms)).lead
    assert numbers_in(lead.partition("): ")[2])[:2] == figures


# Over the best cell with fewer, the choice is 1.55 times as fast for 2.58 times the cost.
@pytest.mark.parametrize(
    ("gain", "cost", "of_baseline"),
    [(1.5, 1.3, "4→8 worth it (1.50× for 1.30×)"), (1.5, 1.6, "4→8 costly, too (1.50× for 1.60×)")],
)
def test_the_choice_is_compared_with_the_gpus_of_the_baseline(gain: float, cost: float, of_baseline: str) -> None:
    rates = {2: 200, 4: 120, 8: 310}
    found = decided([record_of(g, s, metrics=measured(rates[g], 0.9)) for g in rates for s in range(3)])
    chosen, baseline = found.chosen, found.cell("4-32-none")
    assert chosen is not None and baseline is not None and chosen.values["gpus"] == 8
    figures = {
        "time": Figure(value=chosen.value("time") * gain, unit="s"),
        "cost": Figure(value=chosen.value("cost") / cost, unit="GPU-hours"),
    }
    others = [cell for cell in found.shortlist if cell is not baseline]
    cells = (*others, replace(baseline, figures=baseline.figures | figures))
    parts = dict(answers(replace(found, baseline_cell_id="4-32-none", shortlist=cells)))["More GPUs"].split("; ")
    assert parts[1:] == ["2→8 costly (1.55× for 2.58× the cost)", of_baseline]


@pytest.mark.parametrize(
    ("p_worth", "said"), [(0.15, "unlikely to beat 1"), (0.6, "may beat 1"), (math.nan, UNDECIDED)]
)
def test_an_undecided_step_says_which_way_it_leans(recommendation: Recommendation, p_worth: float, said: str) -> None:
    (step,) = recommendation.gpu_steps
    judged = replace(step, worth=UNDECIDED, p_worth=p_worth, cell=None, if_held=None)
    assert dict(answers(replace(recommendation, gpu_steps=(judged,))))[step.name] == said


def test_cells_that_further_gpus_are_worth_it_with_have_rows() -> None:
    # Two GPUs at batch 64 are faster than four and the baseline, and are neither safe, cheapest nor chosen.
    rates = {(1, 32): 100, (1, 64): 180, (2, 64): 340, (4, 64): 420, (8, 64): 900}
    trials = [
        record_of(gpus, seed, batch=batch, metrics=measured(rate, 0.9))
        for (gpus, batch), rate in rates.items()
        for seed in range(3)
    ]
    found = decided(trials)
    worth = [step.cell.cell_id for step in found.gpu_steps if step.cell and step.worth == WORTH]
    short = Candidates.of(found, most=4)
    assert "2-64-none" in worth and short is not None and set(worth) <= {cell.cell_id for cell in short.cells}


def with_rivals(recommendation: Recommendation, *reasons: Any, **fields: Any) -> Recommendation:
    """Return the recommendation with rivals that tie with the choice, each with its reason."""
    chosen, *others = recommendation.shortlist
    rivals = tuple(
        replace(
            chosen, **{"cell_id": f"rival {place}", "name": f"rival {place}", "tied": True, "why_not": reason} | fields
        )
        for place, reason in enumerate(reasons)
    )
    return replace(recommendation, verdict=TIED, p_best=0.5, rivals=rivals, shortlist=(chosen, *rivals, *others))


@pytest.mark.parametrize(
    ("code", "values", "role"),
    [
        ("needs_more_hours", {}, "dearer"),
        ("above_chosen", {"measure": "time for the fixed budget"}, "slower so far"),
        ("ties_with_chosen", {"metric": VAL_ACCURACY, "why": "more_accurate"}, "less accurate"),
        ("ties_with_chosen", {"metric": Metric.named("val_loss"), "why": "more_accurate"}, "more loss"),
    ],
)
def test_a_tied_cell_has_the_reason_why_it_is_not_chosen(
    recommendation: Recommendation, code: str, values: dict[str, Any], role: str
) -> None:
    found = with_rivals(recommendation, remark(code, **values))
    assert [(name, why) for name, why in labels(Candidates.tied(found))][1:] == [("2×64 none", role)]
    assert in_sentences(found).picked == f"Tied: rival 0, {role}."
    # It has no column beside the choice, which it might contradict.
    assert len(labels(Candidates.of(found))) == 3
    assert Candidates.tied(recommendation) is None and in_sentences(recommendation).picked == ""


def test_a_likelier_cell_that_may_miss_the_margin_has_a_column(recommendation: Recommendation) -> None:
    why = remark("accuracy_too_low")
    found = Candidates.of(with_rivals(recommendation, why, tied=False, eligible=False, p_best=1.0))
    assert ("2×64 none", "may miss the margin") in labels(found)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_many_tied_cells_are_counted_with_what_all_of_them_lack(recommendation: Recommendation, count: int) -> None:
    reasons = [remark("needs_more_hours"), remark("ties_with_chosen", metric=VAL_ACCURACY, why="more_accurate")] * 2
    found = with_rivals(recommendation, *reasons[:count])
    picked = in_sentences(found).picked
    assert "rival 0" in picked and ("rival 1" in picked) is (count == 2)
    assert (f"among {count + 1}" in picked) is (count > 2)
    assert "dearer" in picked and ("less accurate" in picked) is (count > 1)
    assert len(labels(Candidates.tied(found))) == count + 1


def test_the_same_batch_is_compared_with_the_fewest_gpus(recommendation: Recommendation) -> None:
    ((label, text),) = by_batch(recommendation)
    assert label == "Same batch" and text.startswith("1.50× the speed of 1 GPU at batch 32 each, 1.90× at 64")


def test_the_learning_rate_tells_the_multiplier() -> None:
    trials = [
        record_of(
            1, seed, lr_multiplier=factor, lr=0.1 * factor, axes={"lr_multiplier": factor}, metrics=measured(rate, 0.9)
        )
        for factor, rate in ((1.0, 100), (2.0, 150))
        for seed in range(3)
    ]
    candidates = Candidates.of(decided(trials, axes=AXES | {"lr_multiplier": "lr_multiplier"}))
    assert candidates is not None
    ranks = {line.name: line.rank for line in candidates.lines}
    assert ranks["axis:lr_multiplier"] > ranks["speedup"] == ranks["lr"] == 0
