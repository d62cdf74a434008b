"""Recognises a model that does not accept the images of its data: torch's own message names neither."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_RAISED = (RuntimeError, ValueError, IndexError)
"""What torch raises for shapes and types that do not fit; what a model's code gets wrong by itself is told well."""


class MisfitError(ValueError):
    """A model cannot be applied to images of the data's shape."""


@contextmanager
def as_misfit(model: nn.Module, name: str, input_shape: tuple[int, int, int]) -> Iterator[None]:
    """Raise MisfitError for what is raised within, if the model by itself takes no images of `input_shape` (C, H, W).

    `name` is the model's in the config. Where it does take them, the reason is another, and what was raised stays.
    """
    try:
        yield
    except _RAISED as error:
        why = _why_not(model, input_shape)
        if why is None:
            raise
        shape = "×".join(map(str, input_shape))
        raise MisfitError(
            f"model {name!r} does not take the data's images, N×C×H×W = N×{shape} of floats: build it from the"
            f" input_shape that it is given, or choose other data ({why})"
        ) from error


def _why_not(model: nn.Module, input_shape: tuple[int, int, int]) -> str | None:
    """What a copy of the model says to two blank images; on the CPU, because a GPU may be what is full or broken."""
    try:
        alone = copy.deepcopy(model).to("cpu", torch.float32)
    except Exception:  # somebody's model cannot be copied, a broken GPU not be read: what was raised before stands
        return None
    try:
        with torch.no_grad():
            alone(torch.zeros(2, *input_shape))
    except _RAISED as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error).strip() else repr(error)
    return None
