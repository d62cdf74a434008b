"""Learning-rate rules: how the reference rate changes when the batch is κ times the reference batch.

Every rule's result is multiplied by `lr_multiplier`, because a comparison of rules at one untuned rate is an artefact
(Shallue et al. 2019, "Measuring the effects of data parallelism on neural network training").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeps.errors import UnknownChoice

if TYPE_CHECKING:
    from sweeps.sweep import Setup

UNKNOWN = "unknown"  # name of an optimizer that is not known: a command's, or one of the user's own
SGD = ("sgd", UNKNOWN)
ADAM = ("adam", "adamw")


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The result of applying a learning-rate rule to the reference rate, before any schedule."""

    rule: str = "none"
    reference_batch_size: int = 0  # the global batch that the rule starts from; 0: the trial's
    multiplier: float = 1.0
    value: float  # the rate the schedule starts from once any warm-up is over
    warmup_from: float
    """The rate at sample 0; equal to `value` if the rule has no warm-up. The warm-up is linear in samples."""
    warmup_epochs: float = 0.0
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Optimizer settings that the rule changes besides the rate, as {setting: value}."""

    def at(self, position: float, epoch_samples: int) -> float:
        """Return the rate after `position` samples, before any schedule.

        The warm-up is linear in samples (Goyal et al. 2017, section 2.2).
        """
        warmup_samples = self.warmup_epochs * epoch_samples
        if position >= warmup_samples:
            return self.value
        return self.warmup_from + (self.value - self.warmup_from) * position / warmup_samples


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The result of a rule."""

    lr: float
    warmup: bool = False  # if set, the rate grows linearly from the reference rate during the first `warmup_epochs`
    optimizer: Mapping[str, Any] = field(default_factory=dict)  # optimizer settings that change with the batch


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule, and the optimizers for which its argument holds."""

    scale: Callable[[float, float, Mapping[str, Any]], Scaled]
    """`(reference lr, κ, optimizer config) -> Scaled`; ValueError outside the rule's domain."""
    optimizers: tuple[str, ...] | None = None  # None: any optimizer
    in_training: bool = False
    """If set, the training loop itself follows the rule, beyond its rate and optimizer settings."""


def none(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η. The rate is unchanged, for any batch and optimizer."""
    return Scaled(lr=lr)


def linear(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η·κ, after a linear warm-up from η.

    Goyal et al. 2017, "Accurate, large minibatch SGD", section 2.1 and 2.2. Assumes SGD (with or without momentum), and
    a loss whose gradient changes little over κ steps; the warm-up bridges the first epochs, where it does not.
    """
    return Scaled(lr=lr * kappa, warmup=True)


def sqrt(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η·√κ, which keeps the variance of an update.

    Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", section 5; Hoffer et al. 2017,
    "Train longer, generalize better", section 4. Assumes that samples are independent and SGD updates linear in them.
    """
    return Scaled(lr=lr * math.sqrt(kappa))


def adam_sqrt(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η·√κ, 1−βᵢ(κ) = κ·(1−βᵢ), ε(κ) = ε/√κ.

    Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient algorithms", definition 5.3. Assumes Adam
    where gradient noise dominates; refused where κ·(1−βᵢ) ≥ 1, since no such decay rate exists.
    """
    if "betas" not in optimizer or "eps" not in optimizer:
        raise ValueError("adam_sqrt changes the optimizer's betas and eps, but its config has none")
    shares = [kappa * (1 - beta) for beta in optimizer["betas"]]
    if max(shares) > 1 - 1e-9:  # κ·(1−0.9) at κ = 10 is 0.9999999999999998
        values = ", ".join(f"{share:.3g}" for share in shares)
        raise ValueError(f"adam_sqrt needs κ·(1−β) < 1, but at κ={kappa:g} it is {values}")
    changed = {"betas": [1 - share for share in shares], "eps": optimizer["eps"] / math.sqrt(kappa)}
    return Scaled(lr=lr * math.sqrt(kappa), optimizer=changed)


def adam_tokens(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η, β₂(κ) = β₂^κ, λ(κ) = λ·κ: averages forget after as many tokens as at the reference batch.

    Marek et al. 2025, "Small batch size training for language models", section 4 (β₂'s half-life in tokens); Bergsma et
    al. 2025, "Power lines", section 2 (AdamW's timescale B/(η·λ) in tokens, by λ and not η). Assumes AdamW on a fixed
    number of tokens, at batches below the critical one; refused where η·λ·κ ≥ 1.
    """
    if "betas" not in optimizer or "weight_decay" not in optimizer:
        raise ValueError("adam_tokens changes the optimizer's betas and weight_decay, but its config has none")
    first, second = optimizer["betas"]
    decay = optimizer["weight_decay"] * kappa
    if lr * decay >= 1:
        raise ValueError(f"adam_tokens needs lr·weight_decay·κ < 1, but at κ={kappa:g} it is {lr * decay:.3g}")
    return Scaled(lr=lr, optimizer={"betas": [first, second**kappa], "weight_decay": decay})


def lars(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η·κ with warm-up, and a layer-wise trust ratio on top of it.

    You et al. 2017, "Large batch training of convolutional networks". Replaces SGD with momentum.
    """
    return Scaled(lr=lr * kappa, warmup=True, optimizer={"name": "lars"})


def lamb(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η(κ) = η·√κ with warm-up, and a layer-wise trust ratio on top of it.

    You et al. 2019, "Large batch optimization for deep learning: training BERT in 76 minutes", section 4. Replaces
    Adam or AdamW.
    """
    return Scaled(lr=lr * math.sqrt(kappa), warmup=True, optimizer={"name": "lamb"})


def adascale(lr: float, kappa: float, optimizer: Mapping[str, Any]) -> Scaled:
    """η is unchanged; training multiplies it by the current gain r = (σ² + μ²) / (σ²/κ + μ²), and progresses by r.

    Johnson et al. 2020, "AdaScale SGD: a user-friendly algorithm for distributed training", equation 4. σ² is the
    variance of a gradient over a reference batch and μ² its squared mean, both estimated from the gradients of a
    step's ranks or accumulation steps; if a step has only one of each, r stays 1. Assumes SGD, with or without
    momentum.
    """
    return Scaled(lr=lr)


RULES: Mapping[str, Rule] = {
    "none": Rule(scale=none),
    "linear": Rule(scale=linear, optimizers=SGD),
    "sqrt": Rule(scale=sqrt, optimizers=SGD + ADAM),
    "adam_sqrt": Rule(scale=adam_sqrt, optimizers=ADAM),
    "adam_tokens": Rule(scale=adam_tokens, optimizers=("adamw",)),
    "lars": Rule(scale=lars, optimizers=("sgd",)),
    "lamb": Rule(scale=lamb, optimizers=ADAM),
    "adascale": Rule(scale=adascale, optimizers=("sgd",), in_training=True),
}

SAME_AT_REFERENCE = frozenset({"none", "linear", "sqrt", "adam_sqrt", "adam_tokens"})
"""Rules that describe one training at the reference batch, κ = 1: they leave rate, optimizer and loop as they are.

At other batches they change only numbers, so that a step does the same work under all of them.
"""


def plainness(rule: str, multiplier: float) -> tuple[bool, float]:
    """Return a sort key that puts the plainest reference first: rule `none`, then the multiplier nearest 1."""
    return rule != "none", abs(math.log(multiplier))


def learning_rate(rule: str, multiplier: float, global_batch_size: int, setup: Setup) -> LearningRate:
    """Apply `rule` at this batch. Raises ValueError for an unknown rule, or one unfit for the setup's optimizer.

    κ = global_batch_size / setup.reference_batch_size.
    """
    if rule not in RULES:
        raise ValueError(UnknownChoice("lr_rule", rule, RULES))
    fits, optimizer = RULES[rule].optimizers, setup.optimizer
    kind = UNKNOWN if ":" in optimizer["name"] else optimizer["name"]  # the user's own, by its dotted path
    if fits is not None and kind not in fits:
        rules = [name for name, rule in RULES.items() if rule.optimizers is None or kind in rule.optimizers]
        raise ValueError(
            f"lr_rule={rule} is not for the optimizer {optimizer['name']}, which can use: {', '.join(rules)};"
            f" write 'sweep.axes.lr_rule=[{','.join(rules[:2])}]'"
        )
    kappa = global_batch_size / setup.reference_batch_size
    scaled = RULES[rule].scale(setup.reference_lr, kappa, optimizer)
    # Below the reference batch the rate shrinks, so there is nothing to warm up to.
    start = min(setup.reference_lr, scaled.lr) if scaled.warmup else scaled.lr
    return LearningRate(
        rule=rule,
        reference_batch_size=setup.reference_batch_size,
        multiplier=multiplier,
        value=scaled.lr * multiplier,
        warmup_from=start * multiplier,
        warmup_epochs=setup.warmup_epochs if scaled.warmup else 0,
        optimizer=dict(scaled.optimizer),
    )
