"""The order of a sweep's rounds, with a session that only takes notes."""

from types import SimpleNamespace

from orchestrator import phases, rounds
from orchestrator.plan import Plan
from orchestrator.prospects import Prospects
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


class Nothing:
    """A journal without ends."""

    def ends(self):
        return {}

    def probes(self):
        return {}


def made(monkeypatch, *, asked=(), spoiled=(), wait_s=0.0, phased=True):
    """Rounds whose phases ask for these trials, one round after the other, and whose timings were spoiled in these."""
    rounds_of = iter(asked)
    monkeypatch.setattr(phases, "probes", lambda trials, probed: TRIALS[:1])
    monkeypatch.setattr(phases, "next_trials", lambda waiting, prospects: next(rounds_of, []))
    monkeypatch.setattr(rounds.Prospects, "of", lambda *_: Prospects(answer="that"))
    monkeypatch.setattr(rounds, "once_more", lambda *_, **__: list(spoiled))
    request = SimpleNamespace(phases=phased, search=None, wait_s=wait_s, rerun_invalid=0.1)
    notes = Notes()
    return Rounds(request, Plan.of(TRIALS, {}, NODES, "none"), notes, Nothing()), notes


def test_probes_then_what_is_asked_for_then_the_rest_is_skipped_then_what_was_spoiled(monkeypatch):
    source, notes = made(monkeypatch, asked=[TRIALS[:2], TRIALS[2:3]], spoiled=TRIALS[:1])
    assert source.first == TRIALS[:1] and not notes.told
    assert [source.next([]), source.next([])] == [TRIALS[:2], TRIALS[2:3]]
    assert source.next([]) == TRIALS[:1]
    assert notes.told == [*[(each.seed, "phases") for each in TRIALS[3:]], ("spoiled", 1)]
    assert not source.next([])


def test_without_phases_there_is_one_round(monkeypatch):
    source, notes = made(monkeypatch, phased=False)
    assert len(source.first) == 6 and not source.next([]) and not notes.told


def test_what_was_left_out_is_told_before_anything_else_is_decided(monkeypatch):
    source, notes = made(monkeypatch)
    source.next([(TRIALS[5], SimpleNamespace(skipped_by="budget"))])
    assert notes.told[0] == (TRIALS[5].seed, "budget")


def test_after_a_signal_there_is_no_other_round(monkeypatch):
    source, notes = made(monkeypatch, asked=[TRIALS[:1]], spoiled=TRIALS[:1])
    notes.stopped = True
    assert not source.next([]) and not notes.told
