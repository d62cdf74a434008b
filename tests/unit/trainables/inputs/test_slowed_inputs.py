import time

import pytest
import torch

from tests.unit.trainables.inputs.test_inputs import source
from trainables.clock import Clock
from trainables.inputs.slowed_inputs import SlowedInputs


def test_a_pause_before_every_pass_and_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    slowed = SlowedInputs(source(shares=(8,), accum=2), 0.25, Clock("cpu"))
    batches = [labels for _, labels in slowed.epoch(1)]
    assert pauses == [0.25] * 6 and slowed.feed.steps_per_epoch == 3
    for ours, theirs in zip(batches, source(shares=(8,), accum=2).epoch(1), strict=True):
        assert torch.equal(ours, theirs[1])
    slowed.close()
