"""One convolution and nothing else, cold and warm, with and without the way to the device and back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from trainables import process_group
from trainables.clock import Clock, Lap, Warmup, Window, measure_window, timings, warm_up
from trainables.context import Context
from trainables.conv2d.convolution import PARTS, Call, scipy_call, torch_call, wait_for
from trainables.process_group import Gang
from trainables.seeds import generator

LIBRARIES = ("torch", "scipy")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `trainable` section. Raises ValueError naming the valid choices."""

    library: str = "torch"
    timed: str = "whole"
    """What a call is: see `trainables.conv2d.convolution`."""
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
