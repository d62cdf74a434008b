"""Progress of a running sweep: on a terminal a live table of the running trials, elsewhere a line per ended trial."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from orchestrator.config.request import Metric
from orchestrator.schedule.simulation import time_left_s
from orchestrator.store.record import TrialOutcome, TrialRecord, metric_value, tokens_per_s
from orchestrator.text.numbers import counted
from orchestrator.text.rows import gpus_in_words, trial_label
from sweeps.identity import SHOWN_DIGITS
from sweeps.status import Status
from sweeps.trial import Purpose, TrialSpec

LAST_ENDED = 10  # how many ended trials the live table shows below the running ones, if the terminal is high enough

NARROW = 90  # a terminal with fewer columns has no column of losses

_PURPOSES = {Purpose.PROBE: "probe", Purpose.REPETITION: "timed again", Purpose.WINDOW: "timed again"}
"""Words for trials that measure another one, whose accuracy means nothing or is known already."""

IDLE_S = 20  # seconds without a running trial after which the display explains why nothing runs


class Leaders:
    """The fastest trial of each number of GPUs and the best metric, among the trials that have ended."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._best: tuple[float, str] | None = None
        self._fastest: dict[float, tuple[float, str, str]] = {}
        """By number of GPUs: the highest undisturbed rate, its trial and its unit."""
        self._on_cpu = False

    def figures(self, metrics: Mapping[str, Any], purpose: str) -> dict[str, float]:
        """Return a trial's rate and metric of choice by their names, as far as they are known."""
        tokens, samples = tokens_per_s(metrics), metric_value(metrics, "samples_per_s")
        figures: dict[str, float | None] = {"samples/s": samples} if tokens is None else {"tokens/s": tokens}
        if purpose == Purpose.TRAIN:
            figures[self._metric.short_label] = metric_value(metrics, self._metric.name)
        return {name: value for name, value in figures.items() if value is not None}

    def take(self, trial: str, gpus: float, figures: Mapping[str, float], *, on_cpu: bool, is_timed: bool) -> None:
        """Take an ok trial's label and figures; its rate counts only if it `is_timed`, that is, undisturbed."""
        self._on_cpu = on_cpu
        value, sign = figures.get(self._metric.short_label), self._metric.sign
        if value is not None and (self._best is None or sign * value > sign * self._best[0]):
            self._best = (value, trial)
        unit, rate = next(iter(figures.items()), ("", 0.0))
        known = self._fastest.get(gpus)
        # A command may report no sample at all, and speed-ups divide by the rate.
        if is_timed and unit.endswith("/s") and rate > 0 and (known is None or rate > known[0]):
            self._fastest[gpus] = (rate, trial, unit)

    def lines(self) -> Iterator[str]:
        """Yield a line each for the fastest trial, the speed-up and the best metric, as far as they are known."""
        if self._fastest:
            rate, trial, unit = max(self._fastest.values(), key=lambda fastest: fastest[0])
            yield f"fastest so far: {trial}, {short_number(rate)} {unit}"
            fewest, *others = (
                (self._fastest[gpus][0], gpus_in_words(gpus, on_cpu=self._on_cpu)) for gpus in sorted(self._fastest)
            )
            gains = [f"{words} {rate / fewest[0]:.2f}×" for rate, words in others]
            if gains:
                yield f"speed-up so far: {', '.join(gains)} the fastest of {fewest[1]}"
        if self._best:
            yield f"best {self._metric.label} so far: {self._best[0]:.4f}, {self._best[1]}"


@dataclass(kw_only=True)
class _Running:
    """A running trial with its start on the monotonic clock and the last row that it reported."""

    trial: TrialSpec
    began_s: float
    row: Mapping[str, Any] = field(default_factory=dict)


class Display:
    """Counts the events of a sweep and prints them. Other modules neither store nor read these counts."""

    def __init__(
        self, console: Console, waiting: int, metric: Metric | None = None, forecast_s: float | None = None
    ) -> None:
        """`forecast_s`: the seconds that the plan foresees; None if no duration is known."""
        self._console = console
        self._metric = metric or Metric()
        self._forecast_s = forecast_s
        self._total = self._waiting = waiting
        self._running: dict[str, _Running] = {}
        self._ended: Counter[Status] = Counter()
        self._disturbed = 0
        self._last: deque[tuple[TrialSpec, TrialOutcome, str]] = deque(maxlen=LAST_ENDED)
        """The last ended trials, with what disturbed their timing."""
        self._leaders = Leaders(self._metric)
        self._took_s: list[float] = []
        self._first_start = self._idle_since = time.monotonic()
        self._idle_said = False
        self._bar = Progress(TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("trials", total=waiting)
        # Refreshed by hand: a thread would draw while a trial's line is printed.
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def started(self, trial: TrialSpec) -> None:
        """Add a trial to those that run."""
        now = time.monotonic()
        if not self._running and not self._took_s:
            self._first_start = now
        self._idle_said = False
        self._waiting -= 1
        self._running[trial.trial_id] = _Running(trial=trial, began_s=now)

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the last row of a running trial."""
        if running := self._running.get(trial.trial_id):
            running.row = rows[-1]

    def finished(self, trial: TrialSpec, outcome: TrialOutcome, disturbed: str = "") -> None:
        """Count an ended trial and print a line; on a terminal only if the trial is not ok.

        `disturbed` says what disturbed its timing, which then does not count; empty if nothing did.
        """
        if running := self._running.pop(trial.trial_id, None):
            # Measured here and not the trial's own time: the next one waits for the start of processes as well.
            self._took_s.append(time.monotonic() - running.began_s)
        self._ended[outcome.status] += 1
        self._disturbed += bool(disturbed)
        self._last.append((trial, outcome, disturbed))
        self._bar.advance(self._task)
        figures = self._leaders.figures(outcome.metrics, trial.purpose)
        if outcome.status is Status.OK:
            on_cpu = trial.device == "cpu"
            self._leaders.take(_label(trial), trial.gpus, figures, on_cpu=on_cpu, is_timed=not disturbed)
        if not self._live or outcome.status is not Status.OK:
            done = f"[{sum(self._ended.values()):{len(str(self._total))}}/{self._total}]"
            line = f"{done} {outcome.status:<8} {outcome.wall_s:6.1f} s  {_id(trial)}  {_label(trial)}"
            line += "".join(f"  {name} {short_number(value)}" for name, value in figures.items())
            notes = [_PURPOSES.get(trial.purpose, ""), outcome.note, f"disturbed: {disturbed}" if disturbed else ""]
            line += "".join(f"  {note}" for note in notes if note)
            self._print(line, style="" if outcome.status is Status.OK else "bold red")
        self.refresh()

    def copied(self, trial: TrialSpec, original: TrialRecord) -> None:
        """Count a trial that has the result of another one with the same training."""
        self._waiting -= 1
        note = f"same training as {original.trial_id[:SHOWN_DIGITS]}"
        self.finished(trial, TrialOutcome(cause=original.cause, wall_s=0.0, note=note, metrics=original.metrics))

    def retried(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Print that an attempt failed. The trial waits for its next attempt."""
        self._running.pop(trial.trial_id, None)
        self._waiting += 1
        self._print(f"will be retried: {_label(trial)}  {outcome.note}", style="yellow")
        self.refresh()

    def queued(self, trials: Sequence[TrialSpec], why: str) -> None:
        """Count further trials, repetitions or further seeds, and print why they run."""
        self._waiting += len(trials)
        self._total += len(trials)
        self._bar.update(self._task, total=self._total)
        self._print(why)

    def skipped(self, ends: Sequence[tuple[TrialSpec, TrialOutcome]]) -> None:
        """Print a line for each reason why trials do not start. These trials are not counted."""
        alike: dict[tuple[Status, str], list[TrialSpec]] = {}
        for trial, end in ends:
            alike.setdefault((end.status, end.note), []).append(trial)
        for (status, why), trials in alike.items():
            which = f"{_id(trials[0])}  {_label(trials[0])} " if len(trials) == 1 else f"{len(trials)} trials:"
            self._print(f"{status}  {which} {why}")

    @property
    def say(self) -> Callable[[str], None] | None:
        """A function that prints above the live table, from any thread; None without a live table."""
        return (lambda message: self._console.print(Text(message))) if self._live else None

    def refresh(self) -> None:
        """Redraw the live table. Print a line, once, if trials have waited for IDLE_S while nothing runs."""
        if self._running or not self._waiting:
            self._idle_since = time.monotonic()
        elif not self._idle_said and time.monotonic() - self._idle_since > IDLE_S:
            self._idle_said = True
            waiting = counted(self._waiting, "trial waits", "trials wait")
            why = "for processes that start slowly, or for resources that others use"
            self._console.print(f"nothing has started for {IDLE_S} s: {waiting} {why}", soft_wrap=not self._live)
        if self._live:
            left = self.left_s()
            time_left = "time left unknown" if left is None else f"about {timedelta(seconds=round(left))} left"
            footer = Text("\n".join([time_left, *self._leaders.lines()]))
            # A live table that is higher than the terminal would be cut.
            view = Group(self._table(LAST_ENDED), self._bar, footer)
            excess = len(self._console.render_lines(view)) + 1 - self._console.height
            if excess > 0:
                # Each ended trial takes one line.
                view = Group(self._table(max(0, len(self._last) - excess)), self._bar, footer)
            self._live.update(view, refresh=True)

    def left_s(self) -> float | None:
        """Estimate the seconds until the end, from the trials that ran at once so far; at first from the forecast."""
        waiting = self._total - sum(self._ended.values()) - len(self._running)
        now = time.monotonic()
        elapsed_s = now - self._first_start
        running_s = [now - running.began_s for running in self._running.values()]
        # How many trials run side by side changes with their gangs; the average so far is the best guess.
        at_once = (sum(self._took_s) + sum(running_s)) / elapsed_s if elapsed_s else 1.0
        left_s = time_left_s(self._took_s, running_s, waiting, at_once)
        return max(0.0, self._forecast_s - elapsed_s) if left_s is None and self._forecast_s is not None else left_s

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _table(self, most: int) -> Table:
        """Return the table of the running trials and at most `most` ended ones, with the counts as its title."""
        counts = "".join(f", {count} {status}" for status, count in sorted(self._ended.items()))
        counts += f", {self._disturbed} disturbed" if self._disturbed else ""
        title = f"{len(self._running)} running, {self._waiting} waiting{counts}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("trial", no_wrap=True)
        table.add_column("cell", overflow="fold")  # the last axis, often the seed, must stay visible
        columns = {"epoch": "epoch", "loss": "loss", self._metric.short_label: self._metric.name}
        if self._console.width < NARROW:
            del columns["loss"]
        for heading in (*columns, "rate", "s", "state"):
            table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True)
        for running in self._running.values():
            row = [short_number(running.row.get(key)) for key in columns.values()]
            took = f"{time.monotonic() - running.began_s:.0f}"
            state = f"running {_PURPOSES.get(running.trial.purpose, '')}".rstrip()
            table.add_row(_id(running.trial), Text(_label(running.trial)), *row, "", took, state)
        for trial, outcome, disturbed in list(reversed(self._last))[:most]:
            figures = self._leaders.figures(outcome.metrics, trial.purpose)
            known = {**outcome.metrics, "epoch": outcome.metrics.get("epochs")}
            row = [short_number(known.get(key) if trial.purpose is Purpose.TRAIN else None) for key in columns.values()]
            rate = next((f"{short_number(value)} {unit}" for unit, value in figures.items() if unit.endswith("/s")), "")
            end = Text("disturbed", "yellow") if disturbed else Text(_PURPOSES.get(trial.purpose, outcome.status))
            table.add_row(_id(trial), Text(_label(trial)), *row, rate, f"{outcome.wall_s:.0f}", end, style="dim")
        return table


def _label(trial: TrialSpec) -> str:
    return trial_label(trial.columns)


def _id(trial: TrialSpec) -> str:
    """Return a trial's displayed id; a probe has the id of its trial."""
    return (trial.measures or trial.trial_id)[:SHOWN_DIGITS]


def short_number(value: object) -> str:
    """Return four significant digits, or an integer from 1,000 on; never an exponent such as 1.066e+04."""
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:,.4g}"
