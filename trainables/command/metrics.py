"""A command's output as rows of a learning curve and metrics of the trial.

The config says how to read each metric: from a key of JSON lines, by a regular expression, or from a metrics file. If
the output has no times, the arrival of the epochs' lines gives the time of an epoch.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.axes import is_number
from sweeps.target import Target
from trainables.command.process import SEARCHED, OutputLines
from trainables.command.settings import CommandSettings
from trainables.command.step_times import ANSI, EpochClock, ProgressBars, StepTimes
from trainables.context import DivergedError

TAKES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "max": max,
    "min": min,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
    "steady": lambda values: statistics.median(values[1:] or values),
}
"""How repeated values become one; `steady`: the median from the second on."""

_DEFAULT_TAKES = {"epoch_s": "steady", "samples_per_s": "steady", "step_s": "steady", "peak_memory_gb": "max"}
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9}
_KEYS = ("json", "regex", "scale", "invert", "take")
PROGRESS_BAR = "tqdm"
"""The declaration of `step_s` that reads the states of progress bars."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How one column of the summary is read from the output."""

    column: str
    key: str | None = None
    """Key of a JSON line; None if a pattern is given."""
    pattern: re.Pattern[str] | None = None
    scale: float = 1.0
    """Factor on the number: 0.01 turns a percentage into a fraction."""
    invert: bool = False
    """If set, take one over the number, before `scale`: seconds per step from steps per second."""
    take: str = "last"
    progress_bar: bool = False
    """Whether progress bars give the number, and no line by itself."""

    @staticmethod
    def of(column: str, given: Any) -> Reading:
        """Read from the config: null, a regular expression, or {json or regex, scale, …}. Raises ValueError.

        `step_s` may also be `tqdm`.
        """
        if column == "step_s" and given == PROGRESS_BAR:
            return Reading(column=column, progress_bar=True)
        long = {"regex": given} if isinstance(given, str) else given or {}
        subject = f"trainable.metrics.{column}"
        if not isinstance(long, Mapping) or not set(long) <= set(_KEYS) or len({"json", "regex"} & set(long)) > 1:
            raise ValueError(
                f"{subject} takes null, a regular expression, or json or regex, {', '.join(_KEYS[2:])}; not {given}"
            )
        take, scale = long.get("take", _DEFAULT_TAKES.get(column, "last")), long.get("scale", 1.0)
        if take not in TAKES:
            raise ValueError(f"{subject}.take={take!r} is not one of {', '.join(TAKES)}")
        if not is_number(scale) or not scale:
            raise ValueError(f"{subject}.scale must be a number other than 0, not {scale!r}")
        if not isinstance(invert := long.get("invert", False), bool):
            raise ValueError(f"{subject}.invert must be true or false, not {invert!r}")
        try:
            pattern = re.compile(str(long["regex"])) if "regex" in long else None
        except re.error as error:
            raise ValueError(f"{subject}={long['regex']!r} is not a regular expression: {error}") from error
        key = None if pattern else str(long.get("json", column))
        return Reading(column=column, key=key, pattern=pattern, scale=scale, invert=invert, take=take)

    def of_line(self, line: str) -> float | None:
        """Return the number in a line of output; None if the line has none."""
        match = self.pattern.search(line) if self.pattern else None
        return self._scaled(_first_group(match)) if match is not None else None

    def of_row(self, row: Mapping[str, Any]) -> float | None:
        """Return the number in a JSON object; None if the object has none."""
        return self._scaled(row.get(self.key)) if self.key else None

    def _scaled(self, value: Any) -> float | None:
        number = as_number(value)
        if number is None or (self.invert and not number):
            return None
        if self.invert:
            number = 1 / number
        return number if self.scale == 1 else number * self.scale


def as_number(value: Any) -> float | None:
    """Return a number, also from text (`1,234.5`; `1.2K`; `1:02:03` in seconds); None for anything else.

    Whole numbers stay whole.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return value
    text = value.replace(",", "").strip()
    if text[-1:] in _SUFFIXES and text[:-1].replace(".", "", 1).isdigit():
        return float(text[:-1]) * _SUFFIXES[text[-1]]
    if clock := _CLOCK.fullmatch(text):
        return int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None


POSITION = ("epoch", "epochs", "step", "steps", "samples")
"""Keys with the position in the training; a JSON line with `epoch` is a row of the learning curve."""

SPEEDS = ("epoch_s", "step_s", "samples_per_s", "train_s")
"""Columns that hold a speed."""


class CommandMetrics:
    """The metrics in lines of output; only those that the config declares, since anything may look like a number.

    Rows come from JSON lines with an `epoch`. Without those, a line that names another epoch (`epoch_pattern`) starts
    the next row; without an `epoch_pattern`, a repeated metric does. If no line has a time, the time between the
    epochs' lines counts, provided that they are epochs: they are named, or as many as in the budget.
    `global_batch_size` is in samples; None if unknown.
    """

    def __init__(
        self,
        settings: CommandSettings,
        global_batch_size: int | None = None,
        epochs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        target: Target | None = None,
    ) -> None:
        """`epochs` is the length of the budget. Raises ValueError naming a metric with an invalid declaration."""
        self._settings, self._target = settings, target
        self._global_batch_size = global_batch_size
        self._readings = [Reading.of(column, given) for column, given in settings.metrics.items()]
        self._epoch_pattern = re.compile(settings.epoch_pattern) if settings.epoch_pattern else None
        self._step_pattern = re.compile(settings.step_pattern) if settings.step_pattern else None
        self._epoch = ""
        """The epoch that the last line named."""
        self._step: float | None = None
        self._seen: dict[str, list[float]] = {}
        """The values of each column, in their order."""
        self._open: dict[str, float] = {}
        """The row that patterns have not completed yet."""
        self._evaluation_s = 0.0
        """The time of evaluations within `train_runtime`, as Hugging Face's Trainer prints it."""
        self._rows = 0
        self._rows_name_epochs = False
        self._budget_epochs = epochs
        self._clock = EpochClock(clock)
        self._steps = StepTimes(clock)
        self._bars = ProgressBars(clock) if any(reading.progress_bar for reading in self._readings) else None
        self.samples_per_step: float | None = None
        """The mean number of samples in a step, if the command's processes have counted them."""
        self.samples: float | None = None
        """All samples, likewise."""
        self.is_preset = settings.is_preset
        self.is_timed_elsewhere = False
        """Whether the command's processes have timed their steps: then no arrival of lines is needed."""
        self.reports = 0
        """How many lines had a metric, or a step of a progress bar."""

    def line(self, line: str) -> list[dict[str, Any]]:
        """Return the rows that this line completes, usually none. Raises DivergedError if a loss is not finite."""
        self.open_line(line)
        line = ANSI.sub("", line)
        json_row = _json_object(line)
        if json_row is not None:
            rows = self.row(json_row)
            for row in rows:
                self._clock.seen(row["epoch"])
            return rows
        line = line[:SEARCHED]
        values = self._values(lambda reading: reading.of_line(line))
        rows = self._begin_row(line, values)
        self._open |= values
        step = self._step_pattern.search(line) if self._step_pattern is not None else None
        if step is not None:
            self._step = as_number(_first_group(step))
        self._take(values)
        return rows

    def _begin_row(self, line: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
        """Note the epoch of a line; return the row before it, if the line begins another one."""
        if self._epoch_pattern is None:
            rows = self.last_row() if values.keys() & self._open.keys() else []
            # The first line of a row counts: the last one may follow the last evaluation.
            if values and not self._open and not self._rows_name_epochs:
                self._clock.seen(self._rows)
            return rows
        match = self._epoch_pattern.search(line)
        if match is None:
            return []
        epoch_before, self._epoch = self._epoch, _first_group(match)
        rows = self.last_row() if self._epoch != epoch_before else []
        number = as_number(self._epoch)
        self._clock.seen(self._rows if number is None else number)
        return rows

    def _values(self, read: Callable[[Reading], float | None]) -> dict[str, float]:
        values = {reading.column: read(reading) for reading in self._readings}
        return {column: value for column, value in values.items() if value is not None}

    def open_line(self, text: str) -> None:
        """Read a line that has no end yet: progress bars write the end before the next state."""
        if self._bars is not None and self._bars.read(text[:SEARCHED]):
            self.reports += 1

    def row(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a JSON object, or a line of a table, as a row if it has an epoch."""
        values = self._values(lambda reading: reading.of_row(row))
        position = {key: value for key in POSITION if (value := as_number(row.get(key))) is not None}
        self._step = position.get("step", position.get("steps", self._step))
        self._evaluation_s += as_number(row.get("eval_runtime")) or 0.0
        self._take(values)
        if "epoch" not in position:
            return []
        self._rows_name_epochs = True
        return [position | values]

    def last_row(self) -> list[dict[str, Any]]:
        """Return the row that patterns have found since the last one; call it again when the command has ended."""
        values, self._open = self._open, {}
        if not values or self._rows_name_epochs:
            return []
        self._rows += 1
        return [{"epoch": self._rows} | values]

    def figures(self) -> dict[str, Any]:
        """Return the trial's metrics by column, and those derived from them."""
        figures = self._reported()
        derivations = (
            *(self._of_epochs, self._of_steps, self._of_rate, self._of_arrivals),
            *(self._of_window, self._of_length, self._of_target),
        )
        # What is reported precedes what is derived, and each derivation those after it.
        for derive in derivations:
            figures = derive(figures) | figures
        return figures

    def _reported(self) -> dict[str, Any]:
        takes = {reading.column: TAKES[reading.take] for reading in self._readings}
        reported: dict[str, Any] = {column: takes[column](values) for column, values in self._seen.items()}
        by_trainer = any((reading.column, reading.key) == ("train_s", "train_runtime") for reading in self._readings)
        if by_trainer and "train_s" in reported:
            reported["train_s"] -= self._evaluation_s
        return reported

    def _of_epochs(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        epochs_s, samples_per_epoch = self._seen.get("epoch_s", []), self._settings.samples_per_epoch
        if not epochs_s:
            return {}
        derived = {"first_epoch_s": epochs_s[0], "train_s": sum(epochs_s)}
        if len(epochs_s) > 1:  # a single epoch includes start-up
            derived["window_s"] = sum(epochs_s[1:])
        if samples_per_epoch:
            derived["samples_per_s"] = samples_per_epoch / figures["epoch_s"]
            derived["samples"] = samples_per_epoch * len(epochs_s)
        return derived

    def _of_steps(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        of_bars = self._bars.figures() if self._bars is not None else {}
        return of_bars | (self._steps.figures() if "step_s" in self._seen else {})

    def _of_rate(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        samples = self._samples_per_step
        return {"samples_per_s": samples / figures["step_s"]} if samples and figures.get("step_s", 0) > 0 else {}

    def _of_arrivals(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        if not self.between_lines:
            return {}
        timed, samples_per_epoch = self._clock.figures(), self._settings.samples_per_epoch
        return timed | ({"samples_per_s": samples_per_epoch / timed["epoch_s"]} if samples_per_epoch else {})

    def _of_window(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        samples_per_epoch, samples_per_step = self._settings.samples_per_epoch, self._samples_per_step
        if not samples_per_epoch or not samples_per_step or not figures.get("epoch_s", 0) > 0:
            return {}
        epochs = figures.get("window_s", math.nan) / figures["epoch_s"]
        return {} if math.isnan(epochs) else {"window_steps": round(epochs * samples_per_epoch / samples_per_step)}

    def _of_length(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        samples_per_epoch = self._settings.samples_per_epoch
        if not samples_per_epoch or not self._epochs or "samples_per_s" not in figures:
            return {}
        return {"samples": samples_per_epoch * self._epochs}

    def _of_target(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        epochs_s = self._seen.get("epoch_s", [])
        values = self._seen.get(self._target.metric, []) if self._target else []
        # An epoch's time and its metric belong together only if each epoch has both.
        if self._target is None or len(epochs_s) != len(values):
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
        """Return the mean number of samples in a step, in which the last batch of an epoch may be smaller.

        None if unknown. Without `samples_per_epoch` it is the global batch.
        """
        if self.samples_per_step:
            # A bar may count passes, of which several make an optimizer step, or samples.
            states = self._bars.figures().get("steps") if self._bars and self.samples else None
            return self.samples / states if self.samples and states else self.samples_per_step
        batch, samples = self._global_batch_size, self._settings.samples_per_epoch
        if samples is None or batch is None:
            return batch
        steps = self._bars.steps_per_epoch if self._bars else None
        if steps == samples > batch:
            return 1.0  # the bar counts samples
        return samples / (steps or math.ceil(samples / batch))

    @property
    def between_lines(self) -> bool:
        """Return whether `epoch_s` is the time between the epochs' lines, because no line has a time."""
        by_steps = self.is_timed_elsewhere or (self._bars is not None and self._bars.figures())
        return bool(self._epochs and self._clock.figures()) and not by_steps and not set(SPEEDS) & set(self._seen)

    def work(self) -> dict[str, Any]:
        """Return the `epochs` that the lines tell of, and `work_source`; {} if they tell of none.

        The source is `declared` if the lines name epochs or time them, and `assumed` if each row may be an epoch.
        """
        if "epochs" in self._seen:
            return {"work_source": "declared"}
        is_named = self._rows_name_epochs or self._epoch_pattern is not None
        named = self._clock.work(self._budget_epochs) if is_named else 0.0
        timed = len(self._seen.get("epoch_s", ()))
        if named:
            return {"epochs": named, "work_source": "declared"}
        if timed > 1:  # a single time may be that of any epoch
            return {"epochs": timed, "work_source": "declared"}
        return {"work_source": "assumed"} if self._rows else {}

    @property
    def _epochs(self) -> float:
        """Return how many epochs there were; 0 if the lines may be about something else."""
        is_named = self._rows_name_epochs or self._epoch_pattern is not None
        return self._clock.epochs if is_named or self._clock.epochs == self._budget_epochs else 0

    def unread(self) -> list[str]:
        """Return declared columns that no line had."""
        metrics = self._settings.metrics.items()
        bars = {"step_s"} if self._bars is not None and self._bars.figures() else set()
        return [column for column, given in metrics if given is not None and column not in {*self._seen, *bars}]

    @property
    def found_nothing(self) -> bool:
        """Return whether no metric has been read."""
        return not self._seen and not self.reports

    @property
    def remark_on_steps(self) -> str:
        """Return what to change if only some steps seem to be reported; else an empty string."""
        return self._steps.remark()

    def _take(self, values: Mapping[str, float]) -> None:
        loss = values.get("loss", 0.0)
        if not math.isfinite(loss):
            raise DivergedError(f"the command printed a loss of {loss}")
        self.reports += bool(values)
        for column, value in values.items():
            if math.isfinite(value):
                self._seen.setdefault(column, []).append(value)
                if column == "step_s":
                    self._steps.add(value, self._step)


def _first_group(match: re.Match[str]) -> str:
    """Return the first group, or the whole match of a pattern without groups."""
    return str(match[1 if match.re.groups else 0])


def _json_object(line: str) -> dict[str, Any] | None:
    """Parse a JSON object, or a dictionary as Python prints it (Hugging Face's Trainer: {'epoch': '1'})."""
    text = line.strip()
    if not text.startswith("{") or not text.endswith("}"):
        return None
    quoted = re.sub(r"(?<=: )-?(?:nan|inf)\b", lambda match: repr(match[0]), text)  # Python prints these bare
    for read, source in ((json.loads, text), (ast.literal_eval, quoted)):
        try:
            value = read(source)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict) else None
    return None


def declared(metrics: Mapping[str, Any]) -> Iterable[str]:
    """Yield a line for each metric with an invalid declaration."""
    for column, given in metrics.items():
        try:
            Reading.of(column, given)
        except ValueError as error:
            yield str(error)


class MetricsFile:
    """The command's metrics file: lines of JSON and CSV are read as they are written, .json at the end; None: no file.

    A CSV file may be written anew, as Lightning does: then only further lines count.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if self._path:
            self._path.unlink(missing_ok=True)  # of an earlier attempt
        self._is_table = path is not None and path.suffix == ".csv"
        is_whole = path is not None and path.suffix == ".json"
        self._lines = OutputLines(path) if path and not is_whole and not self._is_table else None
        self._rows_read = 0
        self._read: tuple[int, int] | None = None
        """The size and modification time of the table when it was last read."""

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Return the lines written since the last call, as lines of JSON; with `ended`, also an unfinished last one."""
        if self._lines is not None:
            yield from self._lines.new(ended=ended)
        elif self._is_table and self._path is not None and self._path.is_file():
            state = self._path.stat()
            before, self._read = self._read, (state.st_size, state.st_mtime_ns)
            if self._read == before and not ended:
                return
            text = self._path.read_text(encoding="utf-8", errors="replace")
            whole = text if ended else text[: text.rfind("\n") + 1]
            rows = list(csv.DictReader(io.StringIO(whole)))
            for row in rows[self._rows_read :]:
                cells = {str(key).strip(): cell.strip() for key, cell in row.items() if isinstance(cell, str)}
                yield json.dumps({key: cell for key, cell in cells.items() if cell})
            self._rows_read = max(self._rows_read, len(rows))

    def rows(self, metrics: CommandMetrics) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file that is read as a whole. Raises ValueError if it is missing or malformed."""
        if self._path is None:
            return
        if not self._path.is_file():
            raise ValueError(f"trainable.metrics_file: the command wrote no {self._path}")
        if self._path.suffix != ".json":
            return
        content = json.loads(self._path.read_text(encoding="utf-8"))
        for row in content if isinstance(content, list) else [content]:
            if isinstance(row, dict):
                yield from metrics.row(row)
