from dataclasses import replace

from orchestrator.journal.durations import speed
from orchestrator.plan.phases import next_trials, probes, skipped
from orchestrator.plan.prospects import Prospects
from sweeps.status import Status
from tests.unit.orchestrator.plan.probed import BASE, CELLS, PLAIN, TRIALS

LEVELS = {cell: 1 / batch for (batch, _), cell in CELLS.items()}


def told(asked):
    return sorted((each.batch.global_batch_size, each.lr.rule, each.seed) for each in asked)


def test_every_speed_is_probed_once_and_shortly():
    found = probes(TRIALS, set())
    assert sorted(each.batch.global_batch_size for each in found) == [8, 16, 32]
    assert found[0].config["budget"]["steps"] == 10 and found[0].config["trainable"]["window_s"] == 0.3
    assert found[0].probes == TRIALS[0].trial_id != found[0].trial_id
    assert len(probes(TRIALS, {speed(found[0].axes)})) == 2
    assert probes(PLAIN, set()) == []


def test_the_baseline_comes_first_with_all_its_seeds():
    prospects = Prospects(baseline=BASE, levels=LEVELS)
    assert told(next_trials(TRIALS, prospects)) == [(8, "none", seed) for seed in (1, 2, 3)]


def test_then_the_fastest_speed_one_seed_a_cell_and_none_is_timed_in_vain():
    prospects = Prospects(
        baseline=BASE, levels=LEVELS, trained=frozenset([BASE]), chosen=BASE, accuracy=0.9, margin=0.01
    )
    waiting = [each for each in TRIALS if each.cell_id != BASE]
    asked = next_trials(waiting, prospects)
    assert told(asked) == [(32, "linear", 1), (32, "none", 1)]
    assert asked[0].config["trainable"]["give_up_below"] == 0.9 - 2 * 0.01
    assert asked[0].trial_id in {each.trial_id for each in waiting}


def test_a_further_seed_is_timed_only_where_it_leaves_its_cell_in():
    best, bounds = CELLS[32, "none"], {CELLS[32, "none"]: 0.97}
    prospects = Prospects(levels=LEVELS, trained=frozenset(LEVELS), chosen=best, open=frozenset([best]), bounds=bounds)
    (asked,) = next_trials([each for each in TRIALS if each.seed != 1], prospects)
    assert asked.config["trainable"]["give_up_below"] == 0.97


def test_cells_that_are_slower_by_their_probes_are_left_out():
    best = CELLS[32, "none"]
    prospects = Prospects(
        levels=LEVELS, trained=frozenset([best]), chosen=best, answer="the large batch", open=frozenset([best])
    )
    asked = next_trials([each for each in TRIALS if (each.cell_id, each.seed) != (best, 1)], prospects)
    assert told(asked) == [(32, "linear", 1)]  # as fast by its probe
    trained = replace(prospects, trained=frozenset([best, CELLS[32, "linear"]]))
    assert told(next_trials([each for each in TRIALS if each.seed != 1], trained)) == [(32, "none", 2)]
    outcome = skipped(TRIALS[0], prospects)
    assert (outcome.status, outcome.skipped_by) == (Status.SKIPPED, "phases")
    assert outcome.note == "sweep.phases: by its probe this cell is slower than the answer (the large batch)"
    twin = replace(prospects, twins={TRIALS[0].cell_id: best})
    assert "the same training as that of a cell with a plainer rule" in skipped(TRIALS[0], twin).note
    lost = replace(trained, trained=frozenset(LEVELS), out={TRIALS[0].cell_id: Status.OOM})
    told_why = "sweep.phases: a seed of this cell ended as oom, and so it cannot be the answer (the large batch)"
    assert skipped(TRIALS[0], lost).note == told_why
    assert "further seeds of this cell" in skipped(TRIALS[0], replace(trained, trained=frozenset(LEVELS))).note


def test_without_probes_every_cell_has_a_seed():
    assert len(next_trials(PLAIN, Prospects())) == 6
    assert {each.seed for each in next_trials(PLAIN, Prospects())} == {1}


def test_of_cells_that_train_the_same_one_is_asked_for():
    asked = next_trials(PLAIN, Prospects(twins={CELLS[8, "linear"]: BASE}))
    assert {each.cell_id for each in asked} == set(CELLS.values()) - {CELLS[8, "linear"]}


def test_where_the_answer_is_sure_nothing_is_asked_for():
    prospects = Prospects(trained=frozenset(LEVELS), chosen=BASE, levels=LEVELS)
    assert next_trials([each for each in TRIALS if each.seed != 1], prospects) == []
