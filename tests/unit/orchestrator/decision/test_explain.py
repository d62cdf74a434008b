"""What a decision begins with where nothing is recommended.

What makes a recommendation provisional.
"""

import math

import pytest

from orchestrator.analysis.trials import collect
from orchestrator.config.request import Terms
from orchestrator.decision.claims import Claim
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import Recommendation
from orchestrator.decision.verdicts import verdicts
from orchestrator.store.record import TrialRecord
from orchestrator.tables.recommendation import at_most_behind, recommendation_markdown
from tests.unit.orchestrator.decision.deciding import AXES, RecordOf, decided, measured


def test_cells_of_different_work_get_no_recommendation(records: list[TrialRecord]) -> None:
    claims = [Claim.of({"sentence": each, "expression": each}) for each in ("gpus(gpus=2) > 1.5", "accuracy() > 2")]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    found = decide(*frames, Terms(objective="none", axes=AXES), verdicts(claims, *frames))
    assert (found.cell_id, found.provisional, found.more_seeds, found.front) == (None, False, (), ())
    assert found.sentence == (
        "Claims: 1 confirmed, 1 inconclusive. The largest speed-up is 3.00× [3.00, 3.00], 75% of the ideal, for 4 GPUs"
        " with a batch of 32 each (128 in all). Nothing is recommended, as requested (report.objective=none)."
    )
    assert recommendation_markdown(found, "demo").startswith("# In short: demo\n\n**Claims: 1 confirmed")


def test_a_sweep_that_no_more_gpus_speed_up_says_so(record_of: RecordOf) -> None:
    frames = collect([record_of(g, metrics=measured(100 / g, 0.9)) for g in (1, 2)], scaling="weak")
    told = decide(*frames, Terms(objective="none", axes=AXES)).sentence
    assert told.startswith(
        "No cell is faster with more GPUs: the best speed-up is 0.50×, 25% of the ideal, for 2 GPUs with a batch of 32"
    )


def test_the_largest_speed_up_is_one_whose_timing_is_valid(record_of: RecordOf) -> None:
    def told(*timings: str) -> str:
        records = [
            record_of(g, metrics=measured(90 * g, 0.9), timing=each) for g, each in zip((1, 2, 4), timings, strict=True)
        ]
        return decide(*collect(records, scaling="weak"), Terms(objective="none", axes=AXES)).sentence

    assert "The largest speed-up is 2.00×, 100% of the ideal, for 2 GPUs with a batch of 32 each " in told(
        "device", "device", "shared"
    )
    assert "(128 in all) (its timing is not valid)." in told("device", "shared", "shared")


def test_one_seed_is_provisional_and_asks_for_three(record_of: RecordOf) -> None:
    found = decided([record_of(g, 0, metrics=measured(100 * g, 0.9)) for g in (1, 2)])
    assert found.provisional and math.isnan(found.p_best)
    assert found.sentence.endswith("Provisional: one seed per cell does not show how much results vary by chance.")
    assert [(more.cell_id, more.seeds) for more in found.more_seeds] == [("2-32-none", 2), ("1-32-none", 2)]
    assert found.commands == (
        "python -m orchestrator sweep=demo 'sweep.axes.gpus=[2,1]' 'sweep.axes.device_batch_size=[32]'"
        " 'sweep.axes.lr_rule=[none]' 'sweep.axes.seed=[0,1,2]'",
    )


def test_without_accuracies_the_fastest_is_provisional(record_of: RecordOf) -> None:
    metrics = {"samples_per_s": 100.0, "samples": 6000}
    faster = {**metrics, "samples_per_s": 150.0}
    records = [record_of(g, s, metrics=each) for g, each in ((1, metrics), (2, faster)) for s in range(3)]
    found = decided(records)
    assert (found.cell_id, found.provisional) == ("2-32-none", True)
    assert found.sentence == (
        "The fastest is 2 GPUs with a batch of 32 each (64 in all): training for the fixed budget takes 40.0 s and"
        " costs 80.0 GPU-seconds, at 1.50× the throughput of its baseline. Whether it trains as well as the others is"
        " not known, because no trial reported a validation accuracy."
    )
    told = recommendation_markdown(found, "demo")
    assert "The best cell for each number of GPUs (means over seeds)" in told
    assert "The probability that it has the least time for the fixed budget or is within 2% of it is over 99%." in told
    assert "best cell or within" not in told  # nobody knows which cell is best


@pytest.mark.parametrize(("steps", "told"), [(10, True), (9, False)])
def test_the_fastest_is_not_taken_for_the_most_accurate_where_only_a_test_set_tells(
    record_of: RecordOf, steps: int, told: bool
) -> None:
    """Unless the accuracies are those of the initial weights, or none is known."""
    figures = {"samples": 6000, "steps": steps}
    records = [record_of(g, metrics={**figures, "samples_per_s": 100.0 * g, "accuracy": 0.9 - g / 10}) for g in (1, 2)]
    records.append(record_of(4, metrics={**figures, "samples_per_s": 1.0}))
    sentence = decided(records).sentence
    highest = "On the test set its accuracy is 0.700; the highest is 0.800 (1 GPU with a batch of 32)."
    assert (highest in sentence) is told and ("On the test set" in sentence) is told


def test_of_one_cell_no_chance_of_being_the_best_is_told(records: list[TrialRecord]) -> None:
    found = decided(records[:3])
    assert found.sentence.endswith("Provisional: no other cell can be compared with it.") and found.provisional
    assert math.isnan(found.p_best) and math.isnan(found.behind) and found.more_seeds == ()
    assert "robability" not in recommendation_markdown(found, "demo")


def test_what_is_too_near_the_margin_is_said(record_of: RecordOf) -> None:
    drops = {1: [0, 0.004, -0.004], 2: [0.001, -0.001, 0], 4: [-0.0101, -0.0201, -0.0001]}
    records = [
        record_of(g, s, metrics=measured(100 * g, 0.9 + drop))
        for g, given in drops.items()
        for s, drop in enumerate(given)
    ]
    told = "Even 30 seeds would not show whether the accuracy of 4 GPUs with a batch of 32 each (128 in all) is within"
    assert f"{told} the margin of 0.01: it is too close to it." in decided(records).sensitivity


def test_seeds_that_change_nothing_make_it_provisional(record_of: RecordOf) -> None:
    told = "all seeds of each cell reached exactly the same accuracy, as if the seed had no effect"
    alike = [record_of(g, s, metrics=measured(100 * g + s, 0.9)) for g in (1, 2) for s in range(3)]
    found = decided(alike)
    assert found.provisional and found.sentence.endswith(f"Provisional: {told}.")
    assert told not in decided([*alike, record_of(2, 3, metrics=measured(203, 0.901))]).sentence


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (0.0, "With 95% probability its time is no more than that of the best cell."),
        (0.031, "With 95% probability its time is at most 4% above that of the best cell."),
        (41_548.3, "There are too few seeds to tell how far its time may be above that of the best cell."),
    ],
)
def test_how_far_the_choice_may_be_behind_is_told_where_it_is_bounded(behind: float, told: str) -> None:
    found = Recommendation(
        objective="time", measure="time", margin=0.01, cell_id="a", lead="", provisional=True, behind=behind
    )
    assert at_most_behind(found) == told


def test_no_cell_is_called_more_accurate_where_none_tells_its_accuracy(record_of: RecordOf) -> None:
    records = [
        record_of(gpus, seed, metrics={"samples_per_s": pace * 1.001**seed, "samples": 6000})
        for gpus, pace in ((1, 100), (2, 101))
        for seed in range(3)
    ]
    chosen, other = decided(records).shortlist
    assert chosen.name.startswith("2 GPUs ")
    assert other.why_not == f"its time for the fixed budget is within 2% of that of {chosen.name}, which needs no more"


@pytest.mark.parametrize(
    ("speeds", "accuracies", "told"),
    [
        (
            {1: 50, 2: 100, 4: 101},
            {1: 0.9, 2: 0.905, 4: 0.902},
            "64% (86% for 4 GPUs with a batch of 32 each (128 in all), which was less accurate, and at most 2% ahead).",
        ),
        ({1: 50, 2: 101, 4: 100}, {1: 0.9, 2: 0.905, 4: 0.902}, "87%."),
        (
            {1: 50, 2: 100, 4: 103},
            {1: 0.9, 2: 0.9, 4: 0.8905},
            "58% (61% for 2 GPUs with a batch of 32 each (64 in all), which was 3.0% behind); the probability that"
            " its accuracy is within the margin is 60%.",
        ),
        (
            {1: 50, 2: 100, 4: 400},
            {1: 0.9, 2: 0.8905, 4: 0.8895},
            "36% (40% for 4 GPUs with a batch of 32 each (128 in all), which is more likely than not to miss the"
            " margin); the probability that its accuracy is within the margin is 60%.",
        ),
    ],
)
def test_a_rival_that_is_likelier_to_be_the_best_is_told_with_why_it_is_not_the_one(
    record_of: RecordOf, speeds: dict[int, float], accuracies: dict[int, float], told: str
) -> None:
    sway = {1: (0, 0.03, -0.03), 2: (0.03, -0.03, 0), 4: (-0.03, 0, 0.03)}
    noise = {1: (0, 0, 0), 2: (0.003, -0.003, 0), 4: (-0.003, 0, 0.003)}
    records = [
        record_of(g, s, metrics=measured(speeds[g] * (1 + sway[g][s]), accuracies[g] + noise[g][s] + s / 1000))
        for g in speeds
        for s in range(3)
    ]
    found = decided(records)
    doubt = f"Provisional: the probability that the chosen cell is the best, or within 2% of the best, is {told}"
    assert found.sentence.partition(" a batch of 32. ")[2] == doubt


@pytest.mark.parametrize(("steps", "doubtful"), [(1, True), (9, True), (10, False), (None, False)])
def test_accuracies_after_a_few_steps_are_a_doubt(record_of: RecordOf, steps: int | None, doubtful: bool) -> None:
    few = {} if steps is None else {"steps": steps}
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000) | few) for g in (1, 2) for s in range(3)]
    told = [doubt for doubt in decided(records).doubts if "an accuracy says little" in doubt]
    assert bool(told) is doubtful
    assert steps != 1 or told == ["some cells were trained for only 1 step, after which an accuracy says little"]
