"""Prospects from records: who is chosen, and who may yet be."""

from dataclasses import replace

import pytest

from orchestrator.journal.durations import speed
from orchestrator.journal.record import TrialRecord
from orchestrator.plan.prospects import Prospects
from sweeps.status import Status
from tests.unit.orchestrator.plan.probed import BASE, CELLS, TRIALS, request

PROBED = {
    speed(each.axes): {
        "samples_per_s": 100.0 * each.batch.global_batch_size,
        "epoch_s": 8 / each.batch.global_batch_size,
    }
    for each in TRIALS
}


@pytest.fixture
def ended(record_of):
    """The record of a trial by batch, rule and seed, with this validation accuracy."""

    def make(batch, rule, seed, val_accuracy, status=Status.OK, skipped_by="") -> TrialRecord:
        spec = next(t for t in TRIALS if (t.cell_id, t.seed) == (CELLS[batch, rule], seed))
        figures = {"samples_per_s": 100.0 * batch, "samples": 800, "train_s": 8.0 / batch, "val_accuracy": val_accuracy}
        return replace(
            record_of(1, seed, status, batch=batch, lr_rule=rule, metrics=figures, skipped_by=skipped_by),
            trial_id=spec.trial_id,
            cell_id=spec.cell_id,
        )

    return make


def prospects(records, **asked):
    ends = {record.trial_id: record for record in records}
    return Prospects.of(request(**asked), TRIALS, ends, PROBED)


def test_before_anything_has_ended_only_the_baseline_and_the_probes_are_known():
    found = prospects([])
    assert found.baseline == BASE and not found.trained and not found.chosen
    assert found.levels[CELLS[32, "linear"]] == 8 / 32
    assert found.twins == {CELLS[32, "linear"]: CELLS[32, "none"]}  # where the rules' reference batch is


def test_the_fastest_within_the_margin_is_chosen_and_who_falls_far_short_is_not_open(ended):
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records += [ended(32, "none", 1, 0.90), ended(32, "linear", 1, 0.975), ended(16, "none", 1, 0.98)]
    found = prospects(records)
    assert found.chosen == CELLS[32, "linear"] and "linear" in found.answer
    assert found.accuracy == pytest.approx(0.98)
    assert found.open == {CELLS[32, "linear"]}  # the others are slower, or lose .08


@pytest.mark.parametrize("end", [(Status.SKIPPED, "early_stop"), (Status.FAILED, "")])
def test_a_cell_that_lost_a_seed_is_not_chosen_as_the_tables_will_not_either(ended, end):
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records += [ended(32, "none", 1, 0.98), ended(32, "none", 2, 0.90, *end), ended(16, "none", 1, 0.98)]
    found = prospects(records)
    assert found.chosen == CELLS[16, "none"] and CELLS[32, "none"] not in found.open
    assert CELLS[32, "none"] in found.trained and found.out == {CELLS[32, "none"]: end[0]}


def test_where_no_cell_can_be_chosen_by_now_those_that_further_seeds_may_bring_in_are_open(ended):
    """The baseline's trials told no throughput, and so it cannot be chosen itself."""
    untimed = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records = [replace(record, metrics={"val_accuracy": 0.98}) for record in untimed]
    found = prospects([*records, ended(32, "none", 1, 0.965), ended(16, "none", 1, 0.90)])
    assert found.chosen == "" and found.answer == "no cell that can be chosen keeps the margin"
    assert found.open == {CELLS[32, "none"]}  # the other falls far short


def test_a_seed_that_cannot_bring_its_cell_within_the_margin_is_not_worth_being_timed(ended):
    records = [ended(8, "none", seed, 0.97 + seed / 200) for seed in (1, 2, 3)]
    # A first seed is compared with the baseline's same seed, further ones with its mean.
    assert prospects(records).bound(CELLS[32, "none"], 1) == pytest.approx(0.975 - 2 * 0.01)
    assert prospects(records).bound(CELLS[32, "none"], 3) == pytest.approx(0.985 - 2 * 0.01)
    assert prospects(records).bound(CELLS[32, "none"], 7) == pytest.approx(0.98 - 2 * 0.01)
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records += [ended(32, "none", 1, 0.975)]
    assert prospects(records).bound(CELLS[32, "none"], 3) == pytest.approx(2 * (0.98 - 2 * 0.01) - 0.975)
    records += [ended(32, "none", 2, 0.965)]
    assert prospects(records).bound(CELLS[32, "none"], 3) == pytest.approx(3 * (0.98 - 0.01) - 0.975 - 0.965)
    assert prospects(records).bound(BASE, 3) is None


def test_a_spoiled_timing_keeps_no_cell_from_further_seeds(ended):
    """It is measured once more at the end: with a sound one of the baseline alone that would be the answer."""
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    spoiled = ended(32, "none", 1, 0.98)
    spoiled = replace(spoiled, metrics={**spoiled.metrics, "foreign_cpu": 0.9})
    found = prospects([*records, spoiled])
    assert found.chosen == CELLS[32, "none"] and found.open == {CELLS[32, "none"]}


def test_without_a_cell_at_the_reference_batch_the_most_accurate_one_sets_the_bound(ended):
    found = prospects([ended(16, "none", 1, 0.98), ended(32, "none", 1, 0.90)], reference_batch_size=4)
    assert found.baseline == "" and found.accuracy == pytest.approx(0.98)


def test_of_twins_the_one_that_was_trained_stays(ended):
    assert prospects([ended(32, "linear", 1, 0.98)]).twins == {CELLS[32, "none"]: CELLS[32, "linear"]}


def test_with_a_sure_answer_nothing_is_open(ended):
    records = [ended(8, "none", seed, 0.98 + seed / 1e4) for seed in (1, 2, 3)]
    records += [ended(32, "none", seed, 0.981 + seed / 1e4) for seed in (1, 2, 3)]
    records += [ended(16, "none", seed, 0.98 - seed / 1e4) for seed in (1, 2, 3)]
    found = prospects(records)
    assert found.chosen == CELLS[32, "none"] and found.open == frozenset()


def test_who_was_given_up_counts_as_trained_and_who_was_not_asked_for_does_not(ended):
    records = [
        ended(32, "none", 1, 0.2, Status.SKIPPED, "early_stop"),
        ended(16, "none", 1, None, Status.SKIPPED, "phases"),
    ]
    assert prospects(records).trained == {CELLS[32, "none"]}


def test_probes_say_nothing_of_energy_nor_of_the_time_to_a_target():
    assert prospects([], objective="energy").levels == {} == prospects([], target_accuracy=0.9).levels
    assert prospects([], objective="cost").levels
