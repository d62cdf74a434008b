"""Every optimizer and every schedule come to the weights of a loop in plain PyTorch that shares no code with ours."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sweeps.lr_rule import LearningRate
from tests.unit.trainables.ranks import CONFIG, context_of, request, supervised_trial

EPOCHS, STEPS, BATCH, LR = 4, 9, 20, 0.01
LENGTH = EPOCHS * STEPS * BATCH
WARM = STEPS * BATCH
"""Samples of the warm-up, from a tenth of the rate: `request`."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.01},
    "adamw": {"betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1},
    "adadelta": {"rho": 0.8, "eps": 1e-5, "weight_decay": 0.01},
    "lars": {"momentum": 0.8, "nesterov": False, "weight_decay": 0.01, "trust_coefficient": 0.02},
    "lamb": {"betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1},
}
SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "constant": ({}, lambda share: 1.0),
    "step": ({"milestones": [0.4, 0.7], "gamma": 0.3}, lambda share: 0.3 ** ((share >= 0.4) + (share >= 0.7))),
    "cosine": ({"final": 0.2}, lambda share: 0.2 + 0.8 * math.cos(share * math.pi / 2) ** 2),
    "onecycle": (
        {"peak": 0.4, "initial": 0.2, "final": 0.1},
        lambda share: 0.2 + 2.0 * share if share < 0.4 else 1.0 - 1.5 * (share - 0.4),
    ),
    "increase_batch": ({"milestones": [0.5, 0.75], "gamma": 0.5}, lambda share: 1.0),
}


@functools.cache
def labels():
    """By the image's pixels, which no two digits with different labels share."""
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    pixels = digits.images.astype("uint8")
    return {image.tobytes(): int(label) for image, label in zip(pixels, digits.target, strict=True)}


def targets_of(shown):
    images, known = torch.cat(shown), labels()
    pixels = images - images.min()  # a background of 0, and 16 shades of grey above it
    pixels = (pixels * 16 / pixels.max()).round().byte()
    return torch.tensor([known[pixel.numpy().tobytes()] for pixel in pixels])


def trained(sections, rates=None, **other):
    """Weights before and after a trial, the images that its model was shown, pass by pass, and its rows."""
    config = CONFIG | {
        "trainable": CONFIG["trainable"] | {"precision": "fp64"},
        "data": {"name": "digits", "subset": {"train": 200, "test": 20}},
        "budget": {"epochs": EPOCHS},
    }
    shown: list[Tensor] = []
    rows: list[dict[str, Any]] = []
    asked = request(**{"shares": (BATCH,), "lr": LR, "config": config | sections, "rates": rates} | other)
    trial = supervised_trial(asked, context_of(asked, rows.append))
    before = [parameter.detach().clone() for parameter in trial.replica.model.parameters()]
    trial.replica.model.register_forward_pre_hook(
        lambda model, images: shown.append(images[0].clone()) if model.training else None
    )
    trial.train()
    return before, list(trial.replica.model.parameters()), shown, rows


def update_of(optimizer, weights):
    """An update of these weights at a rate, by torch's own optimizers, or the papers' formulas."""
    options = OPTIMIZERS[optimizer]
    own = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    own["adadelta"] = torch.optim.Adadelta
    if optimizer in own:
        made = own[optimizer](weights, lr=1.0, foreach=False, **options)

        def by_torch(rate):
            made.param_groups[0]["lr"] = rate
            made.step()

        return by_torch
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    count = 0

    @torch.no_grad()
    def by_formula(rate):
        nonlocal count
        count += 1
        for weight, (first, second) in zip(weights, moments, strict=True):
            gradient, layer = weight.grad, weight.ndim > 1
            decay = options["weight_decay"] * layer
            if optimizer == "lars":
                ratio = options["trust_coefficient"] * weight.norm() / (gradient.norm() + decay * weight.norm())
                change = rate * (ratio if layer else 1.0) * (gradient + decay * weight)
                first.copy_(options["momentum"] * first + change)
                weight -= first
                continue
            one, two = options["betas"]
            first.copy_(one * first + (1 - one) * gradient)
            second.copy_(two * second + (1 - two) * gradient**2)
            change = first / (1 - one**count) / ((second / (1 - two**count)).sqrt() + options["eps"]) + decay * weight
            weight -= rate * (weight.norm() / change.norm() if layer else 1.0) * change

    return by_formula


def plain(weights, images, targets, optimizer, schedule):
    """Train on the images in this order; the mean losses of the epochs."""
    update, factor = update_of(optimizer, weights), SCHEDULES[schedule][1]
    losses, position = [], 0
    for epoch in range(EPOCHS):
        total, taken = 0.0, 0
        while position < (epoch + 1) * WARM:  # the last step of an epoch may begin the next one
            share = position / LENGTH
            size = BATCH * (2 ** ((share >= 0.5) + (share >= 0.75)) if schedule == "increase_batch" else 1)
            warm = min(1.0, 0.1 + 0.9 * position / WARM)
            mine = slice(position, position + size)
            hidden = torch.relu(images[mine].flatten(1) @ weights[0].T + weights[1])
            loss = functional.nll_loss(torch.log_softmax(hidden @ weights[2].T + weights[3], 1), targets[mine])
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = gradient
            update(LR * warm * factor(share))
            total, taken, position = total + loss.item() * size, taken + size, position + size
        losses.append(total / taken)
    assert position == len(images)
    return losses


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    # The rate is all that an optimizer learns of its schedule.
    [*(("sgd", schedule) for schedule in SCHEDULES), *((name, "onecycle") for name in OPTIMIZERS if name != "sgd")],
)
def test_weights_equal_those_of_a_plain_loop(optimizer, schedule):
    asked = {"optimizer": {"name": optimizer} | OPTIMIZERS[optimizer]}
    before, after, shown, rows = trained(asked | {"schedule": {"name": schedule} | SCHEDULES[schedule][0]})
    weights = [weight.requires_grad_() for weight in before]
    losses = plain(weights, torch.cat(shown), targets_of(shown), optimizer, schedule)
    for ours, theirs in zip(after, weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert [row["loss"] for row in rows] == pytest.approx(losses, abs=1e-9)


def test_adascale_equals_that_of_a_plain_loop():
    """Four passes of 5 samples, each the reference batch; a measurement counts from the next one, or an epoch's end."""
    passes, reference, decay, least = 4, 5, 0.95, 1e-6
    rates = LearningRate(rule="adascale", reference_batch_size=reference, value=LR, warmup_from=LR)
    schedule = {"schedule": {"name": "step", "milestones": [0.5], "gamma": 0.1}, "optimizer": {"name": "sgd"}}
    before, after, shown, rows = trained(schedule, rates, shares=(reference,), grad_accum_steps=passes)
    targets = targets_of(shown).split(reference)
    weights = [weight.requires_grad_() for weight in before]
    averages, pending, position, step = torch.zeros(3, dtype=torch.float64), [], 0.0, 0
    gains = []

    def gain():
        signal, noise = (averages[:2] / averages[2]).clamp(min=0).tolist() if averages[2] else (1.0, 0.0)
        return (noise / reference + signal) / (noise / BATCH + signal)

    while position < EPOCHS * STEPS - least:
        for _ in range(STEPS):
            if position >= EPOCHS * STEPS - least:
                break
            worth, rate = gain(), LR * gain() * (1.0 if position < EPOCHS * STEPS / 2 else 0.1)
            of_passes = []
            for index in range(step * passes, (step + 1) * passes):
                hidden = torch.relu(shown[index].flatten(1) @ weights[0].T + weights[1])
                loss = functional.cross_entropy(hidden @ weights[2].T + weights[3], targets[index])
                of_passes.append(torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, weights)]))
            mean = torch.stack(of_passes).mean(0)
            if step % 10 == 0:
                small, big = sum(gradient @ gradient for gradient in of_passes) / passes, mean @ mean
                noise = (small - big) / (1 / reference - 1 / BATCH)
                for measured in pending:
                    averages += (1 - decay) * (measured - averages)
                pending = [torch.stack([big - noise / BATCH, noise, torch.tensor(1.0, dtype=torch.float64)])]
            with torch.no_grad():
                for weight, change in zip(weights, mean.split([weight.numel() for weight in weights]), strict=True):
                    weight -= rate * change.view_as(weight)
            step, position = step + 1, position + worth * reference / BATCH
        for measured in pending:
            averages += (1 - decay) * (measured - averages)
        pending = []
        gains.append(gain())
    assert step * passes == len(shown) and len(rows) > EPOCHS and 1.2 < max(gains) < passes
    assert [row["gain"] for row in rows] == pytest.approx(gains, rel=1e-9)
    for ours, theirs in zip(after, weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
