"""One convolution and nothing else, cold and warm, with and without the way to the device and back.

A convolution of many images by one filter, as calls that can be timed: the whole way, or a part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from scipy import signal
from torch import Tensor
from torch.nn import functional

from trainables import process_group
from trainables.clock import Clock, Lap, Warmup, Window, measure_window, timings, warm_up
from trainables.context import Context
from trainables.process_group import Gang
from trainables.torch_state import generator

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


LIBRARIES = ("torch", "scipy")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `trainable` section. Raises ValueError naming the valid choices."""

    library: str = "torch"
    timed: str = "whole"
    """What a call is: see `studies.conv2d`."""
    side: int = 100
    """Pixels of the square images."""
    channels: int = 1
    """Of an image; the result has one."""
    filter_size: int = 3
    """Pixels a side."""
    pin_memory: bool = False
    """Whether images and result lie in page-locked memory."""
    window_s: float = 2.0
    window_steps: int = 50
    warmup_steps: int = 10
    warmup_s: float = 0.3

    @staticmethod
    def of(config: Mapping[str, Any]) -> Settings:
        """The settings among the section's keys; the others are the orchestrator's."""
        return Settings(**{each.name: config[each.name] for each in fields(Settings) if each.name in config})

    def __post_init__(self) -> None:
        for key, choices in (("library", LIBRARIES), ("timed", PARTS)):
            if getattr(self, key) not in choices:
                raise ValueError(f"trainable.{key}={getattr(self, key)!r} is not one of {', '.join(choices)}")
        if min(self.side, self.channels, self.filter_size, self.window_steps) < 1:
            raise ValueError("trainable.side, channels, filter_size and window_steps are at least 1")


class DevicesClock(Clock):
    """Reads seconds when all of several GPUs are idle."""

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__("cpu")
        self._devices = [device for device in devices if device != "cpu"]

    def read(self) -> float:
        """Wait for the devices, then read the clock."""
        wait_for(self._devices)
        return super().read()


def train(config: Mapping[str, Any], context: Context) -> None:
    """Call once, cold; meet the other ranks; call on, warm, and time it. Nothing is learned.

    The cold call holds whatever the process does for the first time: the device's context, its libraries and memory,
    the choice of an algorithm. Raises ValueError for a setting that cannot be.
    """
    settings = Settings.of(config["trainable"])
    if torch.cuda.is_initialized():
        context.remark("first_epoch_s is not a cold call: this process has used its GPU before; set workers=fresh")
    images, weight = _made_up(settings, context)
    clock = DevicesClock(context.devices)
    with context.phase("training"):
        started = time.perf_counter()  # without a look at the device, which would warm it up
        call = _call(settings, images, weight, context.devices)
        call()
        cold_s = clock.read() - started
    gang = process_group.join(context)
    (cold_s,) = gang.largest(cold_s)
    samples = context.batch.global_batch_size
    context.report({"epoch": 1, "epoch_s": cold_s, "samples": samples, "steps": 1})
    context.summarize({"epochs": 1, "samples": samples, "steps": 1})
    window = _warm(settings, call, clock, gang, context)
    laps = [Lap(seconds=cold_s, steps=1)]
    context.summarize(timings(laps, window, steps_per_epoch=1, global_batch_size=samples, target=None))


def _made_up(settings: Settings, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's images N×C×H×W and the filter 1×C×k×k, both float32 on the host."""
    source = generator(context.seed, "images", context.rank)
    sides = (settings.side, settings.side)
    images = torch.rand((context.batch.shares[context.rank], settings.channels, *sides), generator=source)
    return images, torch.rand((1, settings.channels, settings.filter_size, settings.filter_size), generator=source)


def _call(settings: Settings, images: torch.Tensor, weight: torch.Tensor, devices: Sequence[str]) -> Call:
    if settings.library == "scipy":
        return scipy_call(images, weight, timed=settings.timed)
    return torch_call(images, weight, timed=settings.timed, devices=devices, pin_memory=settings.pin_memory)


def _warm(settings: Settings, call: Call, clock: Clock, gang: Gang, context: Context) -> Window:
    def step() -> None:
        call()

    warmup = Warmup(steps=settings.warmup_steps, seconds=settings.warmup_s)
    with context.phase("warmup"):
        pace = warm_up(step, clock=clock, gang=gang, warmup=warmup)
    with context.phase("window"):
        return measure_window(
            step, clock=clock, gang=gang, least_s=settings.window_s, least_steps=settings.window_steps, pace=pace
        )
