"""Reads the lines of a command's output as rows of a learning curve, and keeps the values of its columns.

Only the columns that the config declares are read (`metric_patterns.py`), because anything may look like a number.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainables.command.file_tail import SEARCHED
from trainables.command.hook.sweep_files import ENDED_S
from trainables.command.metric_declarations import LikelyMetric, Reading
from trainables.command.printed_mappings import Row, mapping_in
from trainables.command.printed_numbers import UnclearNumberError, as_number
from trainables.command.progress_bars import ANSI, BarState, ProgressBars, Redraws
from trainables.command.settings import CommandSettings
from trainables.command.step_times import EpochClock, StepTimes
from trainables.context import DivergedError

_NUMBER = r"[\s:#=\[(|]{0,4}(\d+)(?![\d.,]*\d)(?!\s?(?:s|sec|ms|min)\b)"
"""A whole number behind a name; no time."""

NAMED_EPOCH = rf"(?i)(?<!\w)(?<!best )(?<!total )(?<!max )ep(?:och)?\b\.?{_NUMBER}"
"""`Epoch: [3][10/50]`, `epoch 3/90`; no times and settings such as `epoch 3.2 s`, `epochs=90`."""

NAMED_STEP = rf"(?i)(?<![\w/])(?:global[ _])?(?:step|iter(?:ation)?)\b{_NUMBER}"  # `step 120/390`, `iter 120:`

OTHER_PROCESS = re.compile(r"(?i)\s*\[?(?:rank|default|worker|proc(?:ess)?|gpu)[ :=_]{0,2}(\d+)\]?\s*[:|\]-]")
"""The mark of a process at the begin of its lines: `[rank1]:`, `[default1]:`, `Rank 1 |`."""


@dataclass(kw_only=True)
class Output:
    """The content of a command's output so far: values of the columns that the config declares, epochs and times."""

    clock: EpochClock  # times of epochs by the arrival of lines
    bars: ProgressBars
    steps: StepTimes
    values: dict[str, list[float]] = field(default_factory=dict)  # the finite values of each column, in their order
    last: dict[str, float] = field(default_factory=dict)  # the last value of each column, finite or not
    named_epoch: float | None = None  # the epoch that a line has named last, perhaps before its first metric
    epoch: float | None = None  # the epoch of the open row; None if no line names epochs
    pattern_rows: int = 0  # how many rows patterns have completed
    has_json_rows: bool = False  # whether there were JSON lines with an epoch
    evaluation_s: float = 0.0  # the time of evaluations within `train_runtime`, as Hugging Face's Trainer prints it
    unclear: dict[str, str] = field(default_factory=dict)  # why a number of a column was not read
    likely: LikelyMetric = field(default_factory=LikelyMetric)  # the metric that no declaration reads
    reports: int = 0  # how many lines had a metric, or a step of a progress bar

    @property
    def names_epochs(self) -> bool:
        """True if lines name their epoch."""
        return self.has_json_rows or self.epoch is not None

    @property
    def unread_epoch(self) -> float | None:
        """Return the last epoch if lines name it, and no metric of it was read; None otherwise."""
        is_later = self.named_epoch is not None and self.epoch is not None and self.named_epoch > self.epoch
        return self.named_epoch if is_later else None

    @property
    def found_nothing(self) -> bool:
        """Return whether no metric has been read."""
        return not self.last and not self.reports


class OutputParser:
    """Reads lines of output as rows, and keeps the values of the columns that the config declares, line by line.

    Rows come from JSON lines with an `epoch`. Without those, a line that names another epoch starts the next row. If no
    line does, a repeated metric starts it, unless a progress bar is drawn again.
    """

    def __init__(
        self,
        settings: CommandSettings,
        budget_epochs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`budget_epochs` is the length of the budget, if it is in epochs. Raises ValueError for a wrong metric."""
        self.output = Output(clock=EpochClock(clock), bars=ProgressBars(clock), steps=StepTimes(clock))
        self._settings = settings
        self._budget_epochs = budget_epochs
        # How lines are read.
        self._readings = readings_of(settings)
        self._reads_bars = any(reading.progress_bar for reading in self._readings)
        self._epoch_pattern = re.compile(settings.epoch_pattern or NAMED_EPOCH)
        self._step_pattern = re.compile(settings.step_pattern or NAMED_STEP)
        # Where the output is now.
        self._process: str | None = None  # the mark of the process whose lines are read; None if lines have no mark
        self._unnumbered_epochs: dict[str, float] = {}  # the places of epochs that have a name and no number
        self._step: float | None = None
        self._open_row: dict[str, float] = {}  # the row that patterns have not completed yet
        self._timed_epoch: float | None = None  # the epoch of the last `epoch_s`
        self._json_rows: set[tuple[Any, ...]] = set()  # what each JSON line with an epoch was about
        self._redraws = Redraws()

    def line(self, line: str) -> list[dict[str, Any]]:
        """Return the rows that this line completes, usually none. Raises DivergedError if losses are not finite."""
        self.open_line(line)
        line = ANSI.sub("", line)
        if self._is_of_another_process(line):
            return []
        self.output.likely.look(line[:SEARCHED])
        mapping = mapping_in(line)
        row = Row(mapping) if mapping is not None else None
        if row is not None and "epoch" in row.position:
            return self._of_row(row, line)
        line = line[:SEARCHED]
        values = self._values_in(line, row)
        bar = BarState.of(line) if values else None
        self._name_epoch(line, bar)
        # An object without an epoch begins no row by itself: it may be about anything.
        is_of_row = row is None or self.output.epoch is not None
        rows = self._begin_row(line, values, bar) if self._counts(values, is_of_row=is_of_row) else []
        self._name_step(line, bar)
        self._take(values, self.output.epoch)
        return rows

    def open_line(self, text: str) -> None:
        """Read a line that has no end yet: progress bars write the end before the next state."""
        if self._reads_bars and self.output.bars.read(text[:SEARCHED]):
            self.output.reports += 1

    def row(self, mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a JSON object, or a line of a table, as a row if it has an epoch."""
        return self._of_row(Row(mapping), "")

    def last_row(self) -> list[dict[str, Any]]:
        """Return the row that patterns have found since the last one; call it again when the command has ended."""
        values = self._open_row
        self._open_row = {}
        if not values or self._json_rows:
            return []
        self.output.pattern_rows += 1
        return [{"epoch": self.output.pattern_rows} | values]

    def _is_of_another_process(self, line: str) -> bool:
        """Return whether the line is marked, as `[rank1]:`, with another process than the first that had a metric."""
        mark = OTHER_PROCESS.match(line)
        if mark is None:
            return False
        if self._process is None and self._values_in(line, None):
            self._process = mark[1]
        return self._process not in (None, mark[1])

    def _values_in(self, line: str, row: Row | None) -> dict[str, float]:
        """Return the numbers in a line, and in the object that it holds, by column."""
        values = {}
        for reading in self._readings:
            try:
                value = reading.of_row(row) if row is not None and reading.key else reading.of_line(line)
            except UnclearNumberError as error:
                self.output.unclear[reading.column] = str(error)
                continue
            if value is not None:
                values[reading.column] = value
        return values

    def _name_epoch(self, line: str, bar: BarState | None) -> None:
        """Note the epoch that a line names, in words or as the count of a bar over the budget's epochs."""
        match = self._epoch_pattern.search(line)
        if match is not None:
            name = _first_group(match)
            number = as_number(name)
            if number is None:  # epochs without a number are counted
                number = self._unnumbered_epochs.setdefault(name, len(self._unnumbered_epochs))
            self.output.named_epoch = number
        elif bar is not None and bar.total is not None and bar.total == self._budget_epochs and bar.done:
            self.output.named_epoch = bar.done

    def _name_step(self, line: str, bar: BarState | None) -> None:
        """Note the step that a line names, in words or as the count of a bar."""
        match = self._step_pattern.search(line)
        if match is not None:
            self._step = as_number(_first_group(match))
        elif bar is not None and not self._settings.step_pattern:
            self._step = bar.done

    def _epoch_of_row(self, values: Mapping[str, float]) -> float | None:
        """Return the epoch that was named last, if it counts as a row's."""
        # Without a pattern, the name of an epoch may be a setting; it counts once a metric follows.
        return self.output.named_epoch if values or self._settings.epoch_pattern else None

    def _counts(self, values: Mapping[str, float], *, is_of_row: bool) -> bool:
        """Return whether a line with these values belongs to a row that patterns find."""
        return self._epoch_of_row(values) is not None or (bool(values) and is_of_row and not self._json_rows)

    def _begin_row(self, line: str, values: Mapping[str, float], bar: BarState | None) -> list[dict[str, Any]]:
        """Add a line's values to the open row. If the line begins a row, return the row before it."""
        begins = False
        epoch = self._epoch_of_row(values)
        if epoch is not None:
            self.output.named_epoch = None
            begins = self.output.clock.seen(epoch)
            if begins:
                self.output.epoch = epoch
        elif self.output.epoch is None:
            # No line names epochs, so that a repeated metric begins the next row.
            is_drawn_again = self._redraws.is_drawn_again(line, bar)
            begins = bool(values.keys() & self._open_row.keys()) and not is_drawn_again
            # The first line of a row counts: the last one may follow the last evaluation.
            if begins or not self._open_row:
                self.output.clock.seen(self.output.pattern_rows + begins)
        rows = self.last_row() if begins else []
        self._open_row |= values
        return rows

    def _of_row(self, row: Row, line: str) -> list[dict[str, Any]]:
        """Take an object's values, and return it as a row if it has an epoch; `line` is empty for a row of a file."""
        position, values = row.position, self._values_in(line, row)
        self._step = position.get("step", position.get("steps", self._step))
        self.output.evaluation_s += _seconds_of(row, "eval_runtime") or 0.0
        epoch = position.get("epoch")
        self._take(values, epoch)
        if epoch is None:
            return []
        about = (*position.items(), *values)
        is_repeated = about in self._json_rows
        self._json_rows.add(about)
        self.output.has_json_rows = True
        # The rows of a file arrive together, unless the hook has noted when the epoch ended.
        ended_s = _seconds_of(row, ENDED_S)
        if line or ended_s is not None:
            self.output.clock.seen(epoch, ended_s)
        # Every process may print the same row.
        return [] if is_repeated else [position | values]

    def _take(self, values: Mapping[str, float], epoch: float | None) -> None:
        """Keep the values of a line. Raises DivergedError at the second loss in succession that is not finite."""
        loss, loss_before = values.get("loss", 0.0), self.output.last.get("loss", 0.0)
        # A single one may be a step that mixed precision skips, or the epoch before the first.
        if not math.isfinite(loss) and not math.isfinite(loss_before):
            raise DivergedError(f"the command printed a loss of {loss}")
        self.output.reports += bool(values)
        self.output.last |= values
        for column, value in values.items():
            if not math.isfinite(value):
                continue
            earlier = self.output.values.setdefault(column, [])
            # Every process may print the time of the same epoch: the slowest counts.
            if column == "epoch_s" and epoch is not None and epoch == self._timed_epoch:
                earlier[-1] = max(earlier[-1], value)
                continue
            earlier.append(value)
            if column == "epoch_s":
                self._timed_epoch = epoch
            elif column == "step_s":
                self.output.steps.add(value, self._step)


def readings_of(settings: CommandSettings) -> list[Reading]:
    """Return how each declared column is read. Raises ValueError for a wrong metric."""
    return [Reading.of(column, given) for column, given in settings.metrics.items()]


def _seconds_of(row: Row, key: str) -> float | None:
    """Return the seconds at a key that a framework or the hook has written; None without a clear number."""
    try:
        return as_number(row.value(key, ""))
    except UnclearNumberError:
        return None


def _first_group(match: re.Match[str]) -> str:
    """Return the first group, or the whole match of a pattern without groups."""
    return str(match[1 if match.re.groups else 0])
