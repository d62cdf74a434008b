"""One optimizer step: forward and backward passes over a rank's share, one update. The host waits for nothing here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from trainables.inputs.inputs import Minibatch
from trainables.step.objective import Objective, loss_sum
from trainables.step.precision import Precision
from trainables.step.strategy import Strategy


class Step(Protocol):
    """Trains on one global batch at a time."""

    @property
    def loss(self) -> Tensor:
        """Σ over steps since it was last zeroed of the rank's scaled losses, times how large a step is; float64."""

    def __call__(self, batches: Iterator[Minibatch], lr: float) -> None:
        """Take as many minibatches as a step has forward passes, and update the model once."""

    def enlarge(self, times: int, grad_accum_steps: int) -> None:
        """Take so many times the samples of the first steps from now on, in so many passes."""

    def state(self) -> dict[str, Any]:
        """What the next step depends on besides the model: the same on all ranks."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Bring that back, before the first step."""


class TrainingStep:
    """Everything a step needs, made once."""

    def __init__(
        self,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Precision,
        grad_accum_steps: int,
        device: str,
        objective: Objective | None = None,
    ) -> None:
        self._strategy, self._optimizer, self.grad_accum_steps = strategy, optimizer, grad_accum_steps
        self._casting = precision.casting(device)
        self._scaler = torch.amp.GradScaler(torch.device(device).type, enabled=precision.scales_loss)
        self._lr: float | None = None
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        """See `Step`; never read here."""
        self._times, self._objective = 1, objective or Objective()
        self._exchanges, self._fits = True, False

    @contextmanager
    def without_exchange(self) -> Iterator[None]:
        """Steps in this block update each rank's model by its own gradients: the models part."""
        self._exchanges = False
        try:
            yield
        finally:
            self._exchanges = True

    def __call__(self, batches: Iterator[Minibatch], lr: float) -> None:
        """See `Step`."""
        self.set_rate(lr)
        self.update(batches)

    def enlarge(self, times: int, grad_accum_steps: int) -> None:
        """See `Step`."""
        self._times, self.grad_accum_steps = times, grad_accum_steps

    def state(self) -> dict[str, Any]:
        """See `Step`."""
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Step`."""
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self._scaler.load_state_dict(dict(state["scaler"]))

    def require_capturable(self) -> None:
        """Raise ValueError where the host must know whether gradients overflowed before it can update the model."""
        if self._scaler.is_enabled() and not getattr(self._optimizer, "_step_supports_amp_scaling", False):
            name = type(self._optimizer).__name__
            raise ValueError(f"cuda_graph=on with precision=fp16 needs SGD, Adam or AdamW, which are fused, not {name}")

    def set_rate(self, lr: float) -> None:
        """Set the rate of the coming updates; a rate that is a tensor keeps its place in memory."""
        if lr == self._lr:
            return
        self._lr = lr
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def update(self, batches: Iterator[Minibatch]) -> None:
        """The step's work at the rate set before; gradients are None before and after it."""
        for remaining in reversed(range(self.grad_accum_steps)):
            with self._strategy.without_exchange() if remaining or not self._exchanges else nullcontext():
                loss = self._loss(*next(batches))
                self._scaler.scale(loss).backward()
            self.loss += loss.detach() if self._times == 1 else loss.detach() * self._times
        if self._exchanges:
            self._strategy.exchange()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:  # as zero_grad does, which takes 10 µs of its own to be seen by profilers
                parameter.grad = None

    def _loss(self, images: Tensor, targets: Tensor) -> Tensor:
        with self._casting:
            outputs = self._strategy.forward(images)
            if not self._fits:  # shapes stay the same from the first pass on
                self._objective.require_fit(outputs, targets)
                self._fits = True
            scale = self._strategy.loss_scale / self._times
            return loss_sum(outputs, targets, scale=scale, smoothing=self._objective.smoothing)
