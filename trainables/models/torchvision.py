"""Any of torchvision's classification models, without pretrained weights; and checks of image sizes for all models."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn

Shape = tuple[int, int, int]
"""Channels, height, width."""


def require_side(model: str, input_shape: Shape, least: int) -> None:
    """Raise ValueError if an image has a side of fewer than `least` pixels."""
    _, height, width = input_shape
    if min(height, width) < least:
        raise ValueError(f"model {model!r} takes images of at least {least}×{least} pixels, not {height}×{width}")


def require_multiple(model: str, input_shape: Shape, factor: int) -> None:
    """Raise ValueError if the sides of an image are not multiples of `factor` pixels."""
    _, height, width = input_shape
    if height % factor or width % factor:
        raise ValueError(f"model {model!r} takes images whose sides are multiples of {factor}, not {height}×{width}")


def from_torchvision(*, input_shape: Shape, num_classes: int, arch: str) -> nn.Module:
    """Build `torchvision.models.<arch>` with a first convolution and a head that fit the data.

    Raises ValueError for an unknown arch, and for one that does not take such images.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if arch not in known:
        raise ValueError(f"model 'torchvision' has no arch {arch!r}; it is one of {', '.join(known)}")
    try:
        net = _make(arch, input_shape, num_classes)
        # Two images pass through the model on the meta device, which computes shapes only.
        state = {name: tensor.to("meta") for name, tensor in (*net.named_parameters(), *net.named_buffers())}
        torch.func.functional_call(net.eval(), state, torch.empty(2, *input_shape, device="meta"))
        net.train()
    except (RuntimeError, ValueError, AssertionError) as error:
        shape = "×".join(map(str, input_shape))
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"model 'torchvision' with arch {arch!r} takes no images of {shape}: {reason}") from error
    return net


def _make(arch: str, input_shape: Shape, num_classes: int) -> nn.Module:
    options: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if arch.startswith("vit_"):
        options["image_size"] = input_shape[1]
    if arch in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}  # one output, like the others
    net: nn.Module = torchvision.models.get_model(arch, **options)
    if input_shape[0] == 3:
        return net
    name, first = next((name, child) for name, child in net.named_modules() if isinstance(child, nn.Conv2d))
    replacement = nn.Conv2d(
        input_shape[0],
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    nn.init.kaiming_normal_(replacement.weight, mode="fan_out", nonlinearity="relu")
    net.set_submodule(name, replacement)
    return net
