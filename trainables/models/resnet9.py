from __future__ import annotations

from torch import Tensor, nn

from trainables.models.shape import Shape, require_side


class ResNet9(nn.Module):
    """Eight convolutions and a dense layer, of which two pairs of convolutions are residual.

    Page 2018, "How to train your ResNet", in whose spirit it pools early and by maxima; logits are an eighth of the
    dense layer's outputs, so that a training begins with gentle gradients.
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
        """N×C×H×W → logits N×classes."""
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
    if pool:  # before norm and activation, which then have a quarter of the work
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def resnet9(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """6,573,120 parameters on RGB images with 10 classes."""
    require_side("resnet9", input_shape, 8)
    return ResNet9(input_shape[0], num_classes)
