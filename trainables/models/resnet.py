"""ResNets with the stem for small images: a 3×3 convolution of stride 1, and no max-pooling (He et al. 2015, 4.2)."""

from __future__ import annotations

from collections.abc import Callable

import torchvision
from torch import nn

from trainables.models.shape import Shape, require_side


def resnet18(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """11,173,962 parameters on RGB images with 10 classes."""
    return _with_small_stem(torchvision.models.resnet18, input_shape, num_classes)


def resnet50(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """23,520,842 parameters on RGB images with 10 classes."""
    return _with_small_stem(torchvision.models.resnet50, input_shape, num_classes)


def resnet101(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """42,512,970 parameters on RGB images with 10 classes."""
    return _with_small_stem(torchvision.models.resnet101, input_shape, num_classes)


def _with_small_stem(make: Callable[..., nn.Module], input_shape: Shape, num_classes: int) -> nn.Module:
    require_side(make.__name__, input_shape, 8)
    net = make(num_classes=num_classes)
    net.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's other layers
    net.maxpool = nn.Identity()
    return net
