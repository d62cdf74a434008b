import time

import pytest
import torch

from tests.unit.trainables.inputs.feeds import source
from trainables.inputs.pause import pause, paused
from trainables.step.stopwatch import Stopwatch


def test_a_pause_before_every_pass_and_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    given = source(shares=(8,), accum=2)
    batches = [labels for _, labels in paused(given.epoch(1), pause("cpu", 0.25))]
    assert pauses == [0.25] * 6 and given.feed.steps_per_epoch == 3
    for ours, theirs in zip(batches, source(shares=(8,), accum=2).epoch(1), strict=True):
        assert torch.equal(ours, theirs[1])


def test_a_slow_device_computes_longer_and_waits_no_longer_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    watch, batches = Stopwatch("cpu", lambda: sum(slept_s, 0.0)), source(shares=(8,), accum=1).epoch(1)
    slowed = paused(watch.fetching(batches), pause("cpu", 0.05))
    for _ in range(3):
        watch.step(lambda: next(slowed))
    parts = watch.parts()
    assert parts.compute_s == pytest.approx(0.15) and parts.data_s == 0


@pytest.mark.gpu
def test_a_device_pauses_while_its_host_goes_on() -> None:
    wait = pause("cuda", 0.2)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    begin.record()
    wait()
    end.record()
    assert time.perf_counter() - started < 0.1
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(200, rel=0.05)
