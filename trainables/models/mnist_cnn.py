from __future__ import annotations

from torch import nn

from trainables.models.shape import Shape, require_side


def mnist_cnn(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Keras' MNIST example: 1,199,882 parameters on 1×28×28 images with 10 classes."""
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
