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
from orchestrator.tables.candidates import Candidates, answers
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
    return {column.name: list(column.texts) for column in candidates.columns}


def test_candidates_are_sorted_by_time_and_have_their_roles(recommendation: Recommendation) -> None:
    candidates = Candidates.of(recommendation)
    assert candidates is not None and candidates.chosen == 0
    roles = dict(zip([cell.name for cell in candidates.cells], candidates.roles, strict=True))
    assert list(roles.items()) == [("2×64 none", ""), ("1×64 none", "cheapest"), ("1×32 none", "baseline")]
    assert f"**{recommendation.name}**" in candidates.markdown()[1]


def test_the_speed_up_is_divided_into_gpus_and_batch(recommendation: Recommendation) -> None:
    columns = texts(Candidates.of(recommendation))
    assert columns["time"] == ["17.5", "33.3", "60.0"]
    assert columns["speedup"] == ["3.42×", "1.80×", "1.00×"]
    assert columns["of_gpus"] == ["1.90×", "1.00×", "1.00×"]
    assert columns["of_batch"] == ["1.80×", "1.80×", "1.00×"]
    assert columns["cost"] == ["0.0351", "0.0333", "0.0600"]
    alone = [record for record in records() if record.device_batch_size == 32]
    assert "of_gpus" not in texts(Candidates.of(decided(alone)))


def test_bars_of_accuracy_end_at_three_margins(recommendation: Recommendation) -> None:
    candidates = Candidates.of(recommendation)
    assert candidates is not None
    (column,) = [column for column in candidates.columns if column.name == "difference"]
    assert column.texts == ["-0.005", "+0.000", "-"]
    places = [bar.value for bar in column.bars]
    assert places == pytest.approx([0.5 - 0.005 / 0.06, 0.5, 0.5])


def test_the_chosen_cell_and_the_baseline_stay_in_a_short_table(recommendation: Recommendation) -> None:
    candidates = Candidates.of(recommendation, most=2)
    assert candidates is not None and candidates.labels == ["2×64 none", "1×32 none (baseline)"]
    missing = Candidates.of(replace(recommendation, cell_id=None), most=1)
    assert missing is not None and missing.labels == ["1×32 none (baseline)"] and missing.chosen is None
    assert Candidates.of(replace(recommendation, shortlist=())) is None


def test_processes_have_no_cost() -> None:
    on_cpu = Candidates.of(decided(records(device="cpu")))
    assert on_cpu is not None and on_cpu.heading.startswith("process") and "cost" not in texts(on_cpu)


def test_several_steps_are_grouped_by_what_they_are_worth() -> None:
    rates = {1: 100, 2: 200, 4: 201, 8: 390}
    found = decided([record_of(g, s, metrics=measured(rates[g], 0.9)) for g in rates for s in range(3)])
    parts = dict(answers(found))["More GPUs"].split("; ")
    # Eight GPUs are recommended, because they are the fastest, and cost more than they gain. The only row with two GPUs
    # needs no name.
    assert [part.partition(" (")[0] for part in parts] == ["1→2 worth it", "4 not worth it", "2→8 costly", "1→8 not"]
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
    assert "if accuracy holds" in first and "with the safe one" in second
    safe = recommendation.cell(recommendation.safe_cell_id)
    assert safe is not None and (recommendation.verdict, safe.name) == (UNDECIDED, "2×32 none")
    assert safe.name in in_sentences(recommendation).details[0]


def test_a_step_that_may_lose_accuracy_depends_on_it() -> None:
    # Two GPUs are faster with certainty, and may miss the margin, so that no cell is surely worth it.
    records = swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.893})
    recommendation = decided(records)
    (step,) = recommendation.gpu_steps
    assert step.worth == UNDECIDED and step.if_held is not None and step.if_held.name == recommendation.name
    ((_, text),) = [answer for answer in answers(recommendation) if answer[0] == step.name]
    assert text.startswith("worth it if accuracy holds")


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
    assert candidates is not None and candidates.labels == ["2×32 none", "2×32 none", "1×32 none (baseline, cheapest)"]
    column = candidates.columns[0]
    assert (column.title, column.texts, column.rank) == ("momentum", ["0.9", "0.5", "0.9"], 0)
    alone = Candidates.of(decided([record for record in trials if record.axes[momentum] == 0.9]))
    assert alone is not None and alone.columns[0].name == "lr"


def test_an_axis_with_long_values_stays_in_the_names() -> None:
    values = {"a" * 20: 100, "b" * 30: 190}
    trials = [
        record_of(1, seed, axes={"model": value}, metrics=measured(rate, 0.9))
        for value, rate in values.items()
        for seed in range(3)
    ]
    candidates = Candidates.of(decided(trials, axes=AXES | {"model": "model"}))
    assert candidates is not None and "model=" + "b" * 30 in candidates.labels[0]
    assert candidates.columns[0].name == "lr"


def test_larger_batches_the_cheapest_cell_and_the_runner_up_are_known(recommendation: Recommendation) -> None:
    (larger,) = recommendation.larger_batches
    assert (larger.global_batch_size, larger.cell_id) == (256, "2-128-none") and larger.p_within_margin < 0.05
    # 2×64 costs 0.0351 EUR, 1×64 0.0333; 2×128 costs less and is not eligible.
    assert recommendation.cheapest_cell_id == "1-64-none"
    after = recommendation.runner_up
    assert after is not None and after.values["name"] == "1×64 none"
    assert after.values["ratio"].value == pytest.approx(342 / 180)
    told = dict(answers(recommendation))
    assert "256" in told["Larger batch"] and {"0.0351", "0.0333"} <= set(told["One training"].split())


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


def test_times_with_and_without_start_up_have_one_unit() -> None:
    # Two minutes or more without start-up, and less with it in the other cell, would suit different units.
    rates = {1: 50, 2: 100}
    trials = [
        record_of(gpus, seed, wall_s=6000 / rate + 40, metrics=measured(rate, 0.9))
        for gpus, rate in rates.items()
        for seed in range(3)
    ]
    candidates = Candidates.of(decided(trials))
    assert candidates is not None
    titles = {column.name: column.title for column in candidates.columns}
    assert titles["time"].partition("[")[2] == titles["total_time"].partition("[")[2] == "s]"
    assert texts(candidates)["time"] == ["60.0", "120"] and texts(candidates)["total_time"] == ["100", "160"]


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
    ("p_within", "has_safe", "is_named"),
    [(0.93, True, True), (0.6, True, True), (0.95, True, False), (0.6, False, False)],
)
@pytest.mark.parametrize("verdict", [TIED, UNDECIDED, CLEAR])
def test_a_choice_below_95_percent_has_a_safe_choice_beside_it(
    recommendation: Recommendation, verdict: str, p_within: float, has_safe: bool, is_named: bool
) -> None:
    safe = recommendation.baseline_cell_id if has_safe else None
    undecided = replace(recommendation, verdict=verdict, p_within_margin=p_within, safe_cell_id=safe)
    assert any("the baseline" in sentence for sentence in in_sentences(undecided).details) is is_named


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
        (False, 0.97, "1-32-none", "worth it with the baseline"),
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
    assert answer.partition(" (")[0] == text


def started_late(start_up_s: float, rows: list[TrialRecord] | None = None) -> list[TrialRecord]:
    """Return records whose trials take this much longer than their training."""
    return [
        replace(each, wall_s=each.metrics["samples"] / each.metrics["samples_per_s"] + start_up_s)
        for each in rows or records()
    ]


def numbers_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![×\w])\d+\.\d+", text)]


# Two GPUs at 3.60 an hour cost 0.002 a second. The choice takes 17.5 s on two GPUs, the cheapest 33.3 s on one.
@pytest.mark.parametrize(("start_up_s", "costs"), [(10.0, [0.0351, 0.0551, 0.0333, 0.0433]), (1.0, [0.0351, 0.0333])])
def test_costs_with_start_up_stand_beside_the_costs(start_up_s: float, costs: list[float]) -> None:
    found = decided(started_late(start_up_s), price_per_gpu_hour=3.6, currency="EUR", margin=0.01)
    assert found.chosen is not None and found.chosen.figures["total_cost"].value == pytest.approx(
        0.002 * (6000 / 342 + start_up_s)
    )
    assert numbers_in(dict(answers(found))["One training"]) == costs


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
    [(1.5, 1.3, "4→8 not (1.50× for 1.30×)"), (1.5, 1.6, "4→8 costly, too (1.50× for 1.60×)")],
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


@pytest.mark.parametrize(
    ("code", "values", "role"),
    [
        ("needs_more_hours", {}, "tied, dearer"),
        ("above_chosen", {"measure": "time for the fixed budget"}, "tied, slower"),
        ("ties_with_chosen", {"metric": VAL_ACCURACY, "why": "more_accurate"}, "tied, less accurate"),
        ("ties_with_chosen", {"metric": Metric.named("val_loss"), "why": "more_accurate"}, "tied, more loss"),
        ("accuracy_too_low", {}, "rival, may miss the margin"),
    ],
)
def test_a_rival_has_the_reason_why_it_is_not_chosen(
    recommendation: Recommendation, code: str, values: dict[str, Any], role: str
) -> None:
    chosen, *others = recommendation.shortlist
    is_eligible = code != "accuracy_too_low"
    rival = replace(
        chosen, cell_id="rival", tied=is_eligible, eligible=is_eligible, p_best=1.0, why_not=remark(code, **values)
    )
    p_best = replace(recommendation, p_best=0.5, verdict=TIED, rivals=(rival,), shortlist=(chosen, rival, *others))
    found = Candidates.of(p_best)
    assert found is not None
    assert found.roles[[cell.cell_id for cell in found.cells].index("rival")] == role


@pytest.mark.parametrize(("count", "rows", "more"), [(1, 1, ""), (2, 2, ""), (4, 4, "3 more"), (6, 4, "5 more")])
def test_tied_cells_have_rows_and_the_rest_are_counted(
    recommendation: Recommendation, count: int, rows: int, more: str
) -> None:
    chosen, *others = recommendation.shortlist
    reason = remark("needs_more_hours", ratio=2.0, name=chosen.name, on_cpu=False)
    tied = tuple(
        replace(chosen, cell_id=f"rival {place}", name=f"rival {place}", tied=True, why_not=reason)
        for place in range(count)
    )
    found = replace(recommendation, verdict=TIED, rivals=tied, shortlist=(chosen, *tied, *others))
    candidates = Candidates.of(found)
    assert candidates is not None and sum(role.startswith("tied") for role in candidates.roles) == rows
    sentence = in_sentences(found).details[0]
    assert all(name in sentence for name in ("rival 0", more)) and ("rival 1" in sentence) is (count == 2)


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
    ranks = {column.name: column.rank for column in candidates.columns}
    assert ranks["axis:lr_multiplier"] > ranks["speedup"] > ranks["lr"] == 0
