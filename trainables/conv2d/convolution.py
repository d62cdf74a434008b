"""A convolution of many images by one filter, as calls that can be timed: the whole way, or a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import signal
from torch import Tensor
from torch.nn import functional

PARTS = ("whole", "copy_in", "compute", "copy_out")
"""What a call does: images from the host to the devices, convolved there, and back; or one of these three alone."""

Call = Callable[[], Sequence[Tensor]]
"""Returns what it made, in parts: images N×1×H×W, or N×C×H×W for `copy_in`."""


def margins(filter_size: int) -> tuple[int, int]:
    """Zeros before and behind a row: TensorFlow's SAME, which of an odd number puts the smaller half first."""
    return (filter_size - 1) // 2, filter_size // 2


def torch_call(images: Tensor, weight: Tensor, *, timed: str, devices: Sequence[str], pin_memory: bool = False) -> Call:
    """Float32 images N×C×H×W on the host, divided over the devices in contiguous parts; weight 1×C×k×k.

    A call that ends on the host has arrived there; one that ends on a device may still be running. ValueError for a
    part of the way that a CPU does not have.
    """
    on_gpus = devices[0] != "cpu"
    if not on_gpus:
        _require_no_copy(timed)
    pinned = pin_memory and on_gpus
    parts = (images.pin_memory() if pinned else images).tensor_split(len(devices))
    result = torch.empty(len(images), 1, *images.shape[2:], pin_memory=pinned)
    weights = [weight.to(device) for device in devices]

    def copy_in() -> list[Tensor]:
        return [part.to(device, non_blocking=pinned) for part, device in zip(parts, devices, strict=True)]

    def compute(there: Sequence[Tensor]) -> list[Tensor]:
        return [_convolve(part, own) for part, own in zip(there, weights, strict=True)]

    def copy_out(there: Sequence[Tensor]) -> list[Tensor]:
        for place, part in zip(result.tensor_split(len(devices)), there, strict=True):
            place.copy_(part, non_blocking=pinned)
        if pinned:
            wait_for(devices)
        return [result]

    if timed == "whole":
        return lambda: copy_out(compute(copy_in()))
    if timed == "copy_in":
        return copy_in
    resident = copy_in()
    if timed == "compute":
        return lambda: compute(resident)
    convolved = compute(resident)
    return lambda: copy_out(convolved)


def scipy_call(images: Tensor, weight: Tensor, *, timed: str) -> Call:
    """The same by SciPy, image by image, on the core of the caller. ValueError for what it has not."""
    _require_no_copy(timed)
    filters = weight[0].numpy()
    padding = ((0, 0), (0, 0), margins(filters.shape[-1]), margins(filters.shape[-1]))

    def call() -> list[Tensor]:
        padded = np.pad(images.numpy(), padding)
        convolved = [sum(map(_correlate, image, filters)) for image in padded]
        return [torch.from_numpy(np.stack(convolved)[:, None])]

    return call


def wait_for(devices: Sequence[str]) -> None:
    """Until these GPUs have done what they were given."""
    for device in devices:
        torch.cuda.synchronize(device)


def _convolve(images: Tensor, weight: Tensor) -> Tensor:
    before, after = margins(weight.shape[-1])
    if before == after:
        return functional.conv2d(images, weight, padding=before)
    return functional.conv2d(functional.pad(images, (before, after, before, after)), weight)


def _correlate(channel: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    found: np.ndarray = signal.correlate2d(channel, kernel, mode="valid")
    return found


def _require_no_copy(timed: str) -> None:
    if timed not in ("whole", "compute"):
        raise ValueError(f"trainable.timed={timed} times copies to and from a GPU: on a CPU, use whole or compute")
