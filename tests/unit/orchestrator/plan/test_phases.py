"""Prospects from records: who is chosen, and who may yet be."""

from dataclasses import replace

import pytest

from orchestrator.config.settings import BudgetSection
from orchestrator.plan.phases import Prospects, next_trials, probes, skipped
from orchestrator.store.grouping_keys import same_speed
from sweeps.metric import Target
from sweeps.status import Status
from sweeps.sweep import Sweep, trials
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request as shipped_request
from tests.unit.sweeps.setups import setup

PROBE = {"budget": {"epochs": None, "steps": 10}, "trainable": {"window_s": 0.3}}
AXES = {"device_batch_size": [8, 16, 32], "lr_rule": ["none", "linear"], "seed": [3, 1, 2]}
PLAIN = trials(Sweep(name="s", axes=AXES), lambda axes: setup())
TRIALS = [
    replace(trial, config={**trial.config, "budget": {"epochs": 2}, "trainable": {"window_s": 2.0, "probe": PROBE}})
    for trial in PLAIN
]
CELLS = {(trial.batch.global_batch_size, trial.lr.rule): trial.cell_id for trial in TRIALS}
BASE = CELLS[8, "none"]
TARGET = Target(metric="val_accuracy", value=0.9, higher_is_better=True)
LEVELS = {cell: 1 / batch for (batch, _), cell in CELLS.items()}


def request(**changes):
    given = {"reference_batch_size": 8, "margin": 0.01, "budget": BudgetSection(epochs=None)}
    axes = {"device_batch_size": [8, 16, 32], "lr_rule": ["none", "linear"]}
    return shipped_request(**given | {"axes": axes} | changes)


def told(asked):
    return sorted((trial.batch.global_batch_size, trial.lr.rule, trial.seed) for trial in asked)


def test_every_speed_is_probed_once():
    prospect = probes(TRIALS, set())
    assert sorted(trial.batch.global_batch_size for trial in prospect) == [8, 16, 32]
    assert prospect[0].config["budget"]["steps"] == 10 and prospect[0].config["trainable"]["window_s"] == 0.3
    assert prospect[0].measures == TRIALS[0].trial_id != prospect[0].trial_id
    assert len(probes(TRIALS, {same_speed(prospect[0].axes)})) == 2
    assert probes(PLAIN, set()) == []


def test_baseline_is_trained_first_with_all_seeds():
    prospects = Prospects(baseline=BASE, levels=LEVELS)
    assert told(next_trials(TRIALS, prospects)) == [(8, "none", seed) for seed in (1, 2, 3)]


def test_fastest_speed_is_next_with_one_seed_per_cell():
    prospects = Prospects(baseline=BASE, levels=LEVELS, trained=frozenset([BASE]), chosen=BASE, first_bound=0.88)
    waiting = [trial for trial in TRIALS if trial.cell_id != BASE]
    asked = next_trials(waiting, prospects)
    assert told(asked) == [(32, "linear", 1), (32, "none", 1)]
    assert asked[0].config["trainable"]["give_up_below"] == 0.88
    assert asked[0].trial_id in {trial.trial_id for trial in waiting}


def test_further_seed_has_a_bound():
    best, bounds = CELLS[32, "none"], {CELLS[32, "none"]: 0.97}
    prospects = Prospects(
        levels=LEVELS, trained=frozenset(LEVELS), chosen=best, may_still_win=frozenset([best]), bounds=bounds
    )
    (asked,) = next_trials([trial for trial in TRIALS if trial.seed != 1], prospects)
    assert asked.config["trainable"]["give_up_below"] == 0.97


def test_cells_with_slower_probes_are_skipped():
    best = CELLS[32, "none"]
    prospects = Prospects(
        levels=LEVELS, trained=frozenset([best]), chosen=best, answer="the large batch", may_still_win=frozenset([best])
    )
    asked = next_trials([trial for trial in TRIALS if (trial.cell_id, trial.seed) != (best, 1)], prospects)
    assert told(asked) == [(32, "linear", 1)]  # as fast by its probe
    trained = replace(prospects, trained=frozenset([best, CELLS[32, "linear"]]))
    assert told(next_trials([trial for trial in TRIALS if trial.seed != 1], trained)) == [(32, "none", 2)]
    outcome = skipped(TRIALS[0], prospects)
    assert (outcome.status, outcome.skipped_by) == (Status.SKIPPED, "phases")
    assert outcome.note.startswith("sweep.phases: by its probe ") and outcome.note.endswith("(the large batch)")
    equivalent = replace(prospects, equivalent_cells={TRIALS[0].cell_id: best})
    assert "plainer rule" in skipped(TRIALS[0], equivalent).note
    lost = replace(trained, trained=frozenset(LEVELS), ruled_out={TRIALS[0].cell_id: Status.OOM})
    note = skipped(TRIALS[0], lost).note
    assert "ended as oom" in note and note.endswith("(the large batch)")
    assert "further seeds" in skipped(TRIALS[0], replace(trained, trained=frozenset(LEVELS))).note


def test_every_cell_gets_a_seed_without_probes():
    assert len(next_trials(PLAIN, Prospects())) == 6
    assert {trial.seed for trial in next_trials(PLAIN, Prospects())} == {1}


def test_one_of_several_equivalent_cells_is_trained():
    asked = next_trials(PLAIN, Prospects(equivalent_cells={CELLS[8, "linear"]: BASE}))
    assert {trial.cell_id for trial in asked} == set(CELLS.values()) - {CELLS[8, "linear"]}


def test_nothing_runs_once_the_answer_is_sure():
    prospects = Prospects(trained=frozenset(LEVELS), chosen=BASE, levels=LEVELS)
    assert next_trials([trial for trial in TRIALS if trial.seed != 1], prospects) == []


PROBED = {
    same_speed(trial.axes): {
        "samples_per_s": 100.0 * trial.batch.global_batch_size,
        "epoch_s": 8 / trial.batch.global_batch_size,
    }
    for trial in TRIALS
}


@pytest.fixture
def ended():
    """The record of a trial by batch, rule and seed, with this validation accuracy."""

    def make(batch, rule, seed, val_accuracy, status=Status.OK, skipped_by=""):
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


def test_only_baseline_and_probes_are_known_at_first():
    prospect = prospects([])
    assert prospect.baseline == BASE and not prospect.trained and not prospect.chosen
    assert prospect.levels[CELLS[32, "linear"]] == 8 / 32
    assert prospect.equivalent_cells == {CELLS[32, "linear"]: CELLS[32, "none"]}  # where the rules' reference batch is


def test_fastest_cell_within_the_margin_is_chosen(ended):
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records += [ended(32, "none", 1, 0.90), ended(32, "linear", 1, 0.975), ended(16, "none", 1, 0.98)]
    prospect = prospects(records)
    assert prospect.chosen == CELLS[32, "linear"] and "linear" in prospect.answer
    assert prospect.first_bound == pytest.approx(0.98 - 2 * 0.01)
    assert prospect.may_still_win == {CELLS[32, "linear"]}  # the others are slower, or lose .08


@pytest.mark.parametrize("end", [(Status.SKIPPED, "early_stop"), (Status.FAILED, "")])
def test_cell_with_a_lost_seed_is_not_chosen(ended, end):
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records += [ended(32, "none", 1, 0.98), ended(32, "none", 2, 0.90, *end), ended(16, "none", 1, 0.98)]
    prospect = prospects(records)
    assert prospect.chosen == CELLS[16, "none"] and CELLS[32, "none"] not in prospect.may_still_win
    assert CELLS[32, "none"] in prospect.trained and prospect.ruled_out == {CELLS[32, "none"]: end[0]}


def test_cells_that_further_seeds_may_bring_in_are_open(ended):
    """The baseline's trials told no throughput, and so it cannot be chosen itself."""
    untimed = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records = [replace(record, metrics={"val_accuracy": 0.98}) for record in untimed]
    prospect = prospects([*records, ended(32, "none", 1, 0.965), ended(16, "none", 1, 0.90)])
    assert prospect.chosen == "" and prospect.answer.startswith("no cell ")
    assert prospect.may_still_win == {CELLS[32, "none"]}  # the other falls far short


def test_seed_far_below_the_margin_is_not_timed(ended):
    records = [ended(8, "none", seed, 0.97 + seed / 200) for seed in (1, 2, 3)]
    # A first seed is compared with the baseline's same seed, further ones with its mean.
    prospect = prospects(records)
    bounds = [prospect.bound(CELLS[32, "none"], seed) for seed in (1, 3, 7)]
    assert bounds == pytest.approx([0.975 - 2 * 0.01, 0.985 - 2 * 0.01, 0.98 - 2 * 0.01])
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    records += [ended(32, "none", 1, 0.975)]
    assert prospects(records).bound(CELLS[32, "none"], 3) == pytest.approx(2 * (0.98 - 2 * 0.01) - 0.975)
    records += [ended(32, "none", 2, 0.965)]
    prospect = prospects(records)
    assert prospect.bound(CELLS[32, "none"], 3) == pytest.approx(3 * (0.98 - 0.01) - 0.975 - 0.965)
    assert prospect.bound(BASE, 3) is None


def test_disturbed_timing_does_not_close_a_cell(ended):
    """It is measured once more at the end: with a sound one of the baseline alone that would be the answer."""
    records = [ended(8, "none", seed, 0.98) for seed in (1, 2, 3)]
    disturbed = ended(32, "none", 1, 0.98)
    disturbed = replace(disturbed, metrics={**disturbed.metrics, "foreign_cpu": 0.9})
    prospect = prospects([*records, disturbed])
    assert prospect.chosen == CELLS[32, "none"] and prospect.may_still_win == {CELLS[32, "none"]}


def test_most_accurate_cell_sets_the_bound_without_a_reference(ended):
    prospect = prospects([ended(16, "none", 1, 0.98), ended(32, "none", 1, 0.90)], reference_batch_size=4)
    assert prospect.baseline == "" and prospect.first_bound == pytest.approx(0.98 - 2 * 0.01)


def test_trained_cell_is_kept_among_equivalent_cells(ended):
    assert prospects([ended(32, "linear", 1, 0.98)]).equivalent_cells == {CELLS[32, "none"]: CELLS[32, "linear"]}


def test_no_cell_is_open_once_the_answer_is_sure(ended):
    records = [ended(8, "none", seed, 0.98 + seed / 1e4) for seed in (1, 2, 3)]
    records += [ended(32, "none", seed, 0.981 + seed / 1e4) for seed in (1, 2, 3)]
    records += [ended(16, "none", seed, 0.98 - seed / 1e4) for seed in (1, 2, 3)]
    prospect = prospects(records)
    assert prospect.chosen == CELLS[32, "none"] and prospect.may_still_win == frozenset()


def test_cells_stopped_early_count_as_trained(ended):
    records = [
        ended(32, "none", 1, 0.2, Status.SKIPPED, "early_stop"),
        ended(16, "none", 1, None, Status.SKIPPED, "phases"),
    ]
    assert prospects(records).trained == {CELLS[32, "none"]}


def test_probes_do_not_predict_energy_or_time_to_target():
    assert prospects([], objective="energy").levels == {} == prospects([], target=TARGET).levels
    assert prospects([], objective="cost").levels
