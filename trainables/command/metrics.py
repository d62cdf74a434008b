"""A command's metrics: the values that its lines had, and the times, rates and epochs that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.metric import Target, is_higher_better
from trainables.command.metric_declarations import TAKES
from trainables.command.output_parser import Output, readings_of
from trainables.command.settings import CommandSettings

SPEEDS = ("epoch_s", "step_s", "samples_per_s", "train_s")  # columns that hold a speed


@dataclass(frozen=True, kw_only=True)
class CommandMetrics:
    """The trial's metrics from the values that lines have had, and what follows from them: times, rates, epochs.

    If no line has a time, the time between the epochs' lines counts, provided that they are epochs: they are named, or
    as many as in the budget.
    """

    output: Output
    settings: CommandSettings
    global_batch_size: int | None = None  # None if unknown
    budget_epochs: float | None = None  # the length of the budget, if it is in epochs
    target: Target | None = None
    processes: int = 1  # how many may print the same lines
    # Known once the command has ended, if its processes have counted and timed their steps.
    samples_per_step: float | None = None  # the mean number of samples in a step
    samples: float | None = None  # all samples
    is_timed_elsewhere: bool = False  # True: no arrival of lines is needed

    def figures(self) -> dict[str, Any]:
        """Return the trial's metrics by column, and those derived from them."""
        figures = self._reported()
        # What is reported precedes what is derived, and each derivation those after it.
        for derive in (self._of_epochs, self._of_steps, self._of_arrivals, self._of_length, self._of_target):
            figures = derive(figures) | figures
        return figures

    def in_tokens(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return these figures with `tokens_per_s`, if they have none and the tokens of a sample are known."""
        per_sample = self.settings.tokens_per_sample
        if not per_sample or "samples_per_s" not in figures:
            return dict(figures)
        return {"tokens_per_s": per_sample * figures["samples_per_s"]} | dict(figures)

    def unread(self) -> list[str]:
        """Return declared columns that no line had."""
        read = {*self.output.last, *({"step_s"} & self.output.bars.figures().keys())}
        declared = [column for column, given in self.settings.metrics.items() if given is not None]
        return [column for column in declared if column not in read]

    def work(self) -> dict[str, Any]:
        """Return the `epochs` that the lines tell of, and `work_source`; {} if they tell of none."""
        if "epochs" in self.output.values:
            return {"work_source": "declared"}
        named = self._once(self.output.clock.work(self.budget_epochs)) if self.output.names_epochs else 0.0
        timed = len(self._epochs_s)
        # A single time may be that of any epoch.
        epochs = named or (timed if timed > 1 else 0)
        if epochs:
            return {"epochs": epochs, "work_source": "declared"}
        # Each row may be an epoch.
        rows = self.output.pattern_rows
        if rows and rows == self.processes * (self.budget_epochs or 0):
            return {"epochs": rows / self.processes, "work_source": "assumed"}
        return {"work_source": "assumed"} if rows else {}

    @property
    def rate_source(self) -> str:
        """The source of `samples_per_s`, if the lines give it: `clock`, `declared`, `counted` or `assumed`."""
        if "samples_per_s" in self.output.values:
            return "clock"
        if self.settings.samples_per_epoch and (self._epochs_s or self.between_lines):
            return "declared"
        if self.samples_per_step:
            return "counted"
        return "declared" if self.output.bars.steps_per_epoch and self.settings.samples_per_epoch else "assumed"

    @property
    def between_lines(self) -> bool:
        """Return whether `epoch_s` is the time between the epochs' lines, because no line has a time."""
        has_speed = self.is_timed_elsewhere or bool(self.output.bars.figures() or set(SPEEDS) & set(self.output.values))
        return not has_speed and bool(self._epochs and self.output.clock.figures())

    def _reported(self) -> dict[str, Any]:
        """Return the columns that lines have had, each reduced to one value as its reading says."""
        readings = readings_of(self.settings)
        reductions = {reading.column: TAKES[reading.take] for reading in readings}
        reported: dict[str, Any] = {column: reductions[column](values) for column, values in self.output.values.items()}
        # A trial whose last loss or accuracy is not finite has diverged, however good the earlier ones were.
        for column, value in self.output.last.items():
            if not math.isfinite(value) and is_higher_better(column) is not None:
                reported[column] = value
        by_trainer = any((reading.column, reading.key) == ("train_s", "train_runtime") for reading in readings)
        if by_trainer and "train_s" in reported:
            reported["train_s"] -= self.output.evaluation_s
        return reported

    def _of_epochs(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Derive from the times of epochs that lines have had."""
        epochs_s = self._epochs_s
        if not epochs_s:
            return {}
        derived = {"first_epoch_s": epochs_s[0], "train_s": sum(epochs_s)}
        if len(epochs_s) > 1:  # a single epoch includes start-up
            derived["window_s"] = sum(epochs_s[1:])
        if self.settings.samples_per_epoch:
            if figures["epoch_s"] > 0:  # a line may have whole seconds
                derived["samples_per_s"] = self.settings.samples_per_epoch / figures["epoch_s"]
            derived["samples"] = self.settings.samples_per_epoch * len(epochs_s)
        return derived

    def _of_steps(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Derive from the times of steps, which lines or progress bars have had."""
        derived: dict[str, Any] = self.output.bars.figures()
        if "step_s" in self.output.values:
            derived |= self.output.steps.figures()
        step_s, samples = figures.get("step_s", derived.get("step_s", 0)), self._samples_per_step
        if samples and step_s > 0:
            derived["samples_per_s"] = samples / step_s
        return derived

    def _of_arrivals(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Derive from the time between the epochs' lines."""
        if not self.between_lines:
            return {}
        derived = self.output.clock.figures()
        derived["train_s"] = derived["epoch_s"] * self.output.clock.epochs
        if self.settings.samples_per_epoch:
            derived["samples_per_s"] = self.settings.samples_per_epoch / derived["epoch_s"]
        return derived

    def _of_length(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Derive from the declared length of an epoch."""
        derived: dict[str, Any] = {}
        if not self.settings.samples_per_epoch:
            return derived
        if self._epochs and "samples_per_s" in figures:
            derived["samples"] = self.settings.samples_per_epoch * self._epochs
        per_step = self._samples_per_step
        if per_step and figures.get("epoch_s", 0) > 0 and "window_s" in figures:
            epochs = figures["window_s"] / figures["epoch_s"]
            derived["window_steps"] = round(epochs * self.settings.samples_per_epoch / per_step)
        return derived

    def _of_target(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Derive when the metric of `report.target` reached it."""
        if self.target is None:
            return {}
        epochs_s, values = self._epochs_s, self._of_one_process(self.output.values.get(self.target.metric, []))
        # An epoch's time and its metric belong together only if each epoch has both.
        if len(epochs_s) != len(values):
            return {}
        return self.target.reached(zip(epochs_s, values, strict=True))

    @property
    def _samples_per_step(self) -> float | None:
        """The mean number of samples in a step, in which the last batch of an epoch may be smaller; None if unknown."""
        if self.samples_per_step:
            # A bar may count passes, of which several make an optimizer step, or samples.
            states = self.output.bars.figures().get("steps")
            return self.samples / states if self.samples and states else self.samples_per_step
        batch, samples = self.global_batch_size, self.settings.samples_per_epoch
        if samples is None or batch is None:
            return batch
        steps = self.output.bars.steps_per_epoch
        if steps == samples > batch:
            return 1.0  # the bar counts samples
        return samples / (steps or max(1, math.ceil(samples / batch)))

    @property
    def _epochs(self) -> float:
        """How many epochs there were; 0 if the lines may be about something else."""
        epochs = self._once(self.output.clock.epochs)
        return epochs if self.output.names_epochs or epochs == self.budget_epochs else 0

    @property
    def _epochs_s(self) -> list[float]:
        """The seconds of each epoch that lines have had."""
        return self._of_one_process(self.output.values.get("epoch_s", []))

    def _of_one_process(self, values: list[float]) -> list[float]:
        """Return one value for each epoch, the largest, if each process printed one."""
        count, epochs = self.processes, int(self.budget_epochs or 0)
        if not self._is_from_each(len(values), epochs):
            return values
        # Names tell the lines of one epoch if they alternate; here each process printed all of its lines at once.
        if self.output.names_epochs:
            return [max(values[place::epochs]) for place in range(epochs)]
        return [max(values[place : place + count]) for place in range(0, len(values), count)]

    def _once(self, epochs: float) -> float:
        """Return the budget's epochs if each process named all of them, else the number of those named."""
        budget = self.budget_epochs or 0
        return budget if self._is_from_each(epochs, budget) else epochs

    def _is_from_each(self, count: float, budget: float) -> bool:
        """Return whether each process told of all epochs of the budget, which makes this count."""
        # One process that trains too long names later epochs, too.
        return budget > 0 and count == self.processes * budget and (self.output.epoch or 0) <= budget
