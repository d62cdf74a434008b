"""Where a step's time goes: data, model, exchange of gradients; the loop's own clocks, which wait for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

import torch

from trainables.inputs.inputs import Minibatch

SAMPLED = 17
"""On a GPU, one fetch of so many is timed, by events that are read when the device is waited for anyway.

A prime: minibatches that are made in blocks of some power of two are met at every place of their block.
"""
FIRST_SAMPLED = 2
"""Not the first ones after the device was waited for: its host is not ahead of it there, as it is in all others."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds of one rank's steps, of their host on CPUs; on GPUs only `data_s` is known, and is the device's."""

    data_s: float = 0.0
    """Waiting for minibatches, and making them."""
    exchange_s: float = 0.0
    """Waiting for the gradients of others, and for the slowest of them."""
    step_s: float = 0.0
    """Of the steps as a whole, of which the two above are parts."""
    untimed: int = 0
    """Fetches that `data_s` knows nothing of: too few between two readings for one of them to be timed."""

    def __sub__(self, before: Parts) -> Parts:
        return Parts(
            data_s=self.data_s - before.data_s,
            exchange_s=self.exchange_s - before.exchange_s,
            step_s=self.step_s - before.step_s,
            untimed=self.untimed - before.untimed,
        )

    @property
    def compute_s(self) -> float:
        """Forward and backward passes, and the update."""
        return max(0.0, self.step_s - self.data_s - self.exchange_s)


class Stopwatch:
    """Adds up the parts of all steps since it was made."""

    def __init__(self, device: str, now: Callable[[], float] = time.perf_counter) -> None:
        self.on_gpu, self._now = device.startswith("cuda"), now
        self._data_s = self._exchange_s = self._step_s = 0.0
        self._fetches, self._untimed = 0, 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def parts(self) -> Parts:
        """So far; a GPU must have been waited for."""
        if self._events:
            mean_s = fmean(before.elapsed_time(after) for before, after in self._events) / 1e3
            self._data_s += mean_s * self._fetches
        else:
            self._untimed += self._fetches
        self._events, self._fetches = [], 0
        return Parts(data_s=self._data_s, exchange_s=self._exchange_s, step_s=self._step_s, untimed=self._untimed)

    def fetching(self, batches: Iterator[Minibatch]) -> Iterator[Minibatch]:
        """The same minibatches; the time until each is there is data's."""
        while True:
            began = self._began_fetch()
            try:
                minibatch = next(batches)
            except StopIteration:
                return
            self._ended_fetch(began)
            yield minibatch

    def step(self, take: Callable[[], None]) -> None:
        """Take a step and count it."""
        began = self._now()
        take()
        self._step_s += self._now() - began

    def exchanging(self, exchange: Callable[[], None]) -> None:
        """Exchange gradients and count it."""
        began = self._now()
        exchange()
        self._exchange_s += self._now() - began

    def _began_fetch(self) -> float | torch.cuda.Event | None:
        if not self.on_gpu:
            return self._now()
        is_sampled = self._fetches % SAMPLED == FIRST_SAMPLED
        self._fetches += 1
        return _event() if is_sampled else None

    def _ended_fetch(self, began: float | torch.cuda.Event | None) -> None:
        if isinstance(began, float):
            self._data_s += self._now() - began
        elif began is not None:
            self._events.append((began, _event()))


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
