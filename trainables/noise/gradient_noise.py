"""Watches the gradients of a training for their noise, in one step of `EVERY`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainables.context import Batch
from trainables.noise.noise_scale import Estimate, Smoothed
from trainables.process_group import Gang

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
