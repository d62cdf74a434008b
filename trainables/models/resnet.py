"""Residual networks and VGG for small images.

ResNet-18, -50 and -101 are torchvision's with the stem for small images: a 3×3 convolution of stride 1, and no
max-pooling (He et al. 2015, section 4.2). torchvision's VGG is not used: its layers take RGB images only and are
initialised differently, so a trial's result would change. torchvision has no ResNet-9 and no WRN-28-10.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.torchvision import Shape, require_side


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

    def forward(self, images: Tensor) -> Tensor:
        """Map N×C×H×W to logits N×classes."""
        logits: Tensor = self.head(self.features(images)) / 8
        return logits


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = images + self.change(images)
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
