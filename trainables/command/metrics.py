"""What a command says, line by line, as rows of a learning curve and figures of the whole trial."""

from __future__ import annotations

import ast
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainables.command.epoch_clock import EpochClock
from trainables.command.reading import TAKES, Reading, as_number
from trainables.command.settings import CommandSettings
from trainables.command.step_times import StepTimes
from trainables.context import DivergedError

POSITION = ("epoch", "epochs", "step", "steps", "samples")
"""Keys that say how far the training is; a JSON line with `epoch` is a row of the learning curve."""

SPEEDS = ("epoch_s", "step_s", "samples_per_s", "train_s")
"""Columns of which any tells how fast the command was."""


class CommandMetrics:
    """Reads lines of output; only what the config declares, since anything may look like a number.

    Rows come from JSON lines with an `epoch`. Where there are none, patterns make them: a line that names another epoch
    (`epoch_pattern`) begins the next row, and without such a pattern a figure that comes a second time.
    Where no line has a time, the time between the epochs' lines counts, if it is sure that they are epochs: they are
    named, or as many as the budget's. `global_batch_size` is in samples; None where it is not known.
    """

    def __init__(
        self,
        settings: CommandSettings,
        global_batch_size: int | None = None,
        epochs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`epochs` is the budget's. ValueError naming a metric that cannot be read as it says."""
        self._settings = settings
        self._global_batch_size = global_batch_size
        self._readings = [Reading.of(column, given) for column, given in settings.metrics.items()]
        self._epoch_pattern = re.compile(settings.epoch_pattern) if settings.epoch_pattern else None
        self._step_pattern = re.compile(settings.step_pattern) if settings.step_pattern else None
        self._epoch = ""
        self._step: float | None = None
        self._seen: dict[str, list[float]] = {}
        self._open: dict[str, float] = {}
        self._rows = 0
        self._rows_name_epochs = False
        self._budget_epochs = epochs
        self._clock = EpochClock(clock)
        self._steps = StepTimes(clock)

    def line(self, line: str) -> list[dict[str, Any]]:
        """The rows that this line completes, mostly none. DivergedError where a loss is not finite."""
        row = _json_object(line)
        if row is not None:
            rows = self.row(row)
            for each in rows:
                self._clock.seen(each["epoch"])
            return rows
        found = {each.column: value for each in self._readings if (value := each.of_line(line)) is not None}
        complete = self.last_row() if self._begins_an_epoch(line, found) else []
        self._look_at_the_clock(line, found)
        self._open |= found
        if self._step_pattern is not None and (named := self._step_pattern.search(line)):
            self._step = as_number(_first_group(named))
        self._take(found)
        return complete

    def _look_at_the_clock(self, line: str, found: Mapping[str, float]) -> None:
        """At each line that names its epoch, else at the first of a row: its last may follow a last evaluation."""
        if self._epoch_pattern is not None:
            if self._epoch_pattern.search(line):
                number = as_number(self._epoch)
                self._clock.seen(self._rows if number is None else number)
        elif found and not self._open and not self._rows_name_epochs:
            self._clock.seen(self._rows)

    def _begins_an_epoch(self, line: str, found: Mapping[str, float]) -> bool:
        if self._epoch_pattern is None:
            return bool(set(found) & set(self._open))
        named = self._epoch_pattern.search(line)
        before, self._epoch = self._epoch, (_first_group(named) if named else self._epoch)
        return self._epoch != before

    def row(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The row that a JSON object, or a line of a table, is; none where it has nothing that was declared."""
        found = {each.column: value for each in self._readings if (value := each.of_row(row)) is not None}
        where = {key: value for key in POSITION if (value := as_number(row.get(key))) is not None}
        self._step = where.get("step", where.get("steps", self._step))
        self._take(found)
        if "epoch" not in where:
            return []
        self._rows_name_epochs = True
        return [where | found]

    def last_row(self) -> list[dict[str, Any]]:
        """What patterns have found since the last row; call it once more when the command has ended."""
        found, self._open = self._open, {}
        if not found or self._rows_name_epochs:
            return []
        self._rows += 1
        return [{"epoch": self._rows} | found]

    def figures(self) -> dict[str, Any]:
        """The trial's figures by column, and those that follow from them."""
        takes = {each.column: TAKES[each.take] for each in self._readings}
        found: dict[str, Any] = {column: takes[column](values) for column, values in self._seen.items()}
        epochs_s = self._seen.get("epoch_s", [])
        if epochs_s:
            derived = {"first_epoch_s": epochs_s[0], "train_s": sum(epochs_s)}
            if len(epochs_s) > 1:  # one epoch has its start-up in it, and is no steady state
                derived["window_s"] = sum(epochs_s[1:])
            if self._settings.samples_per_epoch:
                derived["samples_per_s"] = self._settings.samples_per_epoch / found["epoch_s"]
                derived["samples"] = self._settings.samples_per_epoch * len(epochs_s)
            found = derived | found
        if "step_s" in self._seen:
            found = self._steps.figures() | self._samples_per_s(found["step_s"]) | found
        if self.between_lines:
            found = self._by_the_clock() | found
        samples_per_epoch = self._settings.samples_per_epoch
        if (
            samples_per_epoch and "samples_per_s" in found and self._epochs
        ):  # without both nobody knows how long it took
            found = {"samples": samples_per_epoch * self._epochs} | found
        to_target_s = self._to_target_s()
        return found if to_target_s is None else {"time_to_target_s": to_target_s} | found

    @property
    def between_lines(self) -> bool:
        """Whether `epoch_s` is the time between the epochs' lines, because no line has a time."""
        return bool(self._epochs and self._clock.figures()) and not set(SPEEDS) & set(self._seen)

    @property
    def _epochs(self) -> float:
        """How many epochs there were; 0 if lines may be of something else."""
        sure = self._rows_name_epochs or self._epoch_pattern or self._clock.epochs == self._budget_epochs
        return self._clock.epochs if sure else 0

    def _by_the_clock(self) -> dict[str, float]:
        found = self._clock.figures()
        samples = self._settings.samples_per_epoch
        return found | ({"samples_per_s": samples / found["epoch_s"]} if samples else {})

    def unread(self) -> list[str]:
        """Columns that the config says how to read, and that no line had."""
        asked = [column for column, given in self._settings.metrics.items() if given is not None]
        return [column for column in asked if column not in self._seen]

    @property
    def found_nothing(self) -> bool:
        """Whether no figure was read so far."""
        return not self._seen

    @property
    def remark_on_steps(self) -> str:
        """What to change where the seconds of a step seem to be told of some steps only; else empty."""
        return self._steps.remark()

    def _samples_per_s(self, step_s: float) -> dict[str, float]:
        return {"samples_per_s": self._global_batch_size / step_s} if self._global_batch_size and step_s > 0 else {}

    def _take(self, found: Mapping[str, float]) -> None:
        loss = found.get("loss", 0.0)
        if not math.isfinite(loss):
            raise DivergedError(f"the command printed a loss of {loss}")
        for column, value in found.items():
            if math.isfinite(value):
                self._seen.setdefault(column, []).append(value)
                if column == "step_s":
                    self._steps.told(value, self._step)

    def _to_target_s(self) -> float | None:
        """Training time up to the epoch that reached the target; None where its parts are not known one by one."""
        epochs_s, scores = self._seen.get("epoch_s", []), self._seen.get("val_accuracy", [])
        target = self._settings.target_accuracy
        if target is None or len(epochs_s) != len(scores):
            return None
        reached = next((number for number, score in enumerate(scores, 1) if score >= target), None)
        return None if reached is None else sum(epochs_s[:reached])


def _first_group(found: re.Match[str]) -> str:
    """The whole where the pattern has no group."""
    return found[found.re.groups and 1]


def _json_object(line: str) -> dict[str, Any] | None:
    """Also a dictionary as Python prints it, which is how Hugging Face's Trainer tells its rows: {'epoch': '1'}."""
    text = line.strip()
    if not text.startswith("{") or not text.endswith("}"):
        return None
    for read in (json.loads, _literal):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict) else None
    return None


def _literal(text: str) -> Any:
    """Of Python's; `nan` and `inf` are names there, and no literals."""
    return ast.literal_eval(re.sub(r"(?<=: )-?(?:nan|inf)\b", lambda found: repr(found[0]), text))


def declared(metrics: Mapping[str, Any]) -> Iterable[str]:
    """A line for every metric that cannot be read as the config says."""
    for column, given in metrics.items():
        try:
            Reading.of(column, given)
        except ValueError as error:
            yield str(error)
