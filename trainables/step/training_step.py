"""One optimizer step: forward and backward passes over a rank's share, then an update. The host waits for nothing.

`Objective`, `loss_sum` and `correct_sum` say what is minimised and counted, for classes of whole images (targets N), of
each pixel (N×H×W) or of each token (N×T). `Precision` says in which number formats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.inputs.inputs import Minibatch
from trainables.step.strategies import Strategy
from trainables.tensors import join, split

if TYPE_CHECKING:
    from trainables.shared_tensors import SharedTensors


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss that a training minimises."""

    num_classes: int = 1  # the classes of the data; a model may have outputs for more
    smoothing: float = 0.0  # see `loss_sum`
    of_tokens: bool = False
    """Whether there is a class for each token of a sequence: then the model's last dimension has the classes, and
    `TokenLoss` computes the loss inside of what is compiled."""

    def require_fit(self, outputs: object, targets: Tensor) -> None:
        """Raise ValueError if these outputs are not logits for these targets."""
        # A GPU would report it much later, and without the shapes.
        if not isinstance(outputs, Tensor):
            raise ValueError(f"the model returns a {type(outputs).__name__}, not a tensor of logits")
        if self.of_tokens:
            self._require_tokens_fit(tuple(outputs.shape), targets)
            return
        shape, wanted = tuple(outputs.shape), (len(targets), self.num_classes, *targets.shape[1:])
        alike = len(shape) == len(wanted) and (shape[0], *shape[2:]) == (wanted[0], *wanted[2:])
        if not alike or shape[1] < self.num_classes:
            labels = "a label for each pixel" if targets.ndim > 1 else "a label for each image"
            raise ValueError(
                f"the model's outputs are {'×'.join(map(str, shape)) or 'a single number'}, and {self.num_classes}"
                f" classes with {labels} need {'×'.join(map(str, wanted))}"
            )

    def _require_tokens_fit(self, shape: tuple[int, ...], targets: Tensor) -> None:
        if len(shape) != 3 or shape[:2] != tuple(targets.shape):
            wanted = "×".join(map(str, (*targets.shape, self.num_classes)))
            raise ValueError(f"the model's outputs are {'×'.join(map(str, shape))}, and a token each needs {wanted}")
        if shape[2] < self.num_classes:
            raise ValueError(
                f"the data have tokens up to {self.num_classes - 1}, but the model's vocabulary has {shape[2]}"
            )


class TokenLoss(nn.Module):
    """A language model with its loss: tokens and targets N×T → the sum of `loss_sum`, as one value in a vector.

    The loss is part of what is compiled, which then keeps no logits in float32.
    """

    def __init__(self, model: nn.Module, *, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.loss: Callable[..., Tensor] = loss_sum

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.model(tokens), targets, smoothing=self.smoothing)[None]


def loss_sum(outputs: Tensor, targets: Tensor, *, scale: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """Return Σ over samples of scale × cross-entropy; a sample's is the mean over its pixels or tokens.

    Outputs are N×classes(×H×W), or N×T×classes for targets N×T. With `smoothing`, that share of a target is spread
    evenly over all classes (Szegedy et al. 2016, section 7).
    """
    # The sum of exponentials loses its small terms in half formats.
    wide = outputs if outputs.dtype == torch.float64 else outputs.float()
    if targets.ndim == 2:
        total = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="sum", label_smoothing=smoothing)
        return total * (scale / targets.shape[1])
    if scale * len(targets) == 1:  # saves the product and its derivative, which matter in short steps
        return F.cross_entropy(wide, targets, label_smoothing=smoothing)
    total = F.cross_entropy(wide, targets, reduction="sum", label_smoothing=smoothing)
    return total * (scale / math.prod(targets.shape[1:]))


def correct_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return Σ over samples of the correct share, 0 or 1 for whole images; a float64 scalar on the device."""
    classes = -1 if targets.ndim == 2 else 1
    # In float64, since float32 cannot count above 16 million samples.
    return (outputs.argmax(classes) == targets).sum().double() / math.prod(targets.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number formats of parameters, inputs and computations."""

    parameters: torch.dtype = torch.float32
    inputs: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    gathers: torch.dtype | None = None
    """The format of the copies of parameters that a sharded model computes on; None: as its parameters are."""
    tf32: bool = False  # whether float32 products may round their factors to 10 bits of mantissa, as tensor cores do
    scales_loss: bool = False  # whether the loss is scaled so that small gradients do not underflow

    @property
    def computes(self) -> torch.dtype:
        """Return the format of matrix products."""
        return self.autocast or self.gathers or self.parameters

    def casting(self, device: str) -> AbstractContextManager[object]:
        """Return the context of a forward pass, which may be entered repeatedly but not nested."""
        if self.autocast is None:
            return nullcontext()
        # Weights are cast once per pass either way; a cache of them must not outlive a captured pass.
        return torch.autocast(torch.device(device).type, self.autocast, cache_enabled=False)

    def set_flags(self, device: str) -> None:
        """Set torch's process-wide flags for training in this precision at full speed; they concern GPUs only."""
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


def precision_on(name: str, device: str, *, master_weights: str) -> Precision:
    """Return the precision of a valid name. Raises ValueError if the device lacks it.

    `master_weights` is the format of parameters; `bf16` is then also the format of all computations.
    """
    on_gpu = torch.device(device).type == "cuda"
    if name == "tf32" and not on_gpu:
        raise ValueError("precision=tf32 is a format of GPUs; the CPU has fp32, bf16, fp16 and fp64")
    if on_gpu and name in ("tf32", "bf16") and torch.cuda.get_device_capability()[0] < 8:
        raise ValueError(f"precision={name} needs compute capability 8.0; {torch.cuda.get_device_name()} has less")
    precision = PRECISIONS[name]
    return precision if master_weights == "fp32" else replace(precision, parameters=torch.bfloat16, autocast=None)


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
