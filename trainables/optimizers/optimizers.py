"""Optimizers by name, and those beside torch's: LARS, LAMB, and Muon for the matrices of a model's blocks.

They are classes that take the parameters, a learning rate and further config keys.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainables.component_registry import factory_of
from trainables.context import RequestError
from trainables.models import repeated_blocks
from trainables.tensors import groups_of_parts, local
from trainables.torch_private import plain_optimizers


def build(
    module: nn.Module, config: Mapping[str, Any], *, lr: float, capturable: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer `config["name"]` of a module that is already on its device, fused if possible.

    `lr` is the rate until the first step sets its own, and `config["lr"]` the reference rate of the rule. `capturable`
    (on GPUs only) makes the rate a float32 tensor in every parameter group: a step captured in a CUDA graph follows
    `group["lr"].fill_(value)`. A name of the form `package.module:Class` is the user's optimizer, which receives the
    config's other keys, and the module itself if its first parameter is called `module`.

    Raises ValueError for unknown names and keys, and for values outside their range.
    """
    plain_optimizers()
    factory, options = factory_of("optimizer", config)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # torch has fused updates of divided parameters for these only, and would loop over the others one by one.
    is_fused = config["name"] in ("adam", "adamw") or not any(groups_of_parts(parameter) for parameter in trained)
    speed = {"fused" if is_fused else "foreach": True, "capturable": capturable}
    parameters = inspect.signature(factory).parameters
    taken = {key: value for key, value in speed.items() if key in parameters}
    weights = module if "module" in parameters else trained
    rate = torch.tensor(lr, device=next(module.parameters()).device) if capturable else lr
    optimizer = factory(weights, lr=rate, **taken | options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer {config['name']!r} made a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    return optimizer


class Layerwise(torch.optim.Optimizer):
    """An optimizer with two parameter groups: those with a trust ratio, and the 1-D ones without it or weight decay.

    Biases and the scales of norms have no ratio, as in the papers' experiments. `lr` may be a tensor on the parameters'
    device, so that a step can be captured in a CUDA graph. Raises ValueError for values outside their range.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], **defaults: Any) -> None:
        for name, value in defaults.items():
            if name == "betas" and not all(0 <= beta < 1 for beta in value):
                raise ValueError(f"optimizer.betas={list(value)} are not numbers from 0 to below 1")
            if name not in ("lr", "betas") and not value >= 0:
                raise ValueError(f"optimizer.{name}={value} is not at least 0")
        # An iterator could be read only once, and it is needed for both groups.
        every = list(parameters)
        layers = {"params": [parameter for parameter in every if parameter.ndim > 1], "adapts": True}
        others = {"params": [parameter for parameter in every if parameter.ndim <= 1], "adapts": False}
        super().__init__([layers, others | {"weight_decay": 0.0}], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's value, if any."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            layers = [parameter for parameter in group["params"] if parameter.grad is not None]
            if layers:
                self.update(Layers(layers), [local(layer.grad) for layer in layers], group)
        return loss

    @abstractmethod
    def update(self, layers: Layers, gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Update the weights of one group by this rank's parts of their gradients."""

    def states(self, layers: Layers, name: str) -> list[torch.Tensor]:
        """Return this rank's part of a state of each layer, which is zero at first."""
        for layer in layers.parameters:
            if name not in self.state[layer]:
                self.state[layer][name] = torch.zeros_like(layer)
        return [local(self.state[layer][name]) for layer in layers.parameters]


class Layers:
    """Parameters whose layers adapt, of which this rank may hold parts."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.weights = [local(parameter) for parameter in parameters]  # this rank's parts
        self._groups = groups_of_parts(parameters[0])

    def norms(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Return the Euclidean norm over all ranks of the tensor of each layer, one value per layer."""
        # One kernel for all layers: hundreds of small ones would take longer to launch than to run.
        norms = torch.stack(list(torch._foreach_norm(parts)))
        if not self._groups:
            return norms
        squares = norms.square()
        # A layer may be divided twice, by sharding and by tensor parallelism: squares add up over both.
        for group in self._groups:
            dist.all_reduce(squares, group=group)
        return squares.sqrt()


def trust_ratios(numerators: torch.Tensor, denominators: torch.Tensor) -> list[torch.Tensor]:
    """Return numerator / denominator for each layer; 1 if either is 0, so that a layer of zeros can change."""
    usable = (numerators > 0) & (denominators > 0)
    ratios = torch.where(usable, numerators / torch.where(usable, denominators, 1.0), 1.0)
    return list(ratios.unbind())


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling: You et al. 2017, "Large batch training of convolutional networks", algorithm 1.

    For a layer's weights w with gradient g:

        λ = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖)
        v ← momentum · v + lr · λ · (g + weight_decay · w)
        w ← w − v

    With `nesterov`, w ← w − momentum · v − lr · λ · (g + weight_decay · w), with the new v. λ = 1 if a side of the
    fraction is 0. 1-D parameters have λ = 1 and no weight decay. Takes all keys of SGD's config.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        *,
        lr: float | torch.Tensor,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
        )

    def update(self, layers: Layers, gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Take one step of the formulas above."""
        # Calls on lists of tensors throughout: a loop over layers would be bound by the host's launches.
        weights, velocities = layers.weights, self.states(layers, "velocity")
        changes = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            sizes = layers.norms(weights)
            slopes = layers.norms(gradients) + group["weight_decay"] * sizes
            torch._foreach_mul_(changes, trust_ratios(group["trust_coefficient"] * sizes, slopes))
        torch._foreach_mul_(changes, group["lr"])
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, changes)
        if group["nesterov"]:
            torch._foreach_add_(changes, velocities, alpha=group["momentum"])
        torch._foreach_sub_(weights, changes if group["nesterov"] else velocities)


class LAMB(Layerwise):
    """Layer-wise adaptive moments: You et al. 2019, "Large batch optimization for deep learning", algorithm 2.

    For a layer's weights w with gradient g at the optimizer's step t, with φ the identity:

        m ← β₁ · m + (1 − β₁) · g          m̂ = m / (1 − β₁ᵗ)
        v ← β₂ · v + (1 − β₂) · g²         v̂ = v / (1 − β₂ᵗ)
        u = m̂ / (√v̂ + ε) + weight_decay · w
        w ← w − lr · ‖w‖ / ‖u‖ · u

    The ratio is 1 if a side of it is 0. 1-D parameters have ratio 1 and no weight decay. Takes all keys of Adam's
    config.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        *,
        lr: float | torch.Tensor,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def update(self, layers: Layers, gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Take one step of the formulas above."""
        weights, changes = layers.weights, self._adam(layers, gradients, group)
        torch._foreach_add_(changes, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            torch._foreach_mul_(changes, trust_ratios(layers.norms(weights), layers.norms(changes)))
        torch._foreach_mul_(changes, group["lr"])
        torch._foreach_sub_(weights, changes)

    def _adam(self, layers: Layers, gradients: list[torch.Tensor], group: dict[str, Any]) -> list[torch.Tensor]:
        """Update the moments and return m̂ / (√v̂ + ε) for all weights."""
        weights, means, squares = layers.weights, self.states(layers, "mean"), self.states(layers, "square")
        beta1, beta2 = group["betas"]
        if "step" not in group:  # on the device, so that its powers can be captured; 1 − β₂ᵗ is small at first
            group["step"] = torch.zeros((), dtype=torch.float64, device=weights[0].device)
        step = group["step"].add_(1)
        of_means, of_squares = ((1 - beta**step).to(weights[0].dtype) for beta in (beta1, beta2))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        deviations = torch._foreach_sqrt(squares)
        torch._foreach_div_(deviations, of_squares.sqrt())
        torch._foreach_add_(deviations, group["eps"])
        changes = torch._foreach_div(means, of_means)
        torch._foreach_div_(changes, deviations)
        return list(changes)


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for 2-D parameters of the repeated blocks, fused AdamW for the others.

    Jordan et al. 2024, "Muon"; updates are scaled so that their size matches AdamW's (Liu et al. 2025, "Muon is
    scalable for LLM training", section 2.2), so that both share the rate and the weight decay.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float | torch.Tensor,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        """`betas` and `eps` are AdamW's. Raises RequestError for a model without blocks, and where Muon cannot work."""
        if isinstance(lr, torch.Tensor):
            raise RequestError("optimizer=muon cannot be captured in a CUDA graph: set trainable.cuda_graph=off")
        # The package supports older versions of torch for all other optimizers.
        if not hasattr(torch.optim, "Muon"):
            raise RequestError("optimizer=muon needs torch.optim.Muon, which torch has from 2.9 on")
        # Embeddings and the output layer are matrices, too, but Muon is not meant for them (Jordan et al. 2024).
        blocks = repeated_blocks(module, wanted_for="optimizer=muon")
        matrices = [parameter for parameter in blocks.parameters() if parameter.ndim == 2 and parameter.requires_grad]
        theirs = {id(matrix) for matrix in matrices}
        others = [
            parameter for parameter in module.parameters() if id(parameter) not in theirs and parameter.requires_grad
        ]
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov,
                ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                others, lr=lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, fused=True
            ),
        )
        # Hooks and the learning rate see one optimizer, whose groups are those of both.
        super().__init__([{"params": matrices}, {"params": others}], {"lr": lr})
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's value, if any."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self._parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both optimizers as of one, whose parameters are numbered through."""
        matrices, others = (part.state_dict() for part in self._parts)
        first = len(matrices["param_groups"][0]["params"])
        [group] = others["param_groups"]
        moved = {**group, "params": [first + index for index in group["params"]]}
        state = matrices["state"] | {first + index: value for index, value in others["state"].items()}
        return {"state": state, "param_groups": [*matrices["param_groups"], moved]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of both optimizers."""
        for part, group in zip(self._parts, state_dict["param_groups"], strict=True):
            first = group["params"][0]
            numbered = {**group, "params": [index - first for index in group["params"]]}
            own = {
                index - first: state_dict["state"][index] for index in group["params"] if index in state_dict["state"]
            }
            part.load_state_dict({"state": own, "param_groups": [numbered]})
        self.param_groups = [group for part in self._parts for group in part.param_groups]
