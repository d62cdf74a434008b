"""Models for images: small classifiers, residual networks, and any of torchvision's classifiers.

ResNet-18, -50 and -101 are torchvision's with the stem for small images: a 3×3 convolution of stride 1, and no
max-pooling (He et al. 2015, section 4.2). torchvision has no ResNet-9.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from trainables.context import RequestError

Shape = tuple[int, int, int]  # channels, height, width


def require_side(model: str, input_shape: Shape, least: int) -> None:
    """Raise ValueError if an image has a side of fewer than `least` pixels."""
    _, height, width = input_shape
    if min(height, width) < least:
        raise ValueError(f"model {model!r} takes images of at least {least}×{least} pixels, not {height}×{width}")


def small_cnn(*, input_shape: Shape, num_classes: int, width: int = 16) -> nn.Module:
    """Build a CNN for images from 8×8 pixels, small enough for CPUs; without batch norm, so that batches split exactly.

    3×3 convolutions of `width`, 2·width, … channels, halving the image until it is 4 to 7 pixels wide; one more; then a
    dense layer.
    """
    require_side("small_cnn", input_shape, 8)
    channels, height, breadth = input_shape
    layers: list[nn.Module] = []
    while min(height, breadth) >= 8:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        channels, width, height, breadth = width, 2 * width, height // 2, breadth // 2
    layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width * height * breadth, num_classes))


def mlp(*, input_shape: Shape, num_classes: int, hidden: Sequence[int] = (128, 128)) -> nn.Module:
    """Build dense layers with ReLU; `hidden` has the widths of the hidden layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [math.prod(input_shape), *hidden]
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def _with_small_stem(arch: str, input_shape: Shape, num_classes: int) -> nn.Module:
    from torchvision import models  # takes half a second, of which the small models need nothing

    require_side(arch, input_shape, 8)
    net: nn.Module = models.get_model(arch, weights=None, num_classes=num_classes)
    net.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # like torchvision's other layers
    net.maxpool = nn.Identity()
    return net


# On RGB images with 10 classes they have 11,173,962, 23,520,842 and 42,512,970 parameters.
resnet18 = partial(_with_small_stem, "resnet18")
resnet50 = partial(_with_small_stem, "resnet50")
resnet101 = partial(_with_small_stem, "resnet101")


class ResNet9(nn.Module):
    """Eight convolutions, two pairs of them residual, and a dense layer.

    After Page 2018, "How to train your ResNet": early max-pooling, and logits that are an eighth of the dense layer's
    outputs, so that training begins with small gradients.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(in_channels, 64),
            _convolution(64, 128, pool=True),
            _Residual(128),
            _convolution(128, 256, pool=True),
            _convolution(256, 512, pool=True),
            _Residual(512),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(512, num_classes, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map N×C×H×W to logits N×classes."""
        logits: torch.Tensor = self.head(self.features(images)) / 8
        return logits


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = images + self.change(images)
        return changed


def _convolution(in_channels: int, channels: int, *, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)]
    if pool:  # norm and activation then have a quarter of the work
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def resnet9(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Build ResNet-9: 6,573,120 parameters on RGB images with 10 classes."""
    require_side("resnet9", input_shape, 8)
    return ResNet9(input_shape[0], num_classes)


def from_torchvision(*, input_shape: Shape, num_classes: int, arch: str) -> nn.Module:
    """Build `torchvision.models.<arch>` with a first convolution and a head that fit the data.

    Raises RequestError for an unknown arch, and for one that does not take such images.
    """
    from torchvision import models

    known = models.list_models(module=models)
    if arch not in known:
        names = [name for name in known if arch in name] or known
        raise RequestError(f"model 'torchvision' has no arch {arch!r}; model.arch is one of {', '.join(names)}")
    try:
        net = _make(arch, input_shape, num_classes)
        # Two images pass through the model on the meta device, which computes shapes only.
        state = {name: tensor.to("meta") for name, tensor in (*net.named_parameters(), *net.named_buffers())}
        torch.func.functional_call(net.eval(), state, torch.empty(2, *input_shape, device="meta"))
        net.train()
    except (RuntimeError, ValueError, AssertionError) as error:
        shape = "×".join(map(str, input_shape))
        reason = str(error).strip().partition("\n")[0]
        raise RequestError(f"model 'torchvision' with arch {arch!r} takes no images of {shape}: {reason}") from error
    return net


def _make(arch: str, input_shape: Shape, num_classes: int) -> nn.Module:
    from torchvision import models

    options: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if arch.startswith("vit_"):
        options["image_size"] = input_shape[1]
    if arch in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}  # one output, like the others
    net: nn.Module = models.get_model(arch, **options)
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
