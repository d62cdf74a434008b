"""Progress of a running sweep: on a terminal a live table of the running trials, elsewhere a line per ended trial."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
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
from orchestrator.store.record import TrialOutcome, TrialRecord, tokens_per_s
from orchestrator.text.numbers import counted
from orchestrator.text.rows import cell_label
from sweeps.identity import SHOWN_DIGITS
from sweeps.status import Status
from sweeps.trial import TrialSpec

LAST_ENDED = 4
"""How many ended trials the live table shows below the running ones."""

IDLE_S = 20
"""Seconds without a running trial after which the display explains why nothing runs."""


@dataclass(kw_only=True)
class _Running:
    """A running trial with its start on the monotonic clock and the last row that it reported."""

    trial: TrialSpec
    began_s: float
    row: Mapping[str, Any] = field(default_factory=dict)


class Display:
    """Counts the events of a sweep and prints them. Other modules neither store nor read these counts."""

    def __init__(self, console: Console, waiting: int, metric: Metric | None = None) -> None:
        self._console = console
        self._metric = metric or Metric()
        self._total = self._waiting = waiting
        self._running: dict[str, _Running] = {}
        self._ended: Counter[Status] = Counter()
        self._disturbed = 0
        self._last: deque[tuple[TrialSpec, TrialOutcome, str]] = deque(maxlen=LAST_ENDED)
        """The last ended trials, with what disturbed their timing."""
        self._best: tuple[float, str] | None = None
        self._took_s: list[float] = []
        self._first_start = self._idle_since = time.monotonic()
        self._idle_said = False
        self._bar = Progress(TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("trials", total=waiting)
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
            self._took_s.append(time.monotonic() - running.began_s)
        self._ended[outcome.status] += 1
        self._disturbed += bool(disturbed)
        self._last.append((trial, outcome, disturbed))
        self._bar.advance(self._task)
        value, sign = outcome.metrics.get(self._metric.name), self._metric.sign
        if outcome.status is Status.OK and value is not None:
            if self._best is None or sign * value > sign * self._best[0]:
                self._best = (value, _axes(trial))
        if not self._live or outcome.status is not Status.OK:
            done = f"[{sum(self._ended.values()):{len(str(self._total))}}/{self._total}]"
            line = f"{done} {outcome.status:<8} {outcome.wall_s:6.1f} s  {_id(trial)}  {_axes(trial)}"
            tokens, samples = tokens_per_s(outcome.metrics), outcome.metrics.get("samples_per_s")
            speed = ("samples/s", samples) if tokens is None else ("tokens/s", tokens)
            for name, value in (speed, (self._metric.short_label, outcome.metrics.get(self._metric.name))):
                if value is not None:
                    line += f"  {name} {_number(value)}"
            notes = [outcome.note, f"disturbed: {disturbed}" if disturbed else ""]
            line += "".join(f"  {note}" for note in notes if note)
            self._print(line, style="" if outcome.status is Status.OK else "bold red")
        self.refresh()

    def copied(self, trial: TrialSpec, original: TrialRecord) -> None:
        """Count a trial that has the result of another one with the same training."""
        self._waiting -= 1
        note = f"same training as {original.trial_id[:SHOWN_DIGITS]}"
        self.finished(trial, TrialOutcome(status=original.status, wall_s=0.0, note=note, metrics=original.metrics))

    def retried(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Print that an attempt failed. The trial waits for its next attempt."""
        self._running.pop(trial.trial_id, None)
        self._waiting += 1
        self._print(f"will be retried: {_axes(trial)}  {outcome.note}", style="yellow")
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
            which = f"{_id(trials[0])}  {_axes(trials[0])} " if len(trials) == 1 else f"{len(trials)} trials:"
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
            footer = f"about {timedelta(seconds=round(left))} left" if left is not None else "time left unknown"
            if self._best:
                footer += f"; best {self._metric.label} so far {self._best[0]:.4f} ({self._best[1]})"
            self._live.update(Group(self._table(), self._bar, Text(footer)), refresh=True)

    def left_s(self) -> float | None:
        """Estimate the seconds until the end, from the trials that ran at once so far.

        None until two trials have ended: most of the first one's time may be the start of its processes.
        """
        waiting = self._total - sum(self._ended.values()) - len(self._running)
        if not waiting and not self._running:
            return 0.0
        if len(self._took_s) < 2:
            return None
        now = time.monotonic()
        running_s = [now - running.began_s for running in self._running.values()]
        at_once = (sum(self._took_s) + sum(running_s)) / (now - self._first_start)
        return time_left_s(self._took_s, running_s, waiting, at_once)

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _table(self) -> Table:
        """Return the table of the running trials, with the counts as its title."""
        counts = "".join(f", {count} {status}" for status, count in sorted(self._ended.items()))
        counts += f", {self._disturbed} disturbed" if self._disturbed else ""
        table = Table(title=f"{len(self._running)} running, {self._waiting} waiting{counts}", title_justify="left")
        table.add_column("trial")
        table.add_column("cell", overflow="fold")  # the last axis, often the seed, must stay visible
        columns = {"epoch": "epoch", "loss": "loss", self._metric.short_label: self._metric.name}
        for heading in (*columns, "s"):
            table.add_column(heading, justify="right")
        table.add_column("state")
        for running in self._running.values():
            row = (_number(running.row.get(key)) for key in columns.values())
            took = f"{time.monotonic() - running.began_s:.0f}"
            table.add_row(_id(running.trial), Text(_axes(running.trial)), *row, took, "running")
        for trial, outcome, disturbed in reversed(self._last):
            row = (_number(outcome.metrics.get(key)) for key in ("epochs", *list(columns.values())[1:]))
            state = Text("disturbed", "yellow") if disturbed else Text(outcome.status)
            table.add_row(_id(trial), Text(_axes(trial)), *row, f"{outcome.wall_s:.0f}", state, style="dim")
        return table


def _id(trial: TrialSpec) -> str:
    """Return a trial's displayed id; a probe has the id of its trial."""
    return (trial.measures or trial.trial_id)[:SHOWN_DIGITS]


def _axes(trial: TrialSpec) -> str:
    """Return the short label of a trial's cell, then its further axes and its seed: `2×128 linear, seed=0`."""
    others = [axis for axis in trial.axes if axis not in _IN_LABEL]
    row = {"gpus": trial.gpus, "device_batch_size": trial.batch.device_batch_size, "lr_rule": trial.lr.rule}
    return cell_label({**row, **{axis: trial.axes[axis] for axis in others}}, others)


_IN_LABEL = ("gpus", "device_batch_size", "global_batch_size", "lr_rule")
"""Axes whose values are at the start of each label."""


def _number(value: object) -> str:
    """Return four significant digits, or an integer from 1,000 on; never an exponent such as 1.066e+04."""
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:,.4g}"
