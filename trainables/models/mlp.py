from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from trainables.models.shape import Shape


def mlp(*, input_shape: Shape, num_classes: int, hidden: Sequence[int] = (128, 128)) -> nn.Module:
    """Dense layers with ReLU; `hidden` holds the widths of the hidden ones."""
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [math.prod(input_shape), *hidden]
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
