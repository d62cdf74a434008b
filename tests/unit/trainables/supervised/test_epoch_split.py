from trainables.step.stopwatch import Parts
from trainables.supervised.epoch_split import mean_parts, split_of
from trainables.supervised.loop import Epoch


def epoch(parts: Parts, steps: int = 10) -> Epoch:
    return Epoch(number=1, seconds=4.0, steps=steps, samples=80, loss=1.0, lr=0.1, parts=parts)


def test_an_epochs_seconds_by_what_they_went_into() -> None:
    parts = Parts(data_s=0.5, exchange_s=0.25, step_s=3.0)
    found = split_of(epoch(parts), on_gpu=False)
    assert found == {"data_s": 0.5, "compute_s": 2.25, "communication_s": 0.25, "rest_s": 1.0}
    assert split_of(epoch(parts), on_gpu=True) == {"data_s": 0.5, "rest_s": 3.5}


def test_what_a_gpu_waited_for_in_an_epoch_of_a_step_or_two_is_not_known() -> None:
    assert split_of(epoch(Parts(untimed=2)), on_gpu=True) == {}


def test_the_mean_parts_of_steps_weigh_epochs_by_their_steps() -> None:
    epochs = [epoch(Parts(data_s=1.0, exchange_s=2.0, step_s=10.0)), epoch(Parts(data_s=5.0, step_s=20.0), steps=20)]
    assert mean_parts(epochs, 15) == Parts(data_s=3.0, exchange_s=1.0, step_s=15.0)
    assert mean_parts([], 15) == Parts()
