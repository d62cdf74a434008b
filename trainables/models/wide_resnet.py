from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from trainables.models.shape import Shape, require_side


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
        """N×c_in×H×W to N×c_out×H/stride×W/stride."""
        active = functional.relu(self.bn1(x))
        rest = x if self.shortcut is None else self.shortcut(active)
        residual: torch.Tensor = self.conv2(functional.relu(self.bn2(self.conv1(active))))
        return residual + rest


def wrn28_10(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """WRN-28-10 without dropout (Zagoruyko and Komodakis 2016).

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
