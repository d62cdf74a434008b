import copy
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainables.component_registry import OPTIMIZERS
from trainables.optimizers.optimizers import build


class Pair(nn.Module):
    """A layer of weights (3, 4), whose norm is 5, and a bias of 2."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))

    def take_gradients(self, weight, bias):
        self.weight.grad = torch.tensor([weight], dtype=torch.float64)
        self.bias.grad = torch.tensor([bias], dtype=torch.float64)

    def values(self):
        return [*self.weight[0].tolist(), *self.bias.tolist()]


def after_steps(config, lr, gradients):
    module = Pair()
    optimizer = build(module, config, lr=lr)
    for gradient in gradients:
        module.take_gradients(*gradient)
        optimizer.step()
    return module.values()


def test_lars_by_hand():
    """‖w‖ = 5, ‖g‖ = 10, so λ = 0.01 · 5 / (10 + 0.1 · 5) = 1/210; the bias moves by lr · g."""
    config = {"name": "lars", "momentum": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.01}
    first = [3 - 2 / 210 * 6.3, 4 - 2 / 210 * 8.4, 2 - 2 * 0.25]
    assert after_steps(config, 2.0, [([6, 8], 0.25)]) == pytest.approx(first, rel=1e-12)
    # Then g = 0: λ = 0.01 / 0.1 = 0.1, so each weight moves by 0.5 · its velocity and by 2 · 0.1 · 0.1 of itself.
    velocity = [2 / 210 * 6.3, 2 / 210 * 8.4, 2 * 0.25]
    decay = [0.02 * first[0], 0.02 * first[1], 0]
    second = [value - 0.5 * v - d for value, v, d in zip(first, velocity, decay, strict=True)]
    assert after_steps(config, 2.0, [([6, 8], 0.25), ([0, 0], 0)]) == pytest.approx(second, rel=1e-12)


def test_lars_with_nesterov_by_hand():
    """The first change is λ · g = 0.005 · g, and nesterov adds half of it again."""
    config = {"name": "lars", "momentum": 0.5, "nesterov": True, "trust_coefficient": 0.01}
    expected = [3 - 1.5 * 0.03, 4 - 1.5 * 0.04, 2 - 1.5 * 0.25]
    assert after_steps(config, 1.0, [([6, 8], 0.25)]) == pytest.approx(expected, rel=1e-12)


def test_lamb_by_hand():
    """At the first step m̂ = g and √v̂ = |g|, so u = sign(g) + weight_decay · w, and ‖w‖ / ‖u‖ = 5 / ‖(1.3, -0.6)‖."""
    config = {"name": "lamb", "weight_decay": 0.1, "eps": 0.0}
    ratio = 5 / (1.3**2 + 0.6**2) ** 0.5
    expected = [3 - 0.01 * ratio * 1.3, 4 + 0.01 * ratio * 0.6, 2 - 0.01]
    assert after_steps(config, 0.01, [([6, -8], 0.25)]) == pytest.approx(expected, rel=1e-6)


gradients = st.lists(
    st.tuples(st.lists(st.floats(-4, 4), min_size=2, max_size=2), st.floats(-4, 4)), min_size=1, max_size=5
)


@pytest.mark.parametrize(
    ("name", "plain", "options"),
    [("lamb", "adam", {"eps": 1e-3}), ("lars", "sgd", {"momentum": 0.9, "nesterov": True})],
)
@given(gradients=gradients)
def test_without_trust_ratio_a_bias_moves_as_in_torch(name, plain, options, gradients):
    ours, torchs = (after_steps({"name": optimizer, **options}, 0.1, gradients)[2] for optimizer in (name, plain))
    assert ours == pytest.approx(torchs, rel=1e-9, abs=1e-9)


@given(scale=st.floats(1e-3, 1e3))
def test_trust_ratio_cancels_the_scale_of_gradients(scale):
    def step(factor):
        return after_steps({"name": "lars"}, 1.0, [([6 * factor, 8 * factor], 0.0)])[:2]

    assert step(scale) == pytest.approx(step(1.0), rel=1e-9)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_zero_layer_moves_and_one_without_gradient_stays(name):
    module = Pair()
    with torch.no_grad():
        module.weight.zero_()
    optimizer = build(module, {"name": name}, lr=0.1)
    module.weight.grad = torch.ones_like(module.weight)
    optimizer.step()
    assert (module.weight < 0).all()
    assert module.bias.item() == 2


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_restored_optimizer_equals_the_uninterrupted_one(name):
    module, again = Pair(), Pair()
    blocks = (nn.ModuleList([pair]) for pair in (module, again))
    optimizer, restored = (build(block, {"name": name, "lr": 1.0}, lr=0.1) for block in blocks)
    for index in range(4):
        if index == 2:
            again.load_state_dict(module.state_dict())
            restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for layer, its in ((module, optimizer), (again, restored)):
            layer.take_gradients([index - 1.5, 2.0], 0.5 * index - 1)
            its.step()
    assert module.values() == again.values()


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_the_rate_may_be_a_tensor(name):
    rate = torch.tensor(0.0, dtype=torch.float64)
    module = Pair()
    optimizer = build(module, {"name": name}, lr=0.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    module.take_gradients([6, 8], 1)
    optimizer.step()
    assert module.values() == [3, 4, 2]
    rate.fill_(0.1)
    optimizer.step()
    assert module.values() != [3, 4, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted({*OPTIMIZERS} - {"muon"}))
def test_a_captured_step_equals_the_eager_one(name):
    def train(captured):
        torch.manual_seed(0)
        module = nn.Linear(4, 3, device="cuda")
        optimizer = build(module, {"name": name}, lr=0.1, capturable=True)
        x = torch.randn(8, 4, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=False)
            module(x).square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # which still draws the weights and the inputs
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        for rate in (0.1, 0.02):
            for group in optimizer.param_groups:
                group["lr"].fill_(rate)
            graph.replay() if captured else step()
        return module.weight.detach()

    torch.testing.assert_close(train(captured=True), train(captured=False))


def no_optimizer(params, *, lr):
    return lr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "sdg"}, r"'sdg' .*sgd, adam, adamw, adadelta, lars, lamb, "),
        ({"name": "adam", "momentum": 0.9}, r"'adam' has no key momentum; .*betas, eps, "),
        ({"name": "sgd", "momentum": -1}, r"Invalid momentum value: -1"),
        ({"name": f"{__name__}:no_optimizer"}, r"made a float, not a torch\.optim\.Optimizer"),
    ],
)
def test_an_invalid_optimizer_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        build(Pair(), config, lr=0.1)


def test_a_dotted_path_is_an_optimizer():
    assert isinstance(build(Pair(), {"name": "torch.optim:NAdam", "eps": 1e-6}, lr=0.1), torch.optim.NAdam)


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"name": "lamb", "betas": [0.9, 1.0]}, "optimizer.betas=[0.9, 1.0]"),
        ({"name": "lamb", "eps": -1e-6}, "optimizer.eps=-1e-06"),
        ({"name": "lars", "momentum": -0.9}, "optimizer.momentum=-0.9"),
        ({"name": "lars", "weight_decay": float("nan")}, "optimizer.weight_decay=nan"),
    ],
)
def test_values_out_of_range_are_refused(config, value):
    with pytest.raises(ValueError, match=re.escape(value)):
        build(Pair(), config, lr=0.1)
