"""A trainable that times one convolution of many images: the first, cold call and warm calls, with or without copies.

The published experiment E4 (`sweep=published/conv2d`) compares GPUs with one CPU core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainables import process_group
from trainables.context import Context
from trainables.timed_window import Clock, Lap, Warmup, measure_window, timings, warm_up
from trainables.torch_state import generator

LIBRARIES = ("torch", "scipy")
PARTS = ("whole", "copy_in", "compute", "copy_out")
"""What a call does: copy the images to the devices, convolve them, and copy them back; or one of these steps."""

Call = Callable[[], Sequence[Tensor]]
"""Returns its result in parts: images N×1×H×W, or N×C×H×W for `copy_in`."""


def margins(filter_size: int) -> tuple[int, int]:
    """Return the zeros before and after a row: TensorFlow's SAME, with the smaller half of an odd number first."""
    return (filter_size - 1) // 2, filter_size // 2


def torch_call(images: Tensor, weight: Tensor, *, timed: str, devices: Sequence[str], pin_memory: bool = False) -> Call:
    """Make a call by PyTorch: float32 images N×C×H×W on the host, divided among the devices; weight 1×C×k×k.

    A call that ends on the host is complete when it returns; one that ends on a device may still be running. Raises
    ValueError for a copy on a CPU.
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

    before, after = margins(weight.shape[-1])

    def compute(inputs: Sequence[Tensor]) -> list[Tensor]:
        if before == after:
            return [functional.conv2d(part, own, padding=before) for part, own in zip(inputs, weights, strict=True)]
        padded = [functional.pad(part, (before, after, before, after)) for part in inputs]
        return [functional.conv2d(part, own) for part, own in zip(padded, weights, strict=True)]

    def copy_out(outputs: Sequence[Tensor]) -> list[Tensor]:
        for place, part in zip(result.tensor_split(len(devices)), outputs, strict=True):
            place.copy_(part, non_blocking=pinned)
        if pinned:
            synchronize(devices)
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
    """Make a call by SciPy, image by image, on the caller's core. Raises ValueError for a copy."""
    _require_no_copy(timed)
    filters = weight[0].numpy()
    padding = ((0, 0), (0, 0), margins(filters.shape[-1]), margins(filters.shape[-1]))

    # Its import takes seconds, and the other library does not need it.
    from scipy import signal

    def call() -> list[Tensor]:
        padded = np.pad(images.numpy(), padding)
        convolved = [
            sum(signal.correlate2d(*pair, mode="valid") for pair in zip(image, filters, strict=True))
            for image in padded
        ]
        return [torch.from_numpy(np.stack(convolved)[:, None])]

    return call


def synchronize(devices: Sequence[str]) -> None:
    """Wait until these GPUs are idle."""
    for device in devices:
        torch.cuda.synchronize(device)


def _require_no_copy(timed: str) -> None:
    if timed not in ("whole", "compute"):
        raise ValueError(f"trainable.timed={timed} times copies to and from a GPU: on a CPU, use whole or compute")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The section `trainable`. Raises ValueError naming the valid choices."""

    library: str = "torch"
    timed: str = "whole"
    """One of `PARTS`."""
    side: int = 100
    """Pixels of the square images."""
    channels: int = 1
    """Channels of an image; the result has one."""
    filter_size: int = 3
    """Pixels per side."""
    pin_memory: bool = False
    """If set, images and result are in page-locked memory."""
    window_s: float = 2.0
    window_steps: int = 50
    warmup_steps: int = 10
    warmup_s: float = 0.3

    @staticmethod
    def of(config: Mapping[str, Any]) -> Settings:
        """Read the section; its other keys are the orchestrator's."""
        return Settings(**{field.name: config[field.name] for field in fields(Settings) if field.name in config})

    def __post_init__(self) -> None:
        for key, choices in (("library", LIBRARIES), ("timed", PARTS)):
            if getattr(self, key) not in choices:
                raise ValueError(f"trainable.{key}={getattr(self, key)!r} is not one of {', '.join(choices)}")
        if min(self.side, self.channels, self.filter_size, self.window_steps) < 1:
            raise ValueError("trainable.side, channels, filter_size and window_steps are at least 1")


class DevicesClock(Clock):
    """A clock that is read when all of several GPUs are idle."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__("cpu")
        self._devices = [device for device in devices if device != "cpu"]

    def read(self) -> float:
        """Wait for the devices, then read the clock."""
        synchronize(self._devices)
        return super().read()


def train(config: Mapping[str, Any], context: Context) -> None:
    """Time one cold call, connect the ranks, and time warm calls. Nothing is trained.

    The cold call includes all that the process does once: the device's context, its libraries and memory, the choice of
    an algorithm. Raises ValueError for an invalid setting.
    """
    settings = Settings.of(config["trainable"])
    if torch.cuda.is_initialized():
        context.remark("first_epoch_s is not a cold call: this process has used its GPU before; set workers=fresh")
    source = generator(context.seed, "images", context.rank)
    count, sides = context.batch.shares[context.rank], (settings.side, settings.side)
    images = torch.rand((count, settings.channels, *sides), generator=source)  # N×C×H×W, on the host
    weight = torch.rand((1, settings.channels, settings.filter_size, settings.filter_size), generator=source)
    clock = DevicesClock(context.devices)
    with context.phase("training"):
        started = time.perf_counter()  # without synchronizing the device, which would warm it up
        if settings.library == "scipy":
            call = scipy_call(images, weight, timed=settings.timed)
        else:
            call = torch_call(
                images, weight, timed=settings.timed, devices=context.devices, pin_memory=settings.pin_memory
            )
        call()
        cold_s = clock.read() - started
    rank_group = process_group.join(context)
    (cold_s,) = rank_group.largest(cold_s)
    samples = context.batch.global_batch_size
    context.report({"epoch": 1, "epoch_s": cold_s, "samples": samples, "steps": 1})
    context.summarize({"epochs": 1, "samples": samples, "steps": 1})

    def step() -> None:
        call()

    with context.phase("warmup"):
        warmup = Warmup(steps=settings.warmup_steps, seconds=settings.warmup_s)
        pace = warm_up(step, clock=clock, rank_group=rank_group, warmup=warmup)
    with context.phase("window"):
        window = measure_window(
            step,
            clock=clock,
            rank_group=rank_group,
            least_s=settings.window_s,
            least_steps=settings.window_steps,
            pace=pace,
        )
    laps = [Lap(seconds=cold_s, steps=1)]
    context.summarize(timings(laps, window, steps_per_epoch=1, global_batch_size=samples))
