"""The order of a sweep's rounds, with a session that only takes notes."""

from types import SimpleNamespace

from orchestrator import phases, rounds
from orchestrator.plan import Plan
from orchestrator.rounds import Rounds
from sweeps.feasibility import Node
from sweeps.sweep import Sweep, trials
from tests.unit.sweeps.test_sweep import setup

NODES = (Node(name="a", cpus=1, gpus=0),)
TRIALS = trials(Sweep(name="s", axes={"device_batch_size": [8, 16], "seed": [0, 1, 2]}), lambda axes: setup())


class Notes:
    def __init__(self):
        self.told, self.stopped = [], False

    def stopping(self):
        return self.stopped

    def to_run_again(self):
        return []

    def left_out(self, trial, outcome):
        self.told.append((trial.seed, outcome.skipped_by))

    def found_spoiled(self, trials):
        self.told.append(("spoiled", len(trials)))


def made(monkeypatch, *, asked=(), spoiled=(), wait_s=0.0, phased=True):
    """Rounds whose phases ask for these cells, one after the other, and whose timings were spoiled in these trials."""
    cells = iter([frozenset(each) for each in asked])
    monkeypatch.setattr(phases, "still_open", lambda *_: phases.Open(cells=next(cells, frozenset()), answer="that"))
    monkeypatch.setattr(rounds, "once_more", lambda *_, **__: list(spoiled))
    request = SimpleNamespace(phases=phased, wait_s=wait_s, rerun_invalid=0.1)
    notes = Notes()
    return Rounds(request, Plan.of(TRIALS, {}, NODES, "none"), notes, dict), notes


def seeds(round_of):
    return sorted(trial.seed for trial in round_of)


def test_probes_then_seeds_of_open_cells_then_the_rest_is_skipped_then_what_was_spoiled(monkeypatch):
    cell = TRIALS[0].cell_id
    source, notes = made(monkeypatch, asked=[{cell}, {cell}], spoiled=TRIALS[:1])
    assert seeds(source.first) == [0, 0]
    second, third = source.next([]), source.next([])
    assert [(each.cell_id, each.seed) for each in (*second, *third)] == [(cell, 1), (cell, 2)]
    assert source.next([]) == TRIALS[:1] and notes.told == [(1, "phases"), (2, "phases"), ("spoiled", 1)]
    assert not source.next([])


def test_without_phases_there_is_one_round(monkeypatch):
    source, notes = made(monkeypatch, phased=False)
    assert len(source.first) == 6 and not source.next([]) and not notes.told


def test_what_was_left_out_is_told_before_anything_else_is_decided(monkeypatch):
    source, notes = made(monkeypatch)
    source.next([(TRIALS[5], SimpleNamespace(skipped_by="budget"))])
    assert notes.told[0] == (TRIALS[5].seed, "budget")


def test_after_a_signal_there_is_no_other_round(monkeypatch):
    source, notes = made(monkeypatch, asked=[{TRIALS[0].cell_id}], spoiled=TRIALS[:1])
    notes.stopped = True
    assert not source.next([]) and not notes.told
