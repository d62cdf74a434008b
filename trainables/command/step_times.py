"""The time of an epoch by the arrival of its lines, and of a step by printed seconds or the states of progress bars."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from trainables.command.numbers import as_number

SHORTEST_S = 1.0
"""The shortest window that gives a time: lines are read every 0.1 s, and may leave a buffer all at once."""

TOGETHER_S = 0.05  # lines that arrive within this time were read together


class EpochClock:
    """The time from the last line of the first epoch to that of the last: without start-up, with evaluation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._arrival_s: dict[float, float] = {}  # the arrival of each epoch's last line
        self._first = self._last = math.nan  # the first and the latest number, as the program counts
        self._earlier = 0.0  # what the numbers of earlier phases add

    def seen(self, epoch: float, at_s: float | None = None) -> bool:
        """Record that a line of this epoch has arrived, now or at `at_s`; return whether an epoch begins with it."""
        if self._first < epoch < self._last:  # about an earlier epoch, such as the best one
            return False
        if epoch < self._last:  # a phase that counts anew
            numbers = sorted(self._arrival_s)
            self._earlier = numbers[-1] + (numbers[1] - numbers[0] if len(numbers) > 1 else 1.0) - epoch
        begins = epoch != self._last
        if math.isnan(self._first):
            self._first = epoch
        self._last = epoch
        self._arrival_s[self._earlier + epoch] = self._clock() if at_s is None else at_s
        return begins

    @property
    def epochs(self) -> float:
        """The epochs from the first line to the last, including unreported ones between them."""
        numbers = sorted(self._arrival_s)
        if len(numbers) < 2:
            return len(numbers)
        # The first line comes at the end of its interval, wherever the program begins to count.
        first_interval = numbers[1] - numbers[0]
        return numbers[-1] - numbers[0] + first_interval

    def work(self, asked: float | None) -> float:
        """Return how many of the `asked` epochs were trained, as far as the lines tell; 0 without a line."""
        if len(self._arrival_s) < 2:
            return max([1.0, *self._arrival_s]) if self._arrival_s else 0.0
        numbers = self._arrival_s.keys()
        interval = (max(numbers) - min(numbers)) / (len(numbers) - 1)
        # A program that reports every fifth epoch may have no line for the last ones.
        if asked is not None and self.epochs + interval > asked:
            return max(self.epochs, asked)
        return self.epochs

    def figures(self) -> dict[str, float]:
        """Return `epoch_s`, the mean, and its `window_s`; {} if the lines do not tell.

        A median would show the interval at which lines are read.
        """
        gaps_s = [after - before for before, after in pairwise(sorted(self._arrival_s.values()))]
        if not gaps_s:
            return {}
        # A buffer releases many lines at once, and then none for a while.
        is_held_back = sum(gap < TOGETHER_S for gap in gaps_s) > len(gaps_s) / 2 and max(gaps_s) >= SHORTEST_S
        first, last = min(self._arrival_s), max(self._arrival_s)
        window_s = self._arrival_s[last] - self._arrival_s[first]
        is_short = is_held_back or window_s < SHORTEST_S
        return {} if is_short else {"epoch_s": window_s / (last - first), "window_s": window_s}


_UNREPORTED = 2.0
"""If the lines span more than this multiple of the reported time, some steps were probably not reported."""


class StepTimes:
    """The seconds of steps, from the second line on: the first includes start-up.

    A line counts for all steps since the line before it, or for one step if lines have no step numbers.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = 0
        self._number: float | None = None  # the number of the last line's step
        self._is_numbered = False
        self._first_s = self._last_s = 0.0  # the arrival of the first and of the last line
        self._steps = self._seconds = 0.0

    def add(self, seconds: float, number: float | None) -> None:
        """Record a line that has just reported the seconds of a step, and its number if known."""
        self._last_s = self._clock()
        steps = 1.0
        if number is not None and self._number is not None:
            # A lower number begins a new count, as in each epoch. The same one is that of another process or drawing.
            steps = max(1.0, number) if number < self._number else number - self._number
        if self._lines == 0:
            self._first_s = self._last_s
        else:
            self._steps += steps
            self._seconds += steps * seconds
        self._lines += 1
        self._number = number
        self._is_numbered = self._is_numbered or number is not None

    def figures(self) -> dict[str, float]:
        """Return `window_s` and `window_steps`; {} after a single line."""
        return {"window_s": self._seconds, "window_steps": self._steps} if self._steps else {}

    def remarks(self) -> Iterator[str]:
        """Yield what to change if only some steps seem to be reported."""
        passed_s = self._last_s - self._first_s
        if not self._is_numbered and self._steps and passed_s >= _UNREPORTED * self._seconds:
            yield (
                f"step_s was reported {self._lines} times in {passed_s:.1f} s, and counts as {self._seconds:.2g} s of"
                " training: if only some steps are reported, trainable.step_pattern='step ([0-9]+)' reads which; all"
                " between then count"
            )


ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # codes for colours and the cursor

_TIME = r"(?:\d+:)?\d+:\d\d"
_TQDM = re.compile(
    r"(?P<done>\d[\d.]*)(?P<done_scale>[kMGT]?)(?:/(?P<total>\d[\d.]*|\?)(?P<total_scale>[kMGT]?)|\s?[A-Za-z_]+)\s*"
    rf"\[(?P<elapsed>{_TIME})(?:<(?:{_TIME}|\?))?,\s*(?P<rate>[\d.]+|\?)(?P<rate_scale>[kMGT]?)\s*"
    r"(?P<unit>[^\d\s/,\]][^/,\]]*)/(?P<per>[^\s/,\]]+)"
)
"""`45/100 [00:12<00:15, 3.60it/s`; without a total `45it [00:12, 3.60it/s`; slow steps as `1.20s/it`."""

_KERAS = re.compile(
    r"(?<![\d/])(?P<done>\d+)/(?P<total>\d+)\s*(?:━{3,}|[━╸╺─]{3,}|[█▏▎▍▌▋▊▉░▒·]{2,}|\[[=>.#*\- ]{3,}\])"
)
"""`45/100 ━━━━━ 2s 4ms/step`, and `45/100 [====>...]`, whose clock counts down."""

_ASCII = re.compile(r"\[[=>.#*\- ]{3,}\]\s*(?P<done>\d+)/(?P<total>\d+)")
"""`[###-------] 45/100`"""

_FASTPROGRESS = re.compile(rf"\d%\s*\[(?P<done>\d+)/(?P<total>\d+)\s+(?P<elapsed>{_TIME})<")
"""`|████----| 45.00% [45/100 00:12<00:15 0.5432]`"""

_RICH = re.compile(
    r"[━╸╺─]\s*(?:(?P<percent>\d+)%\s*)?(?:(?P<done>\d+)/(?P<total>\d+)\s+)"
    rf"(?:(?P<elapsed>{_TIME})\s*[•<]?\s*(?:{_TIME}|-:--:--)?)?"
)
"""`━━━╸━━ 45/100 0:00:12 • 0:00:15 3.60it/s`"""

_PERCENT, _NOT_OF_NAME = re.compile(r"\d+%\s*\|"), re.compile(r"[\d━╸╺─%|/.:]+")
_EVALUATION = re.compile(r"(?i)valid|\beval|\btest|predict|sanity")


@dataclass(frozen=True, kw_only=True)
class BarState:
    """One printed state of a progress bar."""

    name: str  # the text before the bar, without its digits
    done: float
    total: float | None
    elapsed_s: float | None

    @staticmethod
    def of(line: str) -> BarState | None:
        """Read a line of output; None if it shows no progress bar with a count."""
        text = ANSI.sub("", line)
        patterns = (_TQDM, _FASTPROGRESS, _RICH, _KERAS, _ASCII)
        match = next((match for pattern in patterns if (match := pattern.search(text))), None)
        if match is None:
            return None
        parts = match.groupdict()
        has_total = parts["total"] not in (None, "?")
        title = _PERCENT.split(text[: match.start()])[0]
        return BarState(
            name=" ".join(_NOT_OF_NAME.sub(" ", title).split()),
            done=as_number(parts["done"] + (parts.get("done_scale") or ""), "steps") or 0.0,
            total=as_number(parts["total"] + (parts.get("total_scale") or ""), "steps") if has_total else None,
            elapsed_s=as_number(parts.get("elapsed")),
        )


@dataclass
class _Bar:
    """Steps and their time from the states of one bar, which may run once for each epoch."""

    last: BarState
    at_s: float  # the arrival of the last state
    steps: float = 0.0
    seconds: float = 0.0
    printed_steps: float = 0.0
    printed_s: float = 0.0  # the time by the bar's own clock, in whole seconds
    earlier_steps: float = 0.0  # steps of its earlier runs
    runs: int = 1
    begins: bool = True  # whether the time begins at the last state
    is_interrupted: bool = False
    """Whether another bar has advanced since the last state: an evaluation, whose time does not count."""

    def advance(self, state: BarState, now_s: float) -> None:
        """Take the next state, with another count than the last one."""
        steps = state.done - self.last.done
        if steps < 0:  # the bar runs again, for the next epoch
            self.earlier_steps += self.last.done
            self.runs += 1
        if steps < 0 or self.is_interrupted:
            self.begins = True
        else:
            # Of states that were read together, the time begins at the last one.
            if not self.begins or now_s - self.at_s >= TOGETHER_S:
                self.steps += steps
                self.seconds += now_s - self.at_s
                self.begins = False
            if state.elapsed_s is not None and self.last.elapsed_s is not None:
                self.printed_steps += steps
                self.printed_s += state.elapsed_s - self.last.elapsed_s
        self.last, self.at_s, self.is_interrupted = state, now_s, False


class ProgressBars:
    """The steps and seconds of a training, from the states of its progress bars; nested bars are kept apart.

    Steps are differences of counts, and their time is that between the states. The bar with the most steps is that of
    the training, unless its name says that it evaluates.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bars: dict[tuple[str, float | None], _Bar] = {}  # the bars by name and total

    def read(self, line: str) -> bool:
        """Record a line of output; return whether it is a new state of a bar with a step."""
        state = BarState.of(line)
        if state is None or not state.done:
            return False
        now_s, key = self._clock(), (state.name, state.total)
        bar = self._bars.get(key)
        if bar is not None and state.done == bar.last.done:
            return False
        if bar is None:
            self._bars[key] = _Bar(state, now_s)
        else:
            bar.advance(state, now_s)
        for other_key, other in self._bars.items():
            other.is_interrupted = other.is_interrupted or other_key != key
        return True

    def figures(self) -> dict[str, float]:
        """Return `step_s`, `window_s`, `window_steps` and `steps`, of the whole training; {} without two states."""
        bar = self._training
        if bar is None:
            return {}
        steps, seconds = bar.steps, bar.seconds
        if seconds < bar.printed_s / 2:  # the states were held back in a buffer
            steps, seconds = bar.printed_steps, bar.printed_s
        if not steps or not seconds:
            return {}
        all_steps = bar.earlier_steps + bar.last.done
        return {"step_s": seconds / steps, "window_s": seconds, "window_steps": steps, "steps": all_steps}

    @property
    def steps_per_epoch(self) -> float | None:
        """The total of a bar that runs several times, once for each epoch; None if no bar does."""
        bar = self._training
        return bar.last.total if bar is not None and bar.runs > 1 else None

    @property
    def _training(self) -> _Bar | None:
        training = [bar for (name, _), bar in self._bars.items() if not _EVALUATION.search(name)]
        return max(training or self._bars.values(), key=lambda bar: max(bar.steps, bar.printed_steps), default=None)


_FIRST_PERCENT = re.compile(r"\W{0,3}(\d{1,3})\s?%")


class Redraws:
    """The lines of progress bars, of which several show one run."""

    def __init__(self) -> None:
        self._drawn: dict[str, float] = {}  # the count of each progress bar's last line

    def is_drawn_again(self, line: str, bar: BarState | None) -> bool:
        """Return whether a progress bar, or a line that begins with a percentage, is in a further state of one run."""
        percent = _FIRST_PERCENT.match(line)
        if bar is None and percent is None:
            return False
        name, done = (bar.name, bar.done) if bar is not None else ("%", float(percent[1]) if percent else 0.0)
        done_before = self._drawn.get(name, math.inf)
        self._drawn[name] = done
        return done >= done_before
