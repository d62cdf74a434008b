import pytest
import torch
from torch import nn

from trainables.optimizers import optimizers
from trainables.step.precision import PRECISIONS
from trainables.step.strategies import Strategy
from trainables.step.training_step import TrainingStep


def minibatches():
    numbers = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(4, 3, generator=numbers), torch.randint(2, (4,), generator=numbers)


@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize("scale", [1 / 4, 1 / 8, 1 / 12])
def test_step_descends_the_gradient_of_the_scaled_sum(accum, scale):
    torch.manual_seed(0)
    module, oracle = nn.Linear(3, 2), nn.Linear(3, 2)
    oracle.load_state_dict(module.state_dict())
    step = TrainingStep(
        Strategy(forward=module, loss_scale=scale),
        optimizers.build(module, {"name": "sgd"}, lr=1.0),
        precision=PRECISIONS["fp32"],
        grad_accum_steps=accum,
        device="cpu",
    )
    plain, ours, total = minibatches(), minibatches(), 0.0
    for rate in (0.5, 0.5, 0.1):
        step(ours, rate)
        loss = sum(
            nn.functional.cross_entropy(oracle(x), y, reduction="sum") * scale
            for x, y in (next(plain) for _ in range(accum))
        )
        total += loss.item()
        gradients = torch.autograd.grad(loss, list(oracle.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(oracle.parameters(), gradients, strict=True):
                parameter -= rate * gradient
    for one, other in zip(oracle.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(other, one)
    assert step.loss.item() == pytest.approx(total, rel=1e-6)


def test_learning_rate_tensor_is_updated_in_place():
    module = nn.Linear(2, 2)
    optimizer = optimizers.build(module, {"name": "lars"}, lr=1.0)
    rate = torch.tensor(1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    step = TrainingStep(
        Strategy(forward=module, loss_scale=1.0),
        optimizer,
        precision=PRECISIONS["fp32"],
        grad_accum_steps=1,
        device="cpu",
    )
    step.set_rate(0.25)
    assert rate.item() == 0.25 and all(group["lr"] is rate for group in optimizer.param_groups)
