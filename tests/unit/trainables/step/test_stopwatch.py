from dataclasses import dataclass

import pytest
import torch

from trainables.step import stopwatch
from trainables.step.stopwatch import Parts, Stopwatch


class Stage:
    def __init__(self):
        self.now_s = 5.0

    def spend(self, seconds):
        self.now_s += seconds

    def batches(self, count):
        for _ in range(count):
            self.spend(3.0)
            yield torch.zeros(1), torch.zeros(1)


def test_parts_of_steps_with_two_passes():
    stage = Stage()
    watch = Stopwatch("cpu", lambda: stage.now_s)
    batches = watch.fetching(stage.batches(8))

    def step():
        for _ in range(2):
            next(batches)
            stage.spend(10.0)
        watch.exchanging(lambda: stage.spend(3.5))
        stage.spend(7.0)  # the update

    for _ in range(2):  # the second reading is of the second two steps alone
        before = watch.parts()
        for _ in range(2):
            watch.step(step)
            stage.spend(100.0)
        parts = watch.parts() - before
        assert parts == Parts(data_s=12.0, exchange_s=7.0, step_s=2 * (26 + 3.5 + 7))
        assert parts.compute_s == pytest.approx(2 * (20 + 7))
    with pytest.raises(StopIteration):
        next(batches)


@dataclass
class DeviceEvent:
    at_s: float

    def elapsed_time(self, end):
        return (end.at_s - self.at_s) * 1e3


@pytest.fixture
def on_gpu(monkeypatch):
    """A device's time, and a stopwatch that reads it."""
    stage = Stage()
    monkeypatch.setattr(stopwatch, "_event", lambda: DeviceEvent(stage.now_s))
    return stage, Stopwatch("cuda:0")


@pytest.mark.parametrize("fetches", [9, 16, 25, 30, 40, 100])
def test_sampled_fetches_are_extrapolated_to_all(fetches, on_gpu):
    stage, watch = on_gpu
    batches = watch.fetching(stage.batches(200))
    for _ in range(2):  # the second reading begins anew
        before = watch.parts()
        for _ in range(fetches):
            next(batches)
        assert (watch.parts() - before).data_s == pytest.approx(3.0 * fetches)


@pytest.mark.parametrize("block", [2, 8, 16, 32])
def test_sampling_meets_every_place_of_a_block(block, on_gpu):
    stage, watch = on_gpu

    def blocks():
        for number in range(20 * stopwatch.SAMPLED * block):
            stage.spend(0.0 if number % block else 1.0)
            yield torch.zeros(1), torch.zeros(1)

    for _ in watch.fetching(blocks()):
        pass
    assert watch.parts().data_s == pytest.approx(20 * stopwatch.SAMPLED, rel=0.1)


@pytest.mark.parametrize("fetches", range(1, 20))
def test_first_fetches_are_not_sampled_and_too_few_are_untimed(fetches, on_gpu):
    stage, watch = on_gpu

    def epochs():
        while True:
            for number in range(fetches):
                stage.spend(100.0 if number < 2 else 3.0)
                yield torch.zeros(1), torch.zeros(1)

    batches = watch.fetching(epochs())
    for _ in range(3):
        before = watch.parts()
        for _ in range(fetches):
            next(batches)
        parts = watch.parts() - before
        assert parts == (Parts(untimed=fetches) if fetches < 3 else Parts(data_s=3.0 * fetches))
