"""A command's output as rows of a learning curve and metrics of the trial, read as the config says (`reading.py`)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from sweeps.metric import Target, is_higher_better
from trainables.command.hook.sweep_files import ENDED_S
from trainables.command.numbers import UnclearNumberError, as_number
from trainables.command.process import SEARCHED
from trainables.command.reading import TAKES, Reading
from trainables.command.rows import Row, mapping_in
from trainables.command.settings import CommandSettings
from trainables.command.step_times import ANSI, BarState, EpochClock, ProgressBars, Redraws, StepTimes
from trainables.context import DivergedError

SPEEDS = ("epoch_s", "step_s", "samples_per_s", "train_s")  # columns that hold a speed

_NUMBER = r"[\s:#=\[(|]{0,4}(\d+)(?![\d.,]*\d)(?!\s?(?:s|sec|ms|min)\b)"
"""A whole number behind a name; no time."""

NAMED_EPOCH = rf"(?i)(?<!\w)(?<!best )(?<!total )(?<!max )ep(?:och)?\b\.?{_NUMBER}"
"""`Epoch: [3][10/50]`, `epoch 3/90`; no times and settings such as `epoch 3.2 s`, `epochs=90`."""

NAMED_STEP = rf"(?i)(?<![\w/])(?:global[ _])?(?:step|iter(?:ation)?)\b{_NUMBER}"  # `step 120/390`, `iter 120:`

OTHER_PROCESS = re.compile(r"(?i)\s*\[?(?:rank|default|worker|proc(?:ess)?|gpu)[ :=_]{0,2}(\d+)\]?\s*[:|\]-]")
"""The mark of a process at the begin of its lines: `[rank1]:`, `[default1]:`, `Rank 1 |`."""


class CommandMetrics:
    """The metrics in lines of output; only those that the config declares, since anything may look like a number.

    Rows come from JSON lines with an `epoch`. Without those, a line that names another epoch starts the next row. If no
    line does, a repeated metric starts it, unless a progress bar is drawn again. If no line has a time, the time
    between the epochs' lines counts, provided that they are epochs: they are named, or as many as in the budget.
    """

    def __init__(
        self,
        settings: CommandSettings,
        global_batch_size: int | None = None,
        epochs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        target: Target | None = None,
        processes: int = 1,
    ) -> None:
        """`epochs` is the length of the budget; the batch is None if unknown. Raises ValueError for a wrong metric."""
        self._settings, self._target = settings, target
        self._global_batch_size, self._processes = global_batch_size, processes
        self._readings = [Reading.of(column, given) for column, given in settings.metrics.items()]
        self._epoch_pattern = re.compile(settings.epoch_pattern or NAMED_EPOCH)
        self._step_pattern = re.compile(settings.step_pattern or NAMED_STEP)
        self._named: float | None = None  # the epoch that a line has named last, perhaps before its first metric
        self._names: dict[str, float] = {}  # the places of epochs that have no number
        self._epoch: float | None = None  # the epoch of the open row; None if no line names epochs
        self._step: float | None = None
        self._seen: dict[str, list[float]] = {}  # the finite values of each column, in their order
        self._last: dict[str, float] = {}  # the last value of each column, finite or not
        self._timed_epoch: float | None = None  # the epoch of the last `epoch_s`
        self._open: dict[str, float] = {}  # the row that patterns have not completed yet
        self.unclear: dict[str, str] = {}  # why a number of a column was not read
        self._process: str | None = None  # the mark of the process whose lines are read; None if lines have no mark
        self._redraws = Redraws()
        self._evaluation_s = 0.0  # the time of evaluations within `train_runtime`, as Hugging Face's Trainer prints it
        self._rows = 0
        self._json_rows: set[tuple[Any, ...]] = set()  # what each JSON line with an epoch was about
        self._budget_epochs = epochs
        self._clock = EpochClock(clock)
        self.steps = StepTimes(clock)
        self._bars = ProgressBars(clock)
        self._reads_bars = any(reading.progress_bar for reading in self._readings)
        self.samples_per_step: float | None = None
        """The mean number of samples in a step, if the command's processes have counted them."""
        self.samples: float | None = None  # all samples, likewise
        self.samples_per_epoch = settings.samples_per_epoch
        self.is_timed_elsewhere = False
        """Whether the command's processes have timed their steps: then no arrival of lines is needed."""
        self.reports = 0  # how many lines had a metric, or a step of a progress bar

    def line(self, line: str) -> list[dict[str, Any]]:
        """Return the rows that this line completes, usually none. Raises DivergedError if losses are not finite."""
        self.open_line(line)
        line = ANSI.sub("", line)
        if self._is_of_another_process(line):
            return []
        mapping = mapping_in(line)
        row = Row(mapping) if mapping is not None else None
        if row is not None and "epoch" in row.position:
            return self._of_row(row, line)
        line = line[:SEARCHED]
        values = self._values(line, row)
        bar = BarState.of(line) if values else None
        self._name_epoch(line, bar)
        rows = self._begin_row(line, values, bar, is_of_row=row is None or self._epoch is not None)
        step = self._step_pattern.search(line)
        if step is not None:
            self._step = as_number(_first_group(step))
        elif bar is not None and not self._settings.step_pattern:
            self._step = bar.done
        self._take(values, self._epoch)
        return rows

    def _is_of_another_process(self, line: str) -> bool:
        """Return whether the line is marked, as `[rank1]:`, with another process than the first that had a metric."""
        mark = OTHER_PROCESS.match(line)
        if mark is None:
            return False
        if self._process is None and self._values(line, None):
            self._process = mark[1]
        return self._process not in (None, mark[1])

    def _name_epoch(self, line: str, bar: BarState | None) -> None:
        """Note the epoch that a line names, in words or as the count of a bar over the budget's epochs."""
        match = self._epoch_pattern.search(line)
        if match is not None:
            name = _first_group(match)
            number = as_number(name)
            # Epochs without a number are counted.
            self._named = self._names.setdefault(name, len(self._names)) if number is None else number
        elif bar is not None and bar.total is not None and bar.total == self._budget_epochs and bar.done:
            self._named = bar.done

    def _begin_row(
        self, line: str, values: Mapping[str, float], bar: BarState | None, *, is_of_row: bool
    ) -> list[dict[str, Any]]:
        """Open a row if the line begins one, and return the row before it."""
        # Without a pattern, the name of an epoch may be a setting; it counts once a metric follows.
        if self._named is not None and (values or self._settings.epoch_pattern):
            begins = self._clock.seen(self._named)
            self._epoch = self._named if begins else self._epoch
            self._named = None
        elif not values or not is_of_row or self._json_rows:
            return []
        elif self._epoch is None:
            is_drawn_again = self._redraws.is_drawn_again(line, bar)
            begins = bool(values.keys() & self._open.keys()) and not is_drawn_again
            # The first line of a row counts: the last one may follow the last evaluation.
            if begins or not self._open:
                self._clock.seen(self._rows + begins)
        else:
            begins = False
        rows = self.last_row() if begins else []
        self._open |= values
        return rows

    def _values(self, line: str, row: Row | None) -> dict[str, float]:
        """Return the numbers in a line, and in the object that it holds, by column."""
        values = {}
        for reading in self._readings:
            try:
                value = reading.of_row(row) if row is not None and reading.key else reading.of_line(line)
            except UnclearNumberError as error:
                self.unclear[reading.column] = str(error)
                continue
            if value is not None:
                values[reading.column] = value
        return values

    def open_line(self, text: str) -> None:
        """Read a line that has no end yet: progress bars write the end before the next state."""
        if self._reads_bars and self._bars.read(text[:SEARCHED]):
            self.reports += 1

    def row(self, mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a JSON object, or a line of a table, as a row if it has an epoch."""
        return self._of_row(Row(mapping), "")

    def _of_row(self, row: Row, line: str) -> list[dict[str, Any]]:
        position, values = row.position, self._values(line, row)
        self._step = position.get("step", position.get("steps", self._step))
        self._evaluation_s += _seconds_of(row, "eval_runtime") or 0.0
        epoch = position.get("epoch")
        self._take(values, epoch)
        if epoch is None:
            return []
        about = (*position.items(), *values)
        is_repeated = about in self._json_rows
        self._json_rows.add(about)
        ended_s = _seconds_of(row, ENDED_S)
        if line or ended_s is not None:
            self._clock.seen(epoch, ended_s)
        # Every process may print the same row.
        return [] if is_repeated else [position | values]

    def last_row(self) -> list[dict[str, Any]]:
        """Return the row that patterns have found since the last one; call it again when the command has ended."""
        values, self._open = self._open, {}
        if not values or self._json_rows:
            return []
        self._rows += 1
        return [{"epoch": self._rows} | values]

    def figures(self) -> dict[str, Any]:
        """Return the trial's metrics by column, and those derived from them."""
        figures = self._reported()
        # What is reported precedes what is derived, and each derivation those after it.
        for derive in (self._of_epochs, self._of_steps, self._of_arrivals, self._of_length, self._of_target):
            figures = derive(figures) | figures
        return figures

    def _reported(self) -> dict[str, Any]:
        takes = {reading.column: TAKES[reading.take] for reading in self._readings}
        reported: dict[str, Any] = {column: takes[column](values) for column, values in self._seen.items()}
        # A trial whose last loss or accuracy is not finite has diverged, however good the earlier ones were.
        not_finite = {column: value for column, value in self._last.items() if not math.isfinite(value)}
        reported |= {column: value for column, value in not_finite.items() if is_higher_better(column) is not None}
        by_trainer = any((reading.column, reading.key) == ("train_s", "train_runtime") for reading in self._readings)
        if by_trainer and "train_s" in reported:
            reported["train_s"] -= self._evaluation_s
        return reported

    def _of_epochs(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        epochs_s = self._epochs_s
        if not epochs_s:
            return {}
        derived = {"first_epoch_s": epochs_s[0], "train_s": sum(epochs_s)}
        if len(epochs_s) > 1:  # a single epoch includes start-up
            derived["window_s"] = sum(epochs_s[1:])
        if self.samples_per_epoch:
            derived["samples_per_s"] = self.samples_per_epoch / figures["epoch_s"]
            derived["samples"] = self.samples_per_epoch * len(epochs_s)
        return derived

    @property
    def rate_source(self) -> str:
        """The source of `samples_per_s`, if the lines give it: `clock`, `declared`, `counted` or `assumed`."""
        if "samples_per_s" in self._seen:
            return "clock"
        if self.samples_per_epoch and (self._epochs_s or self.between_lines):
            return "declared"
        if self.samples_per_step:
            return "counted"
        return "declared" if self._bars.steps_per_epoch and self.samples_per_epoch else "assumed"

    def _of_steps(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        derived: dict[str, Any] = self._bars.figures() | (self.steps.figures() if "step_s" in self._seen else {})
        step_s, samples = figures.get("step_s", derived.get("step_s", 0)), self._samples_per_step
        return derived | ({"samples_per_s": samples / step_s} if samples and step_s > 0 else {})

    def _of_arrivals(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        if not self.between_lines:
            return {}
        timed = self._clock.figures()
        timed["train_s"] = timed["epoch_s"] * self._clock.epochs
        return timed | ({"samples_per_s": self.samples_per_epoch / timed["epoch_s"]} if self.samples_per_epoch else {})

    def _of_length(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        samples, samples_per_step = self.samples_per_epoch, self._samples_per_step
        if not samples:
            return {}
        derived = {"samples": samples * self._epochs} if self._epochs and "samples_per_s" in figures else {}
        if samples_per_step and figures.get("epoch_s", 0) > 0 and "window_s" in figures:
            derived["window_steps"] = round(figures["window_s"] / figures["epoch_s"] * samples / samples_per_step)
        return derived

    def _of_target(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        if self._target is None:
            return {}
        epochs_s, values = self._epochs_s, self._of_one_process(self._seen.get(self._target.metric, []))
        # An epoch's time and its metric belong together only if each epoch has both.
        if len(epochs_s) != len(values):
            return {}
        seconds = self._target.seconds(zip(epochs_s, values, strict=True))
        return {} if seconds is None else {"time_to_target_s": seconds}

    def in_tokens(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return these figures with `tokens_per_s`, if they have none and the tokens of a sample are known."""
        per_sample = self._settings.tokens_per_sample
        if not per_sample or "samples_per_s" not in figures:
            return dict(figures)
        return {"tokens_per_s": per_sample * figures["samples_per_s"]} | dict(figures)

    @property
    def _samples_per_step(self) -> float | None:
        """The mean number of samples in a step, in which the last batch of an epoch may be smaller; None if unknown."""
        if self.samples_per_step:
            # A bar may count passes, of which several make an optimizer step, or samples.
            states = self._bars.figures().get("steps")
            return self.samples / states if self.samples and states else self.samples_per_step
        batch, samples = self._global_batch_size, self.samples_per_epoch
        if samples is None or batch is None:
            return batch
        steps = self._bars.steps_per_epoch
        if steps == samples > batch:
            return 1.0  # the bar counts samples
        return samples / (steps or max(1, math.ceil(samples / batch)))

    @property
    def between_lines(self) -> bool:
        """Return whether `epoch_s` is the time between the epochs' lines, because no line has a time."""
        by_steps = self.is_timed_elsewhere or self._bars.figures() or set(SPEEDS) & set(self._seen)
        return bool(self._epochs and self._clock.figures()) and not by_steps

    @property
    def _epochs_s(self) -> list[float]:
        return self._of_one_process(self._seen.get("epoch_s", []))

    def _of_one_process(self, values: list[float]) -> list[float]:
        """Return one value for each epoch, the largest, if each process printed one."""
        count, epochs = self._processes, int(self._budget_epochs or 0)
        if not self._is_from_each(len(values), epochs):
            return values
        # Names tell the lines of one epoch if they alternate; here each process printed all of its lines at once.
        if self._names_epochs:
            return [max(values[place::epochs]) for place in range(epochs)]
        return [max(values[place : place + count]) for place in range(0, len(values), count)]

    @property
    def _names_epochs(self) -> bool:
        return bool(self._json_rows) or self._epoch is not None

    def work(self) -> dict[str, Any]:
        """Return the `epochs` that the lines tell of, and `work_source`; {} if they tell of none."""
        if "epochs" in self._seen:
            return {"work_source": "declared"}
        named = self._once(self._clock.work(self._budget_epochs)) if self._names_epochs else 0.0
        timed = len(self._epochs_s)
        # A single time may be that of any epoch.
        epochs = named or (timed if timed > 1 else 0)
        if epochs:
            return {"epochs": epochs, "work_source": "declared"}
        # Each row may be an epoch.
        if self._rows and self._rows == self._processes * (self._budget_epochs or 0):
            return {"epochs": self._rows / self._processes, "work_source": "assumed"}
        return {"work_source": "assumed"} if self._rows else {}

    @property
    def _epochs(self) -> float:
        """Return how many epochs there were; 0 if the lines may be about something else."""
        epochs = self._once(self._clock.epochs)
        return epochs if self._names_epochs or epochs == self._budget_epochs else 0

    def _once(self, epochs: float) -> float:
        """Return the budget's epochs if each process named all of them, else the number of those named."""
        budget = self._budget_epochs or 0
        return budget if self._is_from_each(epochs, budget) else epochs

    def _is_from_each(self, count: float, budget: float) -> bool:
        """Return whether each process told of all epochs of the budget, which makes this count."""
        # One process that trains too long names later epochs, too.
        return budget > 0 and count == self._processes * budget and (self._epoch or 0) <= budget

    def unread(self) -> list[str]:
        """Return declared columns that no line had."""
        read = {*self._last, *(["step_s"] if self._bars.figures() else [])}
        return [column for column, given in self._settings.metrics.items() if given is not None and column not in read]

    @property
    def unread_epoch(self) -> float | None:
        """Return the last epoch if lines name it, and no metric of it was read; None otherwise."""
        is_later = self._named is not None and self._epoch is not None and self._named > self._epoch
        return self._named if is_later else None

    @property
    def found_nothing(self) -> bool:
        """Return whether no metric has been read."""
        return not self._last and not self.reports

    def _take(self, values: Mapping[str, float], epoch: float | None) -> None:
        loss, loss_before = values.get("loss", 0.0), self._last.get("loss", 0.0)
        # A single one may be a step that mixed precision skips, or the epoch before the first.
        if not math.isfinite(loss) and not math.isfinite(loss_before):
            raise DivergedError(f"the command printed a loss of {loss}")
        self.reports += bool(values)
        self._last |= values
        for column, value in values.items():
            if not math.isfinite(value):
                continue
            seen = self._seen.setdefault(column, [])
            # Every process may print the time of the same epoch: the slowest counts.
            if column == "epoch_s" and epoch is not None and epoch == self._timed_epoch:
                seen[-1] = max(seen[-1], value)
                continue
            seen.append(value)
            if column == "epoch_s":
                self._timed_epoch = epoch
            elif column == "step_s":
                self.steps.add(value, self._step)


def _seconds_of(row: Row, key: str) -> float | None:
    """Return the seconds at a key that a framework or the hook has written; None without a clear number."""
    try:
        return as_number(row.value(key, ""))
    except UnclearNumberError:
        return None


def _first_group(match: re.Match[str]) -> str:
    """Return the first group, or the whole match of a pattern without groups."""
    return str(match[1 if match.re.groups else 0])
