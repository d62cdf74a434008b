import time

import pytest
import torch

from studies.slow_down import SlowedReplica, errors, paused
from tests.unit.trainables.inputs.feeds import epoch, source
from tests.unit.trainables.ranks import CONFIG, rendezvous, request, run
from tests.unit.trainables.supervised.test_training import EXACT, trained
from trainables.step.stopwatch import Stopwatch
from trainables.timed_window import device_pause

SLOWED = "studies.slow_down:train"


def slowed(rank, factor):
    return EXACT | {"trainable": EXACT["trainable"] | {"slow_down": {"rank": rank, "factor": factor}}}


@pytest.fixture(scope="module")
def alone():
    return trained(request(shares=(120,), config=EXACT))


@pytest.mark.slow
def test_shares_that_follow_speed_change_no_update(pair, alone):
    asked = {"shares": (60, 60), "config": slowed(1, 3.0), "strategy": "ddp_unequal", "rendezvous": rendezvous()}
    results = pair.call(
        trained, *((request(rank=rank, gang_id="unequal", **asked), SlowedReplica) for rank in range(2))
    )
    for theirs, summary in results:
        for one, two in zip(alone[0], theirs, strict=True):
            assert two == pytest.approx(one, abs=1e-10, rel=0)
        fast, slow = summary["shares"]
        assert fast + slow == 120 and fast > slow
        assert summary["shares"] == results[0][1]["shares"] and len(summary["rank_samples_per_s"]) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slowed_rank_takes_a_multiple_of_its_time(rank, monkeypatch):
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    monkeypatch.setattr(SlowedReplica.__base__, "measure_pass_s", lambda replica: 0.25)
    answer = run(request(SLOWED, config=slowed(rank, 3.0)))
    assert answer["status"] == "ok", answer["trace"]
    assert set(slept_s) == ({0.5} if rank == 0 else set()), "rank 1 is not there"


@pytest.mark.parametrize(
    "slow_down", [{"rank": 0, "factor": 0.5}, {"rank": -1, "factor": 2.0}, {"rank": 0}, {"rank": 0, "factor": "x"}, 2]
)
def test_a_wrong_slow_down_is_an_error(slow_down):
    config = CONFIG | {"trainable": CONFIG["trainable"] | {"slow_down": slow_down}}
    assert len(list(errors(config))) == 1 and run(request(SLOWED, config=config))["status"] == "failed"
    assert list(errors(CONFIG)) == []


def test_unfit_model_is_an_error_before_training():
    model = {"name": "tests.unit.trainables.supervised.test_training:of_colours"}
    assert "N×1×8×8" in run(request(SLOWED, config=slowed(0, 2.0) | {"model": model}))["note"]


def test_a_pause_precedes_every_pass_and_changes_no_batch(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    given = source(shares=(8,), accum=2)
    batches = [labels for _, labels in paused(epoch(given, 1), device_pause("cpu", 0.25))]
    assert pauses == [0.25] * 6
    for ours, theirs in zip(batches, epoch(source(shares=(8,), accum=2), 1), strict=True):
        assert torch.equal(ours, theirs[1])


def test_a_pause_counts_as_computing(monkeypatch):
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    watch, batches = Stopwatch("cpu", lambda: sum(slept_s, 0.0)), epoch(source(shares=(8,), accum=1), 1)
    delayed = paused(watch.fetching(batches), device_pause("cpu", 0.05))
    for _ in range(3):
        watch.step(lambda: next(delayed))
    parts = watch.parts()
    assert parts.compute_s == pytest.approx(0.15) and parts.data_s == 0
