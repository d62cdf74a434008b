"""The table of candidates: which cells, in which order, with which figures, from values worked out by hand."""

from dataclasses import replace

import pytest

from orchestrator.decision.recommendation import UNDECIDED, Figure, LargerBatch, Recommendation
from orchestrator.store.record import TrialRecord
from orchestrator.tables.candidates import Candidates, answers
from orchestrator.tables.recommendation import in_sentences
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
    assert list(roles.items()) == [*(("2×64 none", ""), ("1×64 none", ""), ("1×32 none", "baseline"))]
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
    text = dict(answers(found))["More GPUs"]
    groups = dict(part.split(": ") for part in text.split("; "))
    # Eight GPUs are recommended, because they are the fastest, and cost more than they gain.
    assert {worth: group.split()[0] for worth, group in groups.items()} == {
        "worth it": "2",
        "fastest but costly": "8",
        "not worth it": "4",
    }
    assert "2.00×" in groups["worth it"] and found.chosen is not None and found.chosen.values["gpus"] == 8
    assert "report.objective=cost" in dict(answers(found))["Cost"]


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
    assert f"if {step.if_held.name}" in text and f"safe {step.cell.name}" in text
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
    assert text.startswith(f"worth it if {recommendation.name}")


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
    assert candidates is not None and candidates.labels == ["2×32 none", "2×32 none", "1×32 none (baseline)"]
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
    assert "256" in told["Larger batch"] and {"0.0351", "0.0333"} <= set(told["Cost"].split())


@pytest.mark.parametrize(
    ("chances", "told"),
    [
        ((), "no larger"),
        ((0.99, 0.98), "safe with cell 1 (1.50× as fast): "),
        ((0.99, 0.3), "safe up to 64 with cell 0 (1.50× as fast): "),
        ((0.6,), "doubtful with cell 0 (1.50× as fast): "),
        ((0.01, 0.001), "not safe: "),
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
            p_within_margin=chance,
            gain=Figure(value=1.5, unit="1"),
        )
        for place, chance in enumerate(chances)
    ]
    text = dict(answers(replace(recommendation, larger_batches=tuple(batches))))["Larger batch"]
    assert text.startswith(told)
