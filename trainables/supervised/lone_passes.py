"""Passes that a rank takes by itself, before the training: how long one takes, and whether it fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainables.clock import Clock
from trainables.inputs.inputs import Form, as_pixels
from trainables.inputs.split import Part
from trainables.models.batch_norm import own_statistics
from trainables.step.objective import Objective, loss_sum
from trainables.step.precision import Precision

WARMUP_PASSES = 3
LEAST_PASSES = 10
LEAST_S = 0.5
BALLAST = 3
"""What a step holds besides a pass, in sizes of the parameters: Adam's two moments, and the exchange's buckets."""


class LonePasses:
    """Forward and backward passes of a model that is on its device, and in no wrapper that talks to others."""

    def __init__(
        self, model: nn.Module, part: Part, *, form: Form, precision: Precision, clock: Clock, objective: Objective
    ) -> None:
        self._model, self._part, self._form, self._precision, self._clock = model, part, form, precision, clock
        self._objective = objective

    def pass_s(self, samples: int) -> float:
        """Seconds of one pass over so many samples: the fastest of at least `LEAST_PASSES` in at least `LEAST_S`.

        What else the host does only ever lengthens a pass; a device's own pace is the same in all of them.

        The model is afterwards as it was before; the random numbers that its passes draw are gone.
        """
        with self._unchanged():
            pass_once = self._pass_over(samples)
            for _ in range(WARMUP_PASSES):
                pass_once()
            times = [self._time(pass_once)]
            while len(times) < LEAST_PASSES or sum(times) < LEAST_S:
                times.append(self._time(pass_once))
        return min(times)

    def take_pass(self, samples: int) -> None:
        """One pass with `BALLAST` in memory; the model stays as it was. Raises what a device out of memory raises."""
        with self._unchanged():
            ballast = [torch.empty_like(each) for each in self._model.parameters() for _ in range(BALLAST)]
            self._pass_over(samples)()
            self._clock.read()
            del ballast

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        try:
            with own_statistics(self._model):  # ranks take different numbers of passes, and may run out of memory
                yield
        finally:
            self._model.zero_grad()
            for buffer, before in zip(self._model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def _pass_over(self, samples: int) -> Callable[[], None]:
        form = self._form
        images = form.normalise(as_pixels(self._part.images[:samples], form.device))
        targets = self._part.targets[:samples].to(form.device)

        def pass_once() -> None:
            with self._precision.casting(form.device):
                outputs = self._model(images)
                self._objective.require_fit(outputs, targets)
                loss = loss_sum(outputs, targets)
            loss.backward()

        return pass_once

    def _time(self, pass_once: Callable[[], None]) -> float:
        started = self._clock.read()
        pass_once()
        return self._clock.read() - started
