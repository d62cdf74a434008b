"""The parts of a step's time: data, model and exchange of gradients, by clocks in the loop that wait for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

import torch

from trainables.inputs.inputs import Minibatch

SAMPLED = 17
"""On a GPU one fetch of so many is timed, by events that are read when the device is waited for anyway.

A prime, so that minibatches prepared in blocks of a power of two are sampled at every place in their block.
"""
FIRST_SAMPLED = 2
"""The first fetches after the device was waited for are not sampled: there the host is not yet ahead of the device."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds of one rank's steps, by its host's clock; on GPUs only `data_s` is known, by the device's clock."""

    data_s: float = 0.0  # waiting for minibatches, and preparing them
    exchange_s: float = 0.0  # exchanging gradients, including the wait for the slowest rank
    step_s: float = 0.0  # whole steps; the two above are parts of it
    untimed: int = 0
    """Fetches missing in `data_s`: between two readings there were too few for one of them to be sampled."""

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
    """Sums the parts of all steps since it was made."""

    def __init__(self, device: str, now: Callable[[], float] = time.perf_counter) -> None:
        self.on_gpu, self._now = device.startswith("cuda"), now
        self._data_s = self._exchange_s = self._step_s = 0.0
        self._fetches, self._untimed = 0, 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def parts(self) -> Parts:
        """Return the sums so far. Call it only when a GPU has finished its work."""
        if self._events:
            # A few fetches stand for all: an event for each would slow short steps down.
            mean_s = fmean(before.elapsed_time(after) for before, after in self._events) / 1e3
            self._data_s += mean_s * self._fetches
        else:
            self._untimed += self._fetches
        self._events, self._fetches = [], 0
        return Parts(data_s=self._data_s, exchange_s=self._exchange_s, step_s=self._step_s, untimed=self._untimed)

    def fetching(self, batches: Iterator[Minibatch]) -> Iterator[Minibatch]:
        """Yield the same minibatches; the time until each is there counts as data."""
        while True:
            began_s = 0.0 if self.on_gpu else self._now()
            event = _event() if self.on_gpu and self._fetches % SAMPLED == FIRST_SAMPLED else None
            try:
                minibatch = next(batches)
            except StopIteration:
                return
            if self.on_gpu:
                self._fetches += 1
                if event is not None:
                    self._events.append((event, _event()))
            else:
                self._data_s += self._now() - began_s
            yield minibatch

    def step(self, take: Callable[[], None]) -> None:
        """Take a step and add its time."""
        began = self._now()
        take()
        self._step_s += self._now() - began

    def exchanging(self, exchange: Callable[[], None]) -> None:
        """Exchange gradients and add the time."""
        began = self._now()
        exchange()
        self._exchange_s += self._now() - began


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
