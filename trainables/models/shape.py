"""What a model demands of its images."""

from __future__ import annotations

Shape = tuple[int, int, int]
"""Channels, height, width."""


def require_side(model: str, input_shape: Shape, least: int) -> None:
    """Raise ValueError where an image has a side of fewer than `least` pixels."""
    _, height, width = input_shape
    if min(height, width) < least:
        raise ValueError(f"model {model!r} takes images of at least {least}×{least} pixels, not {height}×{width}")


def require_multiple(model: str, input_shape: Shape, factor: int) -> None:
    """Raise ValueError where the sides of an image are not multiples of `factor` pixels."""
    _, height, width = input_shape
    if height % factor or width % factor:
        raise ValueError(f"model {model!r} takes images whose sides are multiples of {factor}, not {height}×{width}")
