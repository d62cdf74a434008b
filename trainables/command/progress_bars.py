"""Progress bars in a command's output: the states that are printed, and the steps and their time that follow."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainables.command.printed_numbers import as_number
from trainables.command.step_times import TOGETHER_S

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
