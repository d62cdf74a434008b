import ctypes
import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.ray import rank as ray_rank
from orchestrator.backends.ray.rank import Rank, _output_to
from orchestrator.telemetry.sampler import Sampling
from sweeps.rank_exit import RankExit
from tests.unit.trainables import ranks


def test_output_goes_to_the_log_during_the_trial(tmp_path, capfd):
    log, c_library = tmp_path / "rank0.log", ctypes.CDLL(None)
    c_library.printf(b"before\n")
    for _ in range(2):
        with _output_to(log):
            os.write(1, b"out\n")
            os.write(2, b"err\n")
            c_library.printf(b"of C\n")
    os.write(1, b"after\n")
    assert log.read_text() == "out\nerr\nof C\n" * 2
    assert capfd.readouterr() == ("before\nafter\n", "")
    assert not sys.stdout.closed


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Let a rank change the environment, and know its node without a cluster."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(ray_rank, "_node_id", lambda: "here")


def quick(request, emit, should_stop, observe, mailbox):
    """A trial that reports one row and says whether it was asked to stop."""
    emit({"epoch": 1})
    return RankExit(rank=0, metrics={"asked_to_stop": should_stop()})


def test_calls_for_another_turn_are_ignored(tmp_path, monkeypatch):
    """As where an answer is so late that the next trial has begun, or the question so early that it has not."""
    monkeypatch.setattr(ray_rank, "RANK_ENTRY", f"{__name__}:quick")
    rank = Rank(1, 0)
    request = ranks.request(trial_dir=tmp_path)
    rank.run(1, request, None, Sampling(hz=0))
    assert (rank.rows(1, 0), rank.rows(1, 1), rank.moves(1)) == ([{"epoch": 1}], [], 2)
    assert (rank.rows(2, 0), rank.moves(2)) == ([], 0)
    rank.stop(1)
    rank_exit, *_ = rank.run(2, request, None, Sampling(hz=0))
    assert not rank_exit.metrics["asked_to_stop"] and rank.rows(1, 0) == []


def test_stop_counts_for_its_own_trial_at_any_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_rank, "RANK_ENTRY", f"{__name__}:quick")
    rank, request, lines = Rank(1, 0), ranks.request(trial_dir=tmp_path), set[int]()

    def before_each_line(frame, event, argument):
        if frame.f_code is not Rank.run.__code__:
            return None
        rank.stop(1)  # too late
        lines.add(frame.f_lineno)
        return before_each_line

    rank.run(1, request, None, Sampling(hz=0))
    tracing = sys.gettrace()
    sys.settrace(before_each_line)
    try:
        rank_exit, *_ = rank.run(2, request, None, Sampling(hz=0))
    finally:
        sys.settrace(tracing)
    assert not rank_exit.metrics["asked_to_stop"] and len(lines) > 5
    rank.stop(3)  # sooner than the call of `run` arrives
    rank_exit, *_ = rank.run(3, request, None, Sampling(hz=0))
    assert rank_exit.metrics["asked_to_stop"] and rank_exit.stopped


def test_only_other_nodes_make_the_results_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_rank, "RANK_ENTRY", f"{__name__}:quick")
    log = tmp_path / "deleted" / "trials" / "t" / "rank0.log"
    request = ranks.request(trial_dir=log.parent)
    with pytest.raises(FileNotFoundError):
        Rank(1, 0).run(1, replace(request, driver_node="here"), None, Sampling(hz=0))
    Rank(1, 0).run(1, replace(request, driver_node="elsewhere"), None, Sampling(hz=0))
    assert log.exists()


def test_running_trial_can_be_stopped(tmp_path, monkeypatch):
    rank = Rank(1, 0)

    def stopped(request, emit, should_stop, observe, mailbox):
        rank.stop(2)
        before = should_stop()
        rank.stop(1)
        return RankExit(rank=0, metrics={"asked_to_stop": [before, should_stop()]})

    monkeypatch.setattr(ray_rank, "resolve_name", lambda name: stopped)
    request = ranks.request(trial_dir=tmp_path)
    rank_exit, *_ = rank.run(1, request, None, Sampling(hz=0))
    assert rank_exit.metrics["asked_to_stop"] == [False, True] and rank_exit.stopped


class Peer:
    """The actor of another rank; it notes what its methods are called with."""

    def __init__(self):
        self.deliver, self.calls = self, list[Any]()

    def options(self, **options):
        return self

    def remote(self, *given):
        self.calls.append(given)


def test_messages_reach_the_turn_that_they_are_about(tmp_path, monkeypatch):
    rank, peer = Rank(1, 0), Peer()
    received = []

    def exchange(request, emit, should_stop, observe, mailbox):
        rank.deliver(2, {"for": 2})  # of a rank that has begun the next run
        received.extend([*mailbox.received(), *mailbox.received()])
        mailbox.send(1, {"from": 0})
        return RankExit(rank=0)

    monkeypatch.setattr(ray_rank, "resolve_name", lambda name: exchange)
    request = ranks.request(trial_dir=tmp_path)
    rank.deliver(1, {"for": 1})
    for run_number in (1, 2, 3):
        rank.run(run_number, request, None, Sampling(hz=0), [rank, peer])
        rank.deliver(run_number, {"too": "late"})
    assert received == [{"for": 1}, {"for": 2}, {"for": 2}]
    assert peer.calls == [(run_number, {"from": 0}) for run_number in (1, 2, 3)]
