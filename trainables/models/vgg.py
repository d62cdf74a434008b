from __future__ import annotations

from torch import nn

from trainables.models.shape import Shape, require_side

STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions a stage, by the number of layers with weights in the paper's networks."""


def vgg(*, input_shape: Shape, num_classes: int, depth: int = 16) -> nn.Module:
    """VGG for small images: 3×3 convolutions with batch norm, global pooling, one dense layer.

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
