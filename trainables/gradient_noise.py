"""The noise of a training's gradients: its estimate from one step of `EVERY`, and AdaScale, which paces steps by it.

`NoiseEstimate` and `Smoothed` are the arithmetic, `GradientNoise` measures, `pace` is AdaScale's rule, and `NoiseWatch`
is what a replica uses of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sweeps.trial import Batch
from trainables.context import Context
from trainables.process_group import RankGroup

DECAY = 0.95  # the decay of the moving averages, per estimate


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """Unbiased estimates, which may be negative."""

    signal: float  # |G|², where G is the gradient over infinitely many samples
    noise: float  # tr Σ, the sum of the variances of the elements of one sample's gradient

    @staticmethod
    def of(small: float, big: float, *, small_batch: float, big_batch: float) -> NoiseEstimate:
        """Estimate from |G_small|² and |G_big|², the squared norms of mean gradients over a small and a big batch.

        McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1: E|G_B|² = |G|² + tr Σ / B.
        `small` may be a mean over parts of unequal sizes, with their harmonic mean as `small_batch`.
        """
        # A larger batch averages more noise away: the two norms differ by it alone.
        noise = (small - big) / (1 / small_batch - 1 / big_batch)
        return NoiseEstimate(signal=big - noise / big_batch, noise=noise)


class Smoothed:
    """Separate moving averages of signal and noise: a mean of ratios would be biased, with infinite variance."""

    def __init__(self) -> None:
        self._signal = self._noise = self._weight = 0.0

    def state(self) -> list[float]:
        """Return what `restore` takes."""
        return [self._signal, self._noise, self._weight]

    def restore(self, state: Sequence[float]) -> None:
        """Restore the averages."""
        self._signal, self._noise, self._weight = state

    def add(self, estimate: NoiseEstimate) -> None:
        """Add the next estimate."""
        self._signal += (1 - DECAY) * (estimate.signal - self._signal)
        self._noise += (1 - DECAY) * (estimate.noise - self._noise)
        self._weight += (1 - DECAY) * (1 - self._weight)

    @property
    def estimate(self) -> NoiseEstimate | None:
        """The averages of the estimates so far, weighted towards the latest; None before the first."""
        if not self._weight:
            return None
        return NoiseEstimate(signal=self._signal / self._weight, noise=self._noise / self._weight)

    @property
    def noise_scale(self) -> float | None:
        """B_simple = tr Σ / |G|², in samples: in batches beyond it more samples per step gain little.

        None before the first estimate, and if noise hides the signal (the estimate of |G|² is not above 0).
        """
        estimate = self.estimate
        return max(0.0, estimate.noise) / estimate.signal if estimate and estimate.signal > 0 else None


EVERY = 10  # steps from one measurement to the next


def parts(batch: Batch) -> list[int]:
    """Return the samples of each part of a step whose gradient is known: the ranks, or one rank's passes."""
    if len(batch.shares) > 1:
        return [share * batch.grad_accum_steps for share in batch.shares]
    return [*batch.shares] * batch.grad_accum_steps


class Readback:
    """A tensor's present values; reading them does not wait for work that the device is given later."""

    def __init__(self, values: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """Return the values, when the device has computed them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[float] = self._values.tolist()
        return values


class GradientNoise:
    """Estimates noise by comparing the mean gradient of a step with those of its parts, ranks or passes.

    One step of `EVERY` costs a norm of the gradients and an all-reduce of two numbers. The host waits for neither: an
    estimate is read when the next one is measured, or when `smoothed` is called.
    """

    def __init__(self, model: nn.Module, batch: Batch, rank_group: RankGroup) -> None:
        """Raise ValueError if a step has only one part: see `parts`."""
        self._parameters, self._batch, self._rank_group = list(model.parameters()), batch, rank_group
        self._sizes = parts(batch)
        if len(self._sizes) < 2:
            raise ValueError(
                "gradient noise is measured between ranks or accumulation steps, but this trial has one of each"
            )
        share, accumulate, ranks = batch.shares[rank_group.rank], batch.grad_accum_steps, rank_group.world_size
        # The scaled losses of the passes add up to the mean over the step, those of ranks when averaged.
        own = share * accumulate * ranks if ranks > 1 else share
        self._weight = own / batch.global_batch_size
        self._squares = torch.zeros(2, dtype=torch.float64, device=rank_group.device)
        self._before: list[Tensor] | None = None
        # The first step is measured, so that AdaScale has an estimate from the start.
        self._measures, self._steps = True, 0
        self._under_way: Readback | None = None
        self.ready = Smoothed()  # the averages without a measurement that the device may not have finished

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients that this optimizer is given, from its next step on."""
        optimizer.register_step_pre_hook(self._at_step)

    def state(self) -> dict[str, Any]:
        """Return the state between two steps: the same on all ranks."""
        # The measurement is kept as it is: adding it now would change when a resumed training sees it.
        under_way = self._under_way.read() if self._under_way else None
        return {"steps": self._steps, "smoothed": self.ready.state(), "under_way": under_way}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state before the first step."""
        self._steps = state["steps"]
        self._measures = self._steps % EVERY == 0
        self.ready.restore(state["smoothed"])
        if state["under_way"] is not None:
            self._under_way = Readback(self._squares.new_tensor(state["under_way"]))

    def see(self, *gradients: Tensor) -> None:
        """Take a part of the rank's own gradients, of losses scaled by `Strategy.loss_scale`."""
        if self._measures:
            self._squares[0] += _square(gradients)

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Return the context of each of a step's passes but the last."""
        yield
        self._see_pass()

    def smoothed(self) -> Smoothed:
        """Return the averages of everything measured; waits for the latest measurement."""
        if self._under_way is not None:
            self.add_norms(*self._under_way.read())
            self._under_way = None
        return self.ready

    def _at_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._measures:
            # On several ranks the exchange has shown each rank's gradient through `see`; with one rank only passes
            # differ.
            if self._rank_group.world_size == 1:
                self._see_pass()
                self._before = None
            self._squares[0] /= self._weight**2
            self._squares[1] = _square(self._gradients())
            # The device finished the previous measurement long ago: reading it here does not wait.
            self.smoothed()
            self._under_way = Readback(self._rank_group.sum(self._squares))
            # A new tensor, because the copy of the old one to the host may still be under way.
            self._squares = torch.zeros_like(self._squares)
        self._steps += 1
        self._measures = self._steps % EVERY == 0

    def _see_pass(self) -> None:
        if not self._measures:
            return
        # Gradients accumulate over passes: a pass's own is the difference from before.
        gradients = self._gradients()
        self._squares[0] += _square(torch._foreach_sub(gradients, self._before) if self._before else gradients)
        self._before = [gradient.clone() for gradient in gradients]

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def add_norms(self, small: float, big: float) -> None:
        """Add an estimate from sums of squared norms: of the parts' mean gradients, and of the step's on each rank."""
        parts = len(self._sizes)
        estimate = NoiseEstimate.of(
            small / parts,
            big / self._rank_group.world_size,
            small_batch=parts / sum(1 / size for size in self._sizes),
            big_batch=self._batch.global_batch_size,
        )
        self.ready.add(estimate)


def _square(gradients: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The worth of one step."""

    gain: float = 1.0  # the factor on the learning rate
    advance: float = 1.0  # how far budget and schedule advance, as a share of the step's samples


def pace(estimate: NoiseEstimate | None, *, kappa: float, reference_batch_size: float) -> Pace:
    """Return AdaScale's pace at a batch of κ times the reference batch; for κ > 1 without an estimate the gain is 1.

    Johnson et al. 2020, "AdaScale SGD: a user-friendly algorithm for distributed training", equation 4 and section 3.1:
    r = (σ² + μ²) / (σ²/S + μ²), with σ² the variance at the reference batch, S = κ and μ² = |G|². It lies between 1
    and κ. The rate is the reference rate times r, and a step counts for r steps of the reference batch, r/κ of its
    samples. Below the reference batch, which the paper does not cover, r = κ: the linear rule.
    """
    # No larger batch, nothing to gain: the linear rule, and every step counts as one.
    if kappa <= 1:
        return Pace(gain=kappa)
    gain = 1.0
    if estimate:
        variance, signal = max(0.0, estimate.noise) / reference_batch_size, max(0.0, estimate.signal)
        if variance or signal:
            gain = (variance + signal) / (variance / kappa + signal)
    return Pace(gain=gain, advance=gain / kappa)


UNSEEN = (
    "gradient noise cannot be measured in a CUDA graph, with fp16's loss scaling, nor where fsdp divides gradients:"
    " noise_scale and lr_rule=adascale need trainable.cuda_graph=off, another trainable.precision, and strategy=ddp"
)
ONE_PASS = (
    "lr_rule=adascale needs several ranks or accumulation steps to measure noise; with one of each its gain stays 1"
)


class NoiseWatch:
    """A replica's gradient noise, measured if it is `wanted` or the rule is AdaScale, and a step has several parts."""

    def __init__(
        self, model: nn.Module, context: Context, rank_group: RankGroup, *, wanted: bool, visible: bool
    ) -> None:
        """Raise ValueError if gradients must be measured but are not `visible`."""
        size = context.batch.global_batch_size
        self._reference = context.lr.reference_batch_size or size
        self._kappa = size / self._reference
        self._adapts = context.lr.rule == "adascale"
        self.gradients: GradientNoise | None = None
        if not wanted and not self._adapts:
            return
        if not visible:
            raise ValueError(UNSEEN)
        if len(parts(context.batch)) > 1:
            self.gradients = GradientNoise(model, context.batch, rank_group)
        elif self._adapts and self._kappa > 1:
            context.remark(ONE_PASS)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients that this optimizer is given."""
        if self.gradients is not None:
            self.gradients.watch(optimizer)

    def state(self) -> dict[str, Any]:
        """Return the state between two steps: the same on all ranks."""
        return self.gradients.state() if self.gradients else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state before the first step."""
        if self.gradients and state:
            self.gradients.restore(state)

    def pace(self) -> Pace:
        """Return the pace of the next step, from what is known without waiting for the device."""
        if not self._adapts:
            return Pace()
        estimate = self.gradients.ready.estimate if self.gradients else None
        return pace(estimate, kappa=self._kappa, reference_batch_size=self._reference)

    def figures(self) -> dict[str, Any]:
        """Return `noise_scale`, in samples, and AdaScale's `gain`, as far as they are known."""
        scale = self.gradients.smoothed().noise_scale if self.gradients else None
        known = {} if scale is None else {"noise_scale": scale}
        return known | ({"gain": self.pace().gain} if self._adapts else {})
