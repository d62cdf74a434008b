"""One optimizer step: forward and backward passes over a rank's share, one update. The host waits for nothing here.

What is minimised and what is counted; of classes for whole images (targets N), or for each pixel (N×H×W).

The number formats of a training step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trainables.inputs.inputs import Minibatch
from trainables.step.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a training minimises."""

    num_classes: int = 1
    """Of the data; a model may have outputs for more."""
    smoothing: float = 0.0
    """See `loss_sum`."""

    def require_fit(self, outputs: object, targets: Tensor) -> None:
        """Raise ValueError where these outputs are no logits for these targets; a GPU would only say so much later."""
        if not isinstance(outputs, Tensor):
            raise ValueError(f"the model returns a {type(outputs).__name__}, not a tensor of logits")
        found, wanted = tuple(outputs.shape), (len(targets), self.num_classes, *targets.shape[1:])
        alike = len(found) == len(wanted) and (found[0], *found[2:]) == (wanted[0], *wanted[2:])
        if not alike or found[1] < self.num_classes:
            labels = "a label for each pixel" if targets.ndim > 1 else "a label for each image"
            raise ValueError(
                f"the model's outputs are {_told(found)}, and {self.num_classes} classes with {labels} need"
                f" {_told(wanted)}"
            )


def loss_sum(outputs: Tensor, targets: Tensor, *, scale: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """Σ over samples of scale × cross-entropy, a sample's being the mean over its pixels; outputs N×classes(×H×W).

    With `smoothing`, that share of a target is spread evenly over all classes (Szegedy et al. 2016, section 7).
    """
    if scale * len(targets) == 1:  # a short step is long enough without the product and its derivative
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing)
    total = F.cross_entropy(outputs, targets, reduction="sum", label_smoothing=smoothing)
    return total * (scale / _places(targets))


def correct_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Σ over samples of what is right: 0 or 1, or the share of a sample's pixels; a float64 scalar on the device."""
    return (outputs.argmax(1) == targets).sum().double() / _places(targets)


def _told(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _places(targets: Tensor) -> int:
    return math.prod(targets.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What is kept, fed and computed in which format."""

    parameters: torch.dtype = torch.float32
    inputs: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    tf32: bool = False
    """Whether float32 products may round their factors to 10 bits of mantissa (tensor cores, compute capability 8)."""
    scales_loss: bool = False
    """Whether the loss is scaled so that small gradients do not underflow."""

    def casting(self, device: str) -> AbstractContextManager[object]:
        """The context of a forward pass; may be entered again and again, not nested."""
        if self.autocast is None:
            return nullcontext()
        # Weights are cast once a pass either way; a cache of them must not outlive a captured one.
        return torch.autocast(torch.device(device).type, self.autocast, cache_enabled=False)

    def set_flags(self, device: str) -> None:
        """Set the process's switches for training at full speed in this precision; they concern GPUs only."""
        if torch.device(device).type == "cuda":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.backends.cudnn.benchmark = True


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(tf32=True),
    "bf16": Precision(inputs=torch.bfloat16, autocast=torch.bfloat16, tf32=True),
    "fp16": Precision(inputs=torch.float16, autocast=torch.float16, tf32=True, scales_loss=True),
    "fp64": Precision(parameters=torch.float64, inputs=torch.float64),
}


def precision_on(name: str, device: str) -> Precision:
    """The precision of this name, which the settings have checked. Raises ValueError where the device lacks it."""
    on_gpu = torch.device(device).type == "cuda"
    if name == "tf32" and not on_gpu:
        raise ValueError("precision=tf32 is a format of GPUs; the CPU has fp32, bf16, fp16 and fp64")
    if on_gpu and name in ("tf32", "bf16") and torch.cuda.get_device_capability()[0] < 8:
        raise ValueError(f"precision={name} needs compute capability 8.0; {torch.cuda.get_device_name()} has less")
    return PRECISIONS[name]


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
