from __future__ import annotations

from torch import nn

from trainables.models.shape import Shape


def conv2d(*, input_shape: Shape, num_classes: int, filter_size: int = 3, channels: int = 1) -> nn.Module:
    """One convolution and nothing else, to time: N×C×H×W to N×channels×H×W.

    Stride 1, no bias, padded with zeros like TensorFlow's SAME: of an even filter's odd number of them the smaller half
    comes first. `num_classes` has no part in it.
    """
    convolution = nn.Conv2d(input_shape[0], channels, filter_size, bias=False)
    before = (filter_size - 1) // 2
    after = filter_size // 2
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), convolution)
