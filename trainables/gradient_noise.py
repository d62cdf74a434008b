"""Watches the gradients of a training for their noise, in one step of `EVERY`.

How noisy gradients are, from the norms of gradients over few and over many samples.

AdaScale: a step with a large batch counts for as many steps with the reference batch as the noise lets it.

What a trial makes of its gradients' noise: a figure to report, and AdaScale's pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainables.context import Batch, Context
from trainables.process_group import Gang

DECAY = 0.95
"""Of the moving averages, per estimate."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Unbiased, and so of either sign."""

    signal: float
    """|G|²: of the gradient over infinitely many samples."""
    noise: float
    """tr Σ: the summed variances of the elements of one sample's gradient."""

    @staticmethod
    def of(small: float, big: float, *, small_batch: float, big_batch: float) -> Estimate:
        """From |G_small|² and |G_big|², the squared norms of mean gradients over so many samples, small < big.

        McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1: E|G_B|² = |G|² + tr Σ / B.
        `small` may be a mean over parts of unequal sizes, with their harmonic mean as `small_batch`.
        """
        noise = (small - big) / (1 / small_batch - 1 / big_batch)
        return Estimate(signal=big - noise / big_batch, noise=noise)


class Smoothed:
    """Moving averages of signal and noise, each by itself: a mean of ratios would be biased, and has no variance."""

    def __init__(self) -> None:
        self._signal = self._noise = self._weight = 0.0

    def state(self) -> list[float]:
        """What the averages are made of."""
        return [self._signal, self._noise, self._weight]

    def restore(self, state: Sequence[float]) -> None:
        """Bring that back."""
        self._signal, self._noise, self._weight = state

    def add(self, estimate: Estimate) -> None:
        """Take in the next estimate."""
        self._signal += (1 - DECAY) * (estimate.signal - self._signal)
        self._noise += (1 - DECAY) * (estimate.noise - self._noise)
        self._weight += (1 - DECAY) * (1 - self._weight)

    @property
    def estimate(self) -> Estimate | None:
        """The averages over what there is so far, the latest counting most; None while there is nothing."""
        if not self._weight:
            return None
        return Estimate(signal=self._signal / self._weight, noise=self._noise / self._weight)

    @property
    def noise_scale(self) -> float | None:
        """B_simple = tr Σ / |G|², in samples: beyond such a batch, more samples a step gain little.

        None while there is nothing, and where noise hides the signal: an estimate of |G|² that is not above 0.
        """
        found = self.estimate
        return max(0.0, found.noise) / found.signal if found and found.signal > 0 else None


EVERY = 10
"""Steps from one measurement to the next."""


def parts(batch: Batch) -> list[int]:
    """Samples of each part of a step that shows a gradient of its own: of the ranks, or of one rank's passes."""
    if len(batch.shares) > 1:
        return [share * batch.grad_accum_steps for share in batch.shares]
    return [*batch.shares] * batch.grad_accum_steps


class Readback:
    """Reads a tensor as it is now, without waiting for what the device is given between now and the reading."""

    def __init__(self, values: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """The figures; waits until they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[float] = self._values.tolist()
        return found


class GradientNoise:
    """Compares the mean gradient of a whole step with those of its parts: the ranks', or one rank's passes.

    It costs a norm of the gradients and an all-reduce of two numbers in one step of `EVERY`; the host waits for
    neither: an estimate is taken in when the next one is measured, or asked for.
    """

    def __init__(self, model: nn.Module, batch: Batch, gang: Gang) -> None:
        """Raises ValueError where a step has only one part: see `parts`."""
        self._parameters, self._batch, self._gang = list(model.parameters()), batch, gang
        self._sizes = parts(batch)
        if len(self._sizes) < 2:
            raise ValueError(
                "gradient noise is measured between ranks or accumulation steps, but this trial has one of each"
            )
        share, accumulate, ranks = batch.shares[gang.rank], batch.grad_accum_steps, gang.world_size
        # Scaled losses of the parts add up to the mean over the step, or do so when averaged over the ranks.
        own = share * accumulate * ranks if ranks > 1 else share
        self._weight = own / batch.global_batch_size
        self._squares = torch.zeros(2, dtype=torch.float64, device=gang.device)
        self._before: list[Tensor] | None = None
        self._measures, self._steps = True, 0
        self._under_way: Readback | None = None
        self._smoothed = Smoothed()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at what this optimizer is given, from its next step on."""
        optimizer.register_step_pre_hook(self._at_step)

    def state(self) -> dict[str, Any]:
        """Between two steps: the same on all ranks."""
        under_way = self._under_way.read() if self._under_way else None
        return {"steps": self._steps, "smoothed": self._smoothed.state(), "under_way": under_way}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Bring that back, before the first step."""
        self._steps = state["steps"]
        self._measures = self._steps % EVERY == 0
        self._smoothed.restore(state["smoothed"])
        if state["under_way"] is not None:
            self._under_way = Readback(self._squares.new_tensor(state["under_way"]))

    def see(self, *gradients: Tensor) -> None:
        """A part of the rank's own gradients, whose samples' losses were scaled as for `Strategy`."""
        if self._measures:
            self._squares[0] += _square(gradients)

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """The context of a pass that adds to the gradients, all but a step's last."""
        yield
        self._see_pass()

    def smoothed(self) -> Smoothed:
        """The averages with all that has been measured; waits for the latest."""
        if self._under_way is not None:
            self._take_in(*self._under_way.read())
            self._under_way = None
        return self._smoothed

    def ready(self) -> Smoothed:
        """The averages without what may still be under way."""
        return self._smoothed

    def _at_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._measures:
            if self._gang.world_size == 1:
                self._see_pass()
                self._before = None
            self._squares[0] /= self._weight**2
            self._squares[1] = _square(self._gradients())
            self.smoothed()
            self._under_way = Readback(self._gang.sum(self._squares))
            self._squares = torch.zeros_like(self._squares)
        self._steps += 1
        self._measures = self._steps % EVERY == 0

    def _see_pass(self) -> None:
        if not self._measures:
            return
        gradients = self._gradients()
        self._squares[0] += _square(torch._foreach_sub(gradients, self._before) if self._before else gradients)
        self._before = [gradient.clone() for gradient in gradients]

    def _gradients(self) -> list[Tensor]:
        return [each.grad for each in self._parameters if each.grad is not None]

    def _take_in(self, small: float, big: float) -> None:
        """Sums of squared norms: of the parts' mean gradients, and of the step's, which every rank has added once."""
        parts = len(self._sizes)
        estimate = Estimate.of(
            small / parts,
            big / self._gang.world_size,
            small_batch=parts / sum(1 / size for size in self._sizes),
            big_batch=self._batch.global_batch_size,
        )
        self._smoothed.add(estimate)


def _square(gradients: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What one step is worth."""

    gain: float = 1.0
    """Factor on the learning rate."""
    advance: float = 1.0
    """How far budget and schedule go on, as a share of the step's own samples."""


def pace(estimate: Estimate | None, *, kappa: float, reference_batch_size: float) -> Pace:
    """The pace at a batch of κ times the reference batch; for κ > 1 a gain of 1 as long as there is no estimate.

    Johnson et al. 2020, "AdaScale SGD: a user-friendly algorithm for distributed training", equation 4 and section 3.1:
    r = (σ² + μ²) / (σ²/S + μ²), with σ² the variance at the reference batch, S = κ and μ² = |G|². It lies between 1
    and κ; the rate is the reference rate times r, and a step counts for r steps of the reference batch: r/κ of its own
    samples. Below the reference batch, where the paper has no say, r = κ: the linear rule.
    """
    if kappa <= 1:
        return Pace(gain=kappa)
    gain = _gain(estimate, kappa, reference_batch_size) if estimate else 1.0
    return Pace(gain=gain, advance=gain / kappa)


def _gain(estimate: Estimate, kappa: float, reference_batch_size: float) -> float:
    variance = max(0.0, estimate.noise) / reference_batch_size
    signal = max(0.0, estimate.signal)
    return (variance + signal) / (variance / kappa + signal) if variance or signal else 1.0


UNSEEN = (
    "the noise of gradients is not seen in a CUDA graph, nor through fp16's loss scaling: noise_scale and"
    " lr_rule=adascale need trainable.cuda_graph=off and another trainable.precision"
)
ALONE = "lr_rule=adascale sees noise between ranks or accumulation steps, and there is one of each: its gain stays 1"


class NoiseWatch:
    """Watches where it is `wanted` or the trial's rule is AdaScale, and where a step has several parts."""

    def __init__(self, model: nn.Module, context: Context, gang: Gang, *, wanted: bool, visible: bool) -> None:
        """Raises ValueError where gradients would have to be watched that are not `visible`."""
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
            self.gradients = GradientNoise(model, context.batch, gang)
        elif self._adapts and self._kappa > 1:
            context.remark(ALONE)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the gradients that this optimizer is given."""
        if self.gradients is not None:
            self.gradients.watch(optimizer)

    def state(self) -> dict[str, Any]:
        """What is known so far, between two steps: the same on all ranks."""
        return self.gradients.state() if self.gradients else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Bring that back, before the first step."""
        if self.gradients and state:
            self.gradients.restore(state)

    def pace(self) -> Pace:
        """That of the next step, by what is known without waiting for the device."""
        if not self._adapts:
            return Pace()
        estimate = self.gradients.ready().estimate if self.gradients else None
        return pace(estimate, kappa=self._kappa, reference_batch_size=self._reference)

    def figures(self) -> dict[str, Any]:
        """`noise_scale`, in samples, and AdaScale's `gain`, as far as they are known."""
        scale = self.gradients.smoothed().noise_scale if self.gradients else None
        known = {} if scale is None else {"noise_scale": scale}
        return known | ({"gain": self.pace().gain} if self._adapts else {})
