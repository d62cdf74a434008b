"""How long a trained model's steps take, and what of them: further steps are taken for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainables.clock import Clock, Lap, Warmup, Window, measure_window, timings, warm_up, window_of_laps
from trainables.context import Context
from trainables.process_group import Gang
from trainables.step.graphed_step import WARMUP_STEPS
from trainables.step.stopwatch import Parts
from trainables.step.training_step import TrainingStep
from trainables.supervised.epoch_split import mean_parts
from trainables.supervised.loop import Epoch, Loop
from trainables.supervised.replica import Replica
from trainables.supervised.settings import Settings
from trainables.supervised.step_split import StepSplit


class Timing:
    """Of a replica at the end of its training; all ranks ask together."""

    def __init__(
        self, loop: Loop, replica: Replica, settings: Settings, *, clock: Clock, gang: Gang, context: Context
    ) -> None:
        self._loop, self._replica, self._settings = loop, replica, settings
        self._clock, self._gang, self._context = clock, gang, context

    def figures(self, laps: Sequence[Lap], epochs: Sequence[Epoch], models: int) -> dict[str, Any]:
        """The trial's times by column name, of so many models together; `epochs` are the last of the `laps`.

        Those before were an earlier process's. What a step's time is made of is told of a single model only.
        """
        feed = self._replica.inputs.feed
        grew = self._loop.at.times > 1
        window, parts = (_whole_training(epochs), Parts()) if grew else self._window(laps, epochs)
        found = timings(
            laps,
            window,
            steps_per_epoch=feed.steps_per_epoch,
            global_batch_size=feed.batch.global_batch_size * models,
            target=self._settings.target_accuracy,
        )
        if grew:
            return found | _mean_figures(epochs, models)
        return found | (self._step_parts(window, parts) if models == 1 else {})

    def _window(self, laps: Sequence[Lap], epochs: Sequence[Epoch]) -> tuple[Window, Parts]:
        """The window that throughput is measured over, and what its steps are made of: epochs, where they are long."""
        least_s, least_steps = self._settings.window_s, self._settings.window_steps
        own = laps[len(laps) - len(epochs) :]
        if window := window_of_laps(own, least_s=least_s, least_steps=least_steps):
            return window, mean_parts(epochs[1:], window.steps)
        step, clock, gang = self._loop.step, self._clock, self._gang
        steps = self._settings.warmup_steps + (WARMUP_STEPS if self._replica.captures else 0)
        warmup = Warmup(steps=steps, seconds=self._settings.warmup_s)
        with self._context.phase("warmup"):
            pace = warm_up(step, clock=clock, gang=gang, warmup=warmup)
        with self._context.phase("window"):
            gang.meet()
            before = self._replica.stopwatch.parts()
            window = measure_window(step, clock=clock, gang=gang, least_s=least_s, least_steps=least_steps, pace=pace)
            return window, self._replica.stopwatch.parts() - before

    def _step_parts(self, window: Window, parts: Parts) -> dict[str, float]:
        """What a step's time is made of; of captured steps, which cannot be taken apart, only the wait for data."""
        step = self._replica.step
        split = StepSplit(self._loop.step, self._replica.stopwatch, clock=self._clock, gang=self._gang)
        if not isinstance(step, TrainingStep):
            return split.undivided(window, parts) if self._replica.captures else {}
        with self._context.phase("probe"):
            if self._gang.world_size == 1:
                return split.alone(window, parts)
            return split.together(window, step.without_exchange())


def _whole_training(epochs: Sequence[Epoch]) -> Window:
    """Where batches grew no window is like another: all epochs from the second on, or the only one."""
    steady = epochs[1:] or epochs
    return Window(seconds=math.fsum(epoch.seconds for epoch in steady), steps=sum(epoch.steps for epoch in steady))


def _mean_figures(epochs: Sequence[Epoch], models: int) -> dict[str, Any]:
    """`samples_per_s` and `epoch_s` over the same."""
    steady, window = epochs[1:] or epochs, _whole_training(epochs)
    samples = sum(epoch.samples for epoch in steady) * models
    return {"samples_per_s": samples / window.seconds, "epoch_s": window.seconds / len(steady)}
