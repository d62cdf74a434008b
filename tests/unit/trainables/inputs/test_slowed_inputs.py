import time

import pytest
import torch

from tests.unit.trainables.inputs.test_inputs import source
from trainables.inputs.pause import pause
from trainables.inputs.slowed_inputs import SlowedInputs


def test_a_pause_before_every_pass_and_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    slowed = SlowedInputs(source(shares=(8,), accum=2), pause("cpu", 0.25))
    batches = [labels for _, labels in slowed.epoch(1)]
    assert pauses == [0.25] * 6 and slowed.feed.steps_per_epoch == 3
    for ours, theirs in zip(batches, source(shares=(8,), accum=2).epoch(1), strict=True):
        assert torch.equal(ours, theirs[1])
    slowed.close()


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
