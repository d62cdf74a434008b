"""A U-Net for segmentation."""

from __future__ import annotations

import torch
from torch import nn

from trainables.models.torchvision import Shape, require_multiple


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
    require_multiple("unet", input_shape, 2**depth)
    return UNet(input_shape[0], num_classes, width=width, depth=depth)


def _two_convolutions(c_in: int, c_out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (c_in, c_out):
        layers += [nn.Conv2d(channels, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
