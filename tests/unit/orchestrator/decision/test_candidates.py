"""Cells that may not be chosen: for their timing, their status, or for what they do not report."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.store.record import TrialRecord
from orchestrator.tables.recommendation import recommendation_markdown
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import RecordOf, decided, measured

SHORT = {"window_s": 0.6, "window_steps": 600}


LONG = {"window_s": 2.5, "window_steps": 600}


def test_nothing_is_recommended_while_a_cell_seems_better_whose_timing_is_not_valid(record_of: RecordOf) -> None:
    """A fast cell's window is the first to be too short: whoever reads the first words would take the slower one."""
    fast = [record_of(1, s, metrics=measured(400, 0.9) | SHORT) for s in range(3)]
    slow = [record_of(2, s, metrics=measured(100, 0.9) | LONG) for s in range(3)]
    found = decided([*fast, *slow])
    assert (found.cell_id, found.name, found.provisional, found.more_seeds) == (None, "", True, ())
    first, second = ("1 GPU with a batch of 32", "2 GPUs with a batch of 32 each (64 in all)")
    assert found.lead == (
        f"No recommendation yet: the best cell seems to be {first}, whose time for the fixed budget is 15.0 s,"
        f" compared with 60.0 s for {second}; but its timing is not valid (timed window below 2 s or 50 steps). To find"
        " out, give the trials a longer budget (budget.epochs, or the length that is set instead), or set"
        " trainable.window_s, if the trainable has that key."
    )
    assert found.further == ("Not considered: 1 cell has no valid timing.",)
    assert "(chosen)" not in recommendation_markdown(found, "demo")
    assert [(each.gpus, each.why_none) for each in found.gpu_counts] == [
        (1, "no cell has a valid time for the fixed budget"),
        (2, ""),
    ]
    assert {each.cell_id: each.why_not for each in found.shortlist}["2-32-none"] == (
        f"the best cell seems to be {first}, whose timing is not valid"
    )


def test_what_seems_better_may_train_worse_where_only_test_accuracies_are_known(record_of: RecordOf) -> None:
    fast = [record_of(1, s, metrics=measured(400, 0.9) | SHORT) for s in range(3)]
    slow = [record_of(2, s, metrics=measured(100, 0.9) | LONG) for s in range(3)]
    tested = [replace(r, metrics={**r.metrics, "val_accuracy": None, "accuracy": 0.9}) for r in (*fast, *slow)]
    assert decided(tested).further[:2] == (
        "Whether it trains as well as the others is not known, because no trial reported a validation accuracy.",
        "Accuracy on the test set is not used to choose; report a val_accuracy, too.",
    )


@pytest.mark.parametrize(
    ("rate", "val_accuracy", "chosen"),
    [(101.0, 0.9, "2-32-none"), (103.0, 0.9, None), (400.0, 0.88, "2-32-none"), (400.0, 0.892, None)],
)
def test_a_disturbed_cell_seems_better_beyond_a_tie_and_within_the_margin(
    record_of: RecordOf, rate: float, val_accuracy: float, chosen: str | None
) -> None:
    slow = [record_of(1, s, metrics=measured(50, 0.9 + s / 1000) | LONG) for s in range(3)]
    slow += [record_of(2, s, metrics=measured(100, 0.9 + s / 1000) | LONG) for s in range(3)]
    disturbed = [record_of(4, s, metrics=measured(rate, val_accuracy + s / 1000) | SHORT) for s in range(3)]
    found = decided([*slow, *disturbed])
    assert found.cell_id == chosen and found.lead.startswith(
        "Use 2 GPUs" if chosen else "No recommendation yet: the best cell seems to be 4 GPUs"
    )


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"metrics": {"foreign_cpu": 0.2}}, "run it again (rerun=2-32-none), or with further seeds, while nothing"),
        ({"timing": "shared"}, "let each trial have its devices to itself (resources.timing=auto)."),
        ({"timing": "shared", "metrics": SHORT}, "let each trial have its devices to itself"),
        ({"metrics": SHORT | {"foreign_cpu": 0.2}}, "give the trials a longer budget"),
        (
            {"note": "timed window below 2 s, they said", "metrics": {"foreign_cpu": 0.2}},
            "run it again (rerun=2-32-none)",
        ),
    ],
)
def test_the_remedy_is_one_against_what_disturbed_the_timing(
    record_of: RecordOf, fields: dict[str, Any], remedy: str
) -> None:
    valid = [record_of(1, s, metrics=measured(100, 0.9)) for s in range(3)]
    given = {**fields, "metrics": measured(200, 0.9) | fields.get("metrics", {})}
    found = decided([*valid, *(record_of(g, s, **given) for g in (2, 4, 8, 16) for s in range(3))])
    assert found.cell_id is None and f"To find out, {remedy}" in found.lead
    named = "; ".join(f"{gpus} GPUs with a batch of 32 each ({32 * gpus} in all), 30.0 s" for gpus in (4, 8))
    assert found.further[0] == f"Other cells without a valid timing seem better, too: {named}; 1 more."


def test_cells_that_could_not_be_chosen_are_told_where_none_is(record_of: RecordOf) -> None:
    good = [record_of(1, s, metrics=measured(100, 0.9), provenance={"device_model": f"GPU {s}"}) for s in range(3)]
    bad = [record_of(2, s, metrics=measured(200, 0.5), provenance={"device_model": "GPU 0"}) for s in range(3)]
    assert decided([*good, *bad]).sentence == (
        "No recommendation: the validation accuracy of every cell that could be chosen is likely to be more than 0.01"
        " below that of the baseline (1 × GPU 0 + GPU 1 + GPU 2 with a batch of 32)."
        " Not considered: 1 cell has no valid timing."
    )


def test_invalid_timings_stand_back_behind_valid_ones(record_of: RecordOf) -> None:
    records = [record_of(1, s, metrics=measured(100, 0.9)) for s in range(3)]
    shared = [record_of(2, s, timing="shared", metrics=measured(101, 0.9)) for s in range(3)]
    assert decided(records + shared).cell_id == "1-32-none"


def test_where_no_timing_is_valid_that_is_said_first_and_then_what_seems_the_best(record_of: RecordOf) -> None:
    """A shared laptop: all seems well, and every second of it was measured beside somebody else's work."""
    busy = {"foreign_cpu": 0.3}
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000, **busy)) for g in (1, 2) for s in range(3)]
    found = decided([*records, record_of(4, 0, Status.OOM, note="memory")])
    assert (found.cell_id, found.provisional, found.doubts, found.commands) == (None, True, (), ())
    assert found.lead == (
        "No recommendation yet, because no timing is valid (others took 30% of the cores' time). To get one, run it"
        " again (rerun=all), or with further seeds, while nothing else uses the machine."
    )
    assert found.further == (
        "So far the best cell seems to be 2 GPUs with a batch of 32 each (64 in all): training for the fixed budget"
        " takes 30.0 s (baseline: 60.0 s), costs 60.0 GPU-seconds (baseline: 60.0), and validation accuracy is the same"
        " as the baseline's (up to 0.01 lower is allowed).",
        "The baseline is 1 GPU with a batch of 32.",
        "Not considered: 1 cell is not ok.",
    )
    assert {each.why_not for each in found.shortlist} == {"no timing is valid"}
    assert "(chosen)" not in recommendation_markdown(found, "demo")


def test_before_anything_is_run_again_the_sweep_is_to_be_finished(record_of: RecordOf) -> None:
    busy = [record_of(2, s, metrics=measured(200, 0.9, foreign_cpu=0.3)) for s in range(3)]
    valid = [record_of(1, s, metrics=measured(100, 0.9)) for s in range(3)]
    for records in (busy, [*valid, *busy]):
        lead = decided(records, unfinished=True).lead
        assert "let the sweep finish: the same command continues it" in lead and "rerun" not in lead
    short = [record_of(2, s, metrics=measured(200, 0.9) | SHORT) for s in range(3)]
    assert "give the trials a longer budget" in decided(short, unfinished=True).lead


def test_one_valid_timing_does_not_make_less_of_the_others(record_of: RecordOf) -> None:
    """Whether or not a slow cell's timing is valid, a fast cell without one is what seems the best."""
    fast = [record_of(2, s, timing="shared", metrics=measured(200, 0.9)) for s in range(3)]
    for timing in ("shared", "device"):
        found = decided([*(record_of(1, s, timing=timing, metrics=measured(100, 0.9)) for s in range(3)), *fast])
        assert found.cell_id is None and "the best cell seems to be 2 GPUs" in found.sentence


def test_accuracies_are_compared_with_a_baseline_of_no_valid_timing(record_of: RecordOf) -> None:
    shared = [record_of(1, s, timing="shared", metrics=measured(100, 0.9 + s / 1000)) for s in range(3)]
    good = [record_of(2, s, metrics=measured(200, 0.9 + s / 1000)) for s in range(3)]
    bad = [record_of(4, s, metrics=measured(400, 0.2 + s / 1000)) for s in range(3)]
    found = decided(shared + good + bad)
    assert (found.cell_id, found.baseline_cell_id) == ("2-32-none", "1-32-none")
    assert found.sentence == (
        "Use 2 GPUs with a batch of 32 each (64 in all): training for the fixed budget takes 30.0 s, costs"
        " 60.0 GPU-seconds, and validation accuracy is the same as the baseline's (up to 0.01 lower is allowed)."
        " The baseline is 1 GPU with a batch of 32."
    )
    assert found.reasons[0].startswith("Of 2 cells") and "1 cell has no valid timing" in found.reasons[-1]
    assert {point.cell_id for point in found.front} == {"2-32-none", "4-32-none"}


def test_what_was_skipped_is_not_told_as_if_it_had_failed(record_of: RecordOf) -> None:
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000)) for g in (1, 2) for s in range(3)]
    records += [record_of(4, 0, Status.SKIPPED, note="a rule"), record_of(8, 0, Status.OOM, note="memory")]
    assert "Not considered: 1 cell is not ok; 1 cell was skipped." in decided(records).reasons


SAME = "at the reference batch, where rules and warm-ups change nothing, and so the same training as another one"


@pytest.mark.parametrize("seeds", [1, 3])
def test_of_cells_that_are_one_training_the_plainest_stands_for_all(record_of: RecordOf, seeds: int) -> None:
    """By its one seed `linear` was 22% faster, by chance alone; at another batch it is another training."""
    rates = {(32, "linear"): 122, (32, "none"): 100, (32, "adascale"): 90, (64, "none"): 50, (64, "linear"): 51}
    records = [
        record_of(1, s, batch=batch, lr_rule=rule, metrics=measured(rate, 0.9 + s / 1000))
        for (batch, rule), rate in rates.items()
        for s in range(seeds)
    ]
    found = decided(records)
    assert (found.cell_id, found.baseline_cell_id) == ("1-32-none", "1-32-none")
    assert f"Not considered: 1 cell is {SAME}." in found.reasons and found.reasons[0].startswith("Of 4 cells")
    assert "1-32-linear" not in {each.cell_id for each in (*found.front, *found.shortlist)}


def test_a_valid_timing_stands_for_the_same_training_without_one(record_of: RecordOf) -> None:
    disturbed = [record_of(1, s, metrics=measured(400, 0.9 + s / 1000) | SHORT) for s in range(3)]
    valid = [record_of(1, s, lr_rule="linear", metrics=measured(100, 0.9 + s / 1000) | LONG) for s in range(3)]
    valid += [record_of(2, s, metrics=measured(50, 0.9 + s / 1000) | LONG) for s in range(3)]
    found = decided([*disturbed, *valid])
    assert (found.cell_id, found.baseline_cell_id) == ("1-32-linear", "1-32-linear")


def test_warm_ups_change_nothing_at_the_reference_batch_and_much_beyond(record_of: RecordOf) -> None:
    def records(batch: int, lr: float) -> list[TrialRecord]:
        return [
            record_of(
                1, s, batch=batch, lr=lr, axes={"warmup_epochs": w}, metrics=measured(batch + w, 0.9 + (s + w) / 1000)
            )
            for w in (0, 5)
            for s in range(3)
        ]

    axes = {"axes": {"device_batch_size": "device_batch_size", "warmup_epochs": "warmup_epochs"}}
    assert f"Not considered: 1 cell is {SAME}." in decided(records(32, 0.1), **axes).reasons
    assert not any("Not considered" in line for line in decided([*records(64, 0.2)], **axes).reasons)
