from collections.abc import Iterator

import pytest
import torch

from trainables.inputs.inputs import Minibatch
from trainables.step.stopwatch import Parts, Stopwatch


class Stage:
    def __init__(self) -> None:
        self.now_s = 5.0

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def batches(self, count: int) -> Iterator[Minibatch]:
        for _ in range(count):
            self.spend(3.0)
            yield torch.zeros(1), torch.zeros(1)


def test_the_parts_of_steps_with_two_passes() -> None:
    stage = Stage()
    watch = Stopwatch("cpu", lambda: stage.now_s)
    batches = watch.fetching(stage.batches(4))

    def step() -> None:
        for _ in range(2):
            next(batches)
            stage.spend(10.0)
        watch.exchanging(lambda: stage.spend(3.5))
        stage.spend(7.0)  # the update

    before = watch.parts()
    for _ in range(2):
        watch.step(step)
        stage.spend(100.0)
    parts = watch.parts() - before
    assert parts == Parts(data_s=12.0, exchange_s=7.0, step_s=2 * (26 + 3.5 + 7))
    assert parts.compute_s == pytest.approx(2 * (20 + 7))
    with pytest.raises(StopIteration):
        next(batches)
