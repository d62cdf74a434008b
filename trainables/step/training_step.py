"""One optimizer step: forward and backward passes over a rank's share, then an update. The host waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainables.inputs.inputs import Minibatch
from trainables.step.objective import Objective, loss_sum
from trainables.step.precision import Precision
from trainables.step.strategies import Strategy
from trainables.tensors import join, split

if TYPE_CHECKING:
    from trainables.shared_tensors import SharedTensors

OPTIMIZER = "optimizer"  # the first part of the names of an optimizer's tensors in a checkpoint


class TrainingStep:
    """An optimizer step, on one global batch at a time, that launches its kernels one by one."""

    def __init__(
        self,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Precision,
        grad_accum_steps: int,
        device: str,
        objective: Objective | None = None,
        clip_grad_norm: float | None = None,
    ) -> None:
        self._strategy, self._optimizer, self.grad_accum_steps = strategy, optimizer, grad_accum_steps
        self._casting = precision.casting(device)
        self._scaler = torch.amp.GradScaler(torch.device(device).type, enabled=precision.scales_loss)
        self._lr: float | None = None
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        """The rank's scaled losses, times the size of their step, summed since it was last zeroed; never read here,
        which would wait for the device."""
        self._times, self._objective = 1, objective or Objective()
        self._exchanges, self._fits = True, False
        self._clip_grad_norm = clip_grad_norm

    @contextmanager
    def without_exchange(self) -> Iterator[None]:
        """Update each rank's model by its own gradients only, in the steps of this block: the models diverge.

        A sharded model becomes meaningless, because its ranks cannot train without the others' parameters.
        """
        # A sharded model also gathers parameters, and that must stop as well.
        if self._strategy.without_communication is not None:
            with self._strategy.without_communication():
                yield
            return
        self._exchanges = False
        try:
            yield
        finally:
            self._exchanges = True

    def __call__(self, batches: Iterator[Minibatch], lr: float) -> None:
        """Take a minibatch for each forward pass of the step, and update the model once at the rate `lr`."""
        self.set_rate(lr)
        self.take(batches)

    def take(self, batches: Iterator[Minibatch]) -> None:
        """Take the step at the rate set before."""
        self.update(batches)

    def enlarge(self, times: int, grad_accum_steps: int) -> None:
        """Take so many times the initial samples in each step from now on, in so many passes."""
        self._times, self.grad_accum_steps = times, grad_accum_steps

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what the next step depends on besides the model, the same on all ranks, and its tensors by name."""
        plain, tensors = split(self._optimizer.state_dict(), OPTIMIZER)
        return {"optimizer": plain, "scaler": self._scaler.state_dict()}, tensors

    def restore(self, state: Mapping[str, Any], tensors: SharedTensors, *, own_settings: bool = False) -> None:
        """Restore the state before the first step; with `own_settings`, keep this optimizer's betas, decay, …"""
        groups = self._optimizer.param_groups
        settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        weights = [weight for group in groups for weight in group["params"]]
        # A moment is divided among the ranks as its parameter is.
        of_weight = {f"{OPTIMIZER}.state.{index}": weight for index, weight in enumerate(weights)}
        loaded = {
            name: tensors.empty(name, like=of_weight.get(name.rpartition(".")[0]))
            for name in tensors.names(f"{OPTIMIZER}.")
        }
        tensors.load(loaded)
        self._optimizer.load_state_dict(join(state["optimizer"], loaded, OPTIMIZER))
        for group, own in zip(self._optimizer.param_groups, settings if own_settings else (), strict=own_settings):
            group.update(own)
        self._scaler.load_state_dict(dict(state["scaler"]))

    def set_rate(self, lr: float) -> None:
        """Set the rate of the following updates, in place if it is a tensor."""
        # Writing to a tensor on the device in each step would cost a launch.
        if lr == self._lr:
            return
        self._lr = lr
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def update(self, batches: Iterator[Minibatch]) -> None:
        """Do the step's work at the rate set before; gradients are None before and after it."""
        for remaining in reversed(range(self.grad_accum_steps)):
            # Ranks exchange their gradients once, in the last pass of the step.
            with self._strategy.without_exchange() if remaining or not self._exchanges else nullcontext():
                loss = self.loss_of(*next(batches))
                self._scaler.scale(loss).backward()
            self.loss += loss.detach() if self._times == 1 else loss.detach() * self._times
        if self._exchanges:
            self._strategy.exchange()
        if self._clip_grad_norm is not None:
            # The norm to clip is that of the true gradients, not of the scaled ones.
            self._scaler.unscale_(self._optimizer)
            weights = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(weights, self._clip_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:  # as zero_grad does, which spends 10 µs on profiling
                parameter.grad = None

    def loss_of(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the scaled loss of one forward pass."""
        with self._casting:
            if self._objective.of_tokens:
                losses: Tensor = self._strategy.forward(images, targets)
                return losses.sum() * (self._strategy.loss_scale / self._times)
            outputs = self._strategy.forward(images)
            if not self._fits:  # once: shapes never change
                self._objective.require_fit(outputs, targets)
                self._fits = True
            scale = self._strategy.loss_scale / self._times
            return loss_sum(outputs, targets, scale=scale, smoothing=self._objective.smoothing)
