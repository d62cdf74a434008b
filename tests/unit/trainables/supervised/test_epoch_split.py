from trainables.step.stopwatch import Parts
from trainables.supervised.epoch_split import split_of
from trainables.supervised.loop import Epoch


def epoch(parts: Parts) -> Epoch:
    return Epoch(number=1, seconds=4.0, steps=10, samples=80, loss=1.0, lr=0.1, parts=parts)


def test_an_epochs_seconds_by_what_they_went_into() -> None:
    parts = Parts(data_s=0.5, exchange_s=0.25, step_s=3.0)
    found = split_of(epoch(parts), on_gpu=False)
    assert found == {"data_s": 0.5, "compute_s": 2.25, "communication_s": 0.25, "rest_s": 1.0}
    assert split_of(epoch(parts), on_gpu=True) == {"data_s": 0.5, "rest_s": 3.5}


def test_what_a_gpu_waited_for_in_an_epoch_of_a_step_or_two_is_not_known() -> None:
    assert split_of(epoch(Parts(untimed=2)), on_gpu=True) == {}
