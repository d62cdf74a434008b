from __future__ import annotations

from torch import nn

from trainables.models.shape import Shape, require_side


def small_cnn(*, input_shape: Shape, num_classes: int, width: int = 16) -> nn.Module:
    """A CNN for the 8×8 digits and up, small enough for CPUs; without batch norm, so that batches split exactly.

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
