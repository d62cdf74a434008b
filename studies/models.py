"""The networks of the published experiments, written out as published: the CNNs, VGG, a wide ResNet and the U-Net.

torchvision's VGG takes RGB images only and is initialised differently. torchvision has no WRN-28-10.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from trainables.models.images import Shape, require_side


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
