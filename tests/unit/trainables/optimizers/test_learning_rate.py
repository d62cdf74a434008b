import pytest

from trainables.context import LearningRate
from trainables.optimizers.learning_rate import Rates
from trainables.optimizers.schedules import resolve


def rates(schedule: dict[str, object]) -> Rates:
    lr = LearningRate(rule="linear", value=0.8, warmup_from=0.1, warmup_epochs=2)
    return Rates(lr=lr, schedule=resolve(schedule), warmup_samples=1000)


@pytest.mark.parametrize(("position", "rate"), [(0, 0.1), (500, 0.45), (1000, 0.8), (5000, 0.8)])
def test_the_warm_up_is_linear_in_samples(position: float, rate: float) -> None:
    assert rates({"name": "constant"}).at(position, 10_000) == pytest.approx(rate)


def test_the_schedule_counts_from_the_first_sample() -> None:
    halved = rates({"name": "step", "milestones": [0.05, 0.5], "gamma": 0.5})
    assert halved.at(500, 10_000) == pytest.approx(0.225)
    assert halved.at(5000, 10_000) == pytest.approx(0.2)


def test_without_a_warm_up_the_value_holds_from_the_start() -> None:
    plain = Rates(lr=LearningRate(value=0.3, warmup_from=0.3), schedule=resolve({"name": "constant"}), warmup_samples=0)
    assert plain.at(0, 100) == 0.3
