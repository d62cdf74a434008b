"""Models for images: small classifiers, residual networks, VGG, a U-Net, and any of torchvision's classifiers.

ResNet-18, -50 and -101 are torchvision's with the stem for small images: a 3×3 convolution of stride 1, and no
max-pooling (He et al. 2015, section 4.2). torchvision's VGG is not used: its layers take RGB images only and are
initialised differently, so a trial's result would change. torchvision has no ResNet-9 and no WRN-28-10.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn import functional

Shape = tuple[int, int, int]
"""Channels, height, width."""


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


def mnist_cnn(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Build Keras' MNIST example: 1,199,882 parameters on 1×28×28 images with 10 classes."""
    require_side("mnist_cnn", input_shape, 6)
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )


def cnn10(*, input_shape: Shape, num_classes: int, bias: bool = True) -> nn.Module:
    """Build three 3×3 convolutions each of 64, 128 and 256 channels, with batch norm, and one dense layer.

    1,925,258 parameters on RGB images with 10 classes. `bias` gives the convolutions biases, which batch norm makes
    redundant: without them a step is a little faster, and there are 1,344 parameters fewer.
    """
    require_side("cnn10", input_shape, 4)
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for width in (64, 128, 256):
        if layers:
            layers.append(nn.AvgPool2d(2))
        for _ in range(3):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, bias=bias),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def resnet18(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Build ResNet-18: 11,173,962 parameters on RGB images with 10 classes."""
    return _with_small_stem(torchvision.models.resnet18, input_shape, num_classes)


def resnet50(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Build ResNet-50: 23,520,842 parameters on RGB images with 10 classes."""
    return _with_small_stem(torchvision.models.resnet50, input_shape, num_classes)


def resnet101(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Build ResNet-101: 42,512,970 parameters on RGB images with 10 classes."""
    return _with_small_stem(torchvision.models.resnet101, input_shape, num_classes)


def _with_small_stem(make: Callable[..., nn.Module], input_shape: Shape, num_classes: int) -> nn.Module:
    require_side(make.__name__, input_shape, 8)
    net = make(num_classes=num_classes)
    net.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # like torchvision's other layers
    net.maxpool = nn.Identity()
    return net


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


class WideBlock(nn.Module):
    """Two 3×3 convolutions, each after batch norm and ReLU, beside a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(c_in), nn.BatchNorm2d(c_out)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        projects = c_in != c_out or stride != 1
        self.shortcut = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if projects else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map N×c_in×H×W to N×c_out×H/stride×W/stride."""
        active = functional.relu(self.bn1(x))
        rest = x if self.shortcut is None else self.shortcut(active)
        residual: torch.Tensor = self.conv2(functional.relu(self.bn2(self.conv1(active))))
        return residual + rest


def wrn28_10(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Build WRN-28-10 without dropout (Zagoruyko and Komodakis 2016).

    36,479,194 parameters on RGB images with 10 classes.
    """
    require_side("wrn28_10", input_shape, 8)
    layers: list[nn.Module] = [nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)]
    width = 16
    for c_out, stride in ((160, 1), (320, 2), (640, 2)):
        for index in range(4):
            layers.append(WideBlock(width, c_out, stride if index == 0 else 1))
            width = c_out
    head = [nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(width, num_classes))


STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""{depth: convolutions in each stage}; the depth counts the layers with weights in the paper's networks."""


def vgg(*, input_shape: Shape, num_classes: int, depth: int = 16) -> nn.Module:
    """Build VGG for small images: 3×3 convolutions with batch norm, global pooling, one dense layer.

    Simonyan and Zisserman 2014, table 1, with one dense layer in place of three. 14,728,266 parameters at depth 16 on
    RGB images with 10 classes. Raises ValueError for depths other than 11, 13, 16 and 19.
    """
    if depth not in STAGES:
        raise ValueError(f"model 'vgg' has depths {', '.join(map(str, STAGES))}, not {depth}")
    require_side("vgg", input_shape, 32)
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for width, convolutions in zip((64, 128, 256, 512, 512), STAGES[depth], strict=True):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. 2015 with padded convolutions and batch norm, so that the map keeps its size."""

    def __init__(self, channels: int, num_classes: int, *, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            _two_convolutions(c_in, c_out) for c_in, c_out in zip([channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, stride=2) for c in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_two_convolutions(2 * c, c) for c in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map N×C×H×W to logits N×num_classes×H×W."""
        levels: list[torch.Tensor] = []
        for down in self.down:
            x = down(self.pool(levels[-1]) if levels else x)
            levels.append(x)
        levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([levels.pop(), up(x)], dim=1))
        logits: torch.Tensor = self.head(x)
        return logits


def unet(*, input_shape: Shape, num_classes: int, width: int = 64, depth: int = 4) -> nn.Module:
    """Build a U-Net of `width` channels at full size, doubled at each of `depth` halvings.

    31,036,546 parameters on grey images with 2 classes. The sides of an image must be multiples of 2**depth pixels.
    """
    channels, *sides = input_shape
    factor = 2**depth
    if any(side % factor for side in sides):
        shape = "×".join(map(str, sides))
        raise ValueError(f"model 'unet' takes images whose sides are multiples of {factor}, not {shape}")
    return UNet(channels, num_classes, width=width, depth=depth)


def _two_convolutions(c_in: int, c_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (c_in, c_out):
        layers += [nn.Conv2d(channels, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


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
