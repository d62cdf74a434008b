"""Optimizers by name: classes that take the parameters, a learning rate and further config keys."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainables.registry import OPTIMIZERS, check_keys, choose


def build(
    module: nn.Module, config: Mapping[str, Any], *, lr: float, capturable: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer `config["name"]` of a module that is already on its device, fused if possible.

    `config["lr"]` is the reference rate, from which the caller has computed `lr`. `capturable` (on GPUs only) makes the
    rate a float32 tensor in every parameter group: a step captured in a CUDA graph follows `group["lr"].fill_(value)`.
    A name of the form `package.module:Class` is the user's optimizer, which receives the config's other keys, and the
    module itself if its first parameter is called `module`.

    Raises ValueError for unknown names and keys, and for values outside their range.
    """
    options = {key: value for key, value in config.items() if key not in ("name", "lr")}
    factory = choose(OPTIMIZERS, config["name"], subject="optimizer")
    check_keys(factory, options, subject=f"optimizer {config['name']!r}", given=("params", "module", "lr"))
    speed = {"fused": True, "capturable": capturable}
    parameters = inspect.signature(factory).parameters
    taken = {key: value for key, value in speed.items() if key in parameters}
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    weights = module if "module" in parameters else trained
    rate = torch.tensor(lr, device=next(module.parameters()).device) if capturable else lr
    optimizer = factory(weights, lr=rate, **taken | options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer {config['name']!r} made a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    return optimizer
