"""Small classifiers for images: plain CNNs and a multilayer perceptron."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from trainables.models.torchvision import Shape, require_side


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
