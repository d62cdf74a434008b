"""Progress display while the sweep runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from orchestrator.store.record import TrialOutcome
from orchestrator.text.figures import counted
from sweeps.identity import SHOWN_DIGITS
from sweeps.status import Status
from sweeps.trial import TrialSpec

IDLE_S = 20
"""Seconds without a running trial after which a waiting user should be told why."""


class Display:
    """Counts events and draws them. Nothing here is ever pickled or read back."""

    def __init__(self, console: Console, waiting: int) -> None:
        self._console = console
        self._total = self._waiting = waiting
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        self._latest: dict[str, Mapping[str, Any]] = {}
        self._ended: Counter[Status] = Counter()
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
        """A trial runs."""
        now = time.monotonic()
        if not self._running and not self._took_s:
            self._first_start = now
        self._idle_said = False
        self._waiting -= 1
        self._running[trial.trial_id] = (trial, now)

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """A trial has made progress."""
        self._latest[trial.trial_id] = rows[-1]

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """A trial has ended; prints a line, but on a terminal only if it is not ok."""
        if running := self._running.pop(trial.trial_id, None):
            self._took_s.append(time.monotonic() - running[1])
        self._latest.pop(trial.trial_id, None)
        self._ended[outcome.status] += 1
        self._bar.advance(self._task)
        accuracy = outcome.metrics.get("val_accuracy")
        if outcome.status is Status.OK and accuracy is not None and (self._best is None or accuracy > self._best[0]):
            self._best = (accuracy, trial.label.removeprefix(f"{trial.sweep}/"))
        if not self._live or outcome.status is not Status.OK:
            self._console.print(self._line(trial, outcome), soft_wrap=True)
        self.refresh()

    def tried_again(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """An attempt failed, and the trial waits for the next one."""
        self._running.pop(trial.trial_id, None)
        self._latest.pop(trial.trial_id, None)
        self._waiting += 1
        self._console.print(Text(f"will be retried: {trial.label}  {outcome.note}", style="yellow"), soft_wrap=True)
        self.refresh()

    def once_more(self, trials: Sequence[TrialSpec]) -> None:
        """Repetitions of finished trials are queued because something disturbed their timing."""
        self._waiting += len(trials)
        self._total += len(trials)
        self._bar.update(self._task, total=self._total)
        which = counted(len(trials), "trial", "trials")
        self._console.print(f"disturbed timings: repeating {which}, alone")

    def skipped(self, ends: Sequence[tuple[TrialSpec, TrialOutcome]]) -> None:
        """Trials will not be started: print a line for each reason, but do not count them."""
        alike: dict[tuple[Status, str], list[TrialSpec]] = {}
        for trial, end in ends:
            alike.setdefault((end.status, end.note), []).append(trial)
        for (status, why), trials in alike.items():
            which = f"{_name(trials[0])}  {trials[0].label} " if len(trials) == 1 else f"{len(trials)} trials:"
            self._console.print(Text(f"{status}  {which} {why}"), soft_wrap=True)

    @property
    def say(self) -> Callable[[str], None] | None:
        """A function that prints above the live table, from any thread; None without a live table."""
        return (lambda message: self._console.print(Text(message))) if self._live else None

    def refresh(self) -> None:
        """Redraw the table; say so, once, if nothing has run for a while although trials are waiting."""
        if self._running or not self._waiting:
            self._idle_since = time.monotonic()
        elif not self._idle_said and time.monotonic() - self._idle_since > IDLE_S:
            self._idle_said = True
            who = "1 trial waits" if self._waiting == 1 else f"{self._waiting} trials wait"
            reason = f"{who} for processes that start slowly, or for resources that others use"
            self._console.print(f"nothing has started for {IDLE_S} s: {reason}", soft_wrap=not self._live)
        if self._live:
            self._live.update(Group(self._table(), self._bar, self._footer()), refresh=True)

    def _line(self, trial: TrialSpec, outcome: TrialOutcome) -> Text:
        done = sum(self._ended.values())
        count = f"[{done:{len(str(self._total))}}/{self._total}]"
        name = _name(trial)
        line = f"{count} {outcome.status:<8} {outcome.wall_s:6.1f} s  {name}  {trial.label}"
        figures = {"samples/s": outcome.metrics.get("samples_per_s"), "val": outcome.metrics.get("val_accuracy")}
        shown = "".join(f"  {name} {_figure(value)}" for name, value in figures.items() if value is not None)
        style = "" if outcome.status is Status.OK else "bold red"
        return Text(line + shown + (f"  {outcome.note}" if outcome.note else ""), style=style)

    def _table(self) -> Table:
        table = Table(title=self._counts(), title_justify="left")
        table.add_column("trial")
        # Labels end in, say, the seed, which a narrow screen would cut off.
        table.add_column("axes", overflow="fold")
        for heading in ("epoch", "loss", "val accuracy", "seconds"):
            table.add_column(heading)
        for trial, began in self._running.values():
            row = self._latest.get(trial.trial_id, {})
            figures = (_figure(row.get(key)) for key in ("epoch", "loss", "val_accuracy"))
            axes = trial.label.removeprefix(f"{trial.sweep}/")  # the same for all, and space is scarce
            table.add_row(_name(trial), Text(axes), *figures, f"{time.monotonic() - began:.0f}")
        return table

    def _counts(self) -> str:
        ended = ", ".join(f"{count} {status}" for status, count in sorted(self._ended.items()))
        return f"{len(self._running)} running, {self._waiting} waiting" + (f", {ended}" if ended else "")

    def _footer(self) -> Text:
        left = self.left_s()
        left_text = f"about {_duration(left)} left" if left is not None else "time left unknown"
        best = f"; best validation accuracy so far {self._best[0]:.4f} ({self._best[1]})" if self._best else ""
        return Text(left_text + best)

    def left_s(self) -> float | None:
        """Seconds until the end, if trials take as long as half of them did, and as many run at once; else None.

        The first ones tell too much of starting processes to go by alone.
        """
        left = self._total - sum(self._ended.values())
        if not left:
            return 0.0
        if len(self._took_s) < 2:
            return None
        now = time.monotonic()
        running_s = sum(now - began for _, began in self._running.values())
        at_once = (sum(self._took_s) + running_s) / (now - self._first_start)
        return left * statistics.median_low(self._took_s) / at_once


def _name(trial: TrialSpec) -> str:
    """A trial's displayed name; a probe is named after its trial."""
    return (trial.probes or trial.trial_id)[:SHOWN_DIGITS]


def _figure(value: object) -> str:
    """Four significant digits; whole from a thousand on, so never in exponent form such as 1.066e+04."""
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:,.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
