"""A search over a grid: what it asks for, when it ends, and that it goes on from what is known."""

import itertools
from dataclasses import replace

import pytest

from orchestrator.config.request import Search
from orchestrator.plan import search
from orchestrator.store.record import TrialRecord
from sweeps.status import Status
from sweeps.sweep import Sweep, trials
from tests.unit.orchestrator.plan.probed import request
from tests.unit.sweeps.setups import setup

pytest.importorskip("optuna")

BATCHES = [2**power for power in range(3, 11)]
AXES = {"device_batch_size": BATCHES, "lr_rule": ["none", "linear", "sqrt"], "seed": [0, 1]}
TRIALS = trials(Sweep(name="s", axes=AXES), lambda axes: setup())


def optuna(cells=6, together=2):
    return Search(name="optuna", cells=cells, together=together)


@pytest.fixture
def ended(record_of):
    """The record of a trial whose time falls with the batch, and whose accuracy falls with it faster and faster."""

    def make(spec, status=Status.OK) -> TrialRecord:
        batch = spec.batch.global_batch_size
        figures = {
            "samples_per_s": 10.0 * batch,
            "samples": 1000,
            "train_s": 100 / batch,
            "val_accuracy": 1 - batch / 2048,
        }
        made = record_of(1, spec.seed, status, batch=batch, lr_rule=spec.lr.rule, metrics=figures)
        return replace(made, trial_id=spec.trial_id, cell_id=spec.cell_id)

    return make


def searched(ended, asked, status=Status.OK):
    """The cells that a whole search tries, round by round."""
    ends, rounds = {}, []
    while True:
        waiting = [each for each in TRIALS if each.trial_id not in ends]
        to_run = search.next_trials(asked, request(), TRIALS, waiting, ends)
        if not to_run:
            return rounds
        rounds.append(sorted({each.cell_id for each in to_run}))
        assert len(to_run) == 2 * len(rounds[-1])
        ends |= {each.trial_id: ended(each, status) for each in to_run}


def test_search_is_deterministic_and_tries_each_cell_once(ended):
    rounds = searched(ended, optuna(cells=5, together=2))
    assert [len(cells) for cells in rounds] == [2, 2, 1]
    assert len(set(itertools.chain(*rounds))) == 5
    assert searched(ended, optuna(cells=5, together=2)) == rounds


def test_search_may_cover_the_grid_and_survives_failures(ended):
    assert len(set(itertools.chain(*searched(ended, optuna(cells=99, together=5))))) == 24
    assert len(searched(ended, optuna(cells=4, together=1), Status.OOM)) == 4


def test_started_cell_is_finished_first(ended):
    first = TRIALS[0]
    waiting = TRIALS[1:]
    to_run = search.next_trials(optuna(), request(), TRIALS, waiting, {first.trial_id: ended(first)})
    assert [(each.cell_id, each.seed) for each in to_run] == [(first.cell_id, 1)]


def test_skipped_trials_may_be_tried_later(ended):
    skipped = {each.trial_id: replace(ended(each, Status.SKIPPED), skipped_by="search") for each in TRIALS}
    assert len(search.next_trials(optuna(cells=3, together=3), request(), TRIALS, TRIALS, skipped)) == 6


@pytest.mark.slow
def test_search_prefers_better_cells(ended):
    """The second half of the tries is better than the first; the batch almost decides the objective of 24 cells."""
    ends, batches = {}, []
    asked = optuna(cells=20, together=1)
    while to_run := search.next_trials(asked, request(), TRIALS, [t for t in TRIALS if t.trial_id not in ends], ends):
        for each in to_run:
            figures = {"samples_per_s": 10.0 * each.batch.global_batch_size, "samples": 1000}
            ends[each.trial_id] = replace(ended(each), metrics=figures)
        batches.append(to_run[0].batch.global_batch_size)
    best_ten = batches[10:15]
    assert sum(best_ten) / 5 > sum(batches[:10]) / 10


def test_untried_trials_are_skipped_by_the_search():
    outcome = search.skipped(optuna())
    assert (outcome.status, outcome.skipped_by) == (Status.SKIPPED, "search")
    assert outcome.note.startswith("sweep.search=optuna: ") and "6 cells" in outcome.note
