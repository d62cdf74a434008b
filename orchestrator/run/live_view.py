"""Progress of a running sweep: on a terminal a live table of the running trials, elsewhere a line per ended trial."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from orchestrator.config.request import Metric
from orchestrator.run.interim_results import InterimResults, faults_in_words
from orchestrator.schedule.time_left import TimeLeft
from orchestrator.store.record import TrialOutcome, TrialRecord
from orchestrator.telemetry.timing_gate import FAULTS, VALID, Fault, Judgement, with_reasons
from orchestrator.text.cell_labels import trial_label
from orchestrator.text.numbers import counted, duration, short_number
from sweeps.identity import SHOWN_DIGITS
from sweeps.status import Status
from sweeps.trial import Purpose, TrialSpec

LAST_ENDED = 10  # how many ended trials the live table shows below the running ones, if the terminal is high enough

NARROW = 90  # a terminal with fewer columns has no column of losses
_ROOMY = 80  # one with fewer than these has none of epochs and times either

_PURPOSES = {Purpose.PROBE: "probe", Purpose.REPETITION: "timed again", Purpose.WINDOW: "timed again"}
"""Words for trials that measure another one, whose accuracy means nothing or is known already."""
_RUNNING = {Purpose.PROBE: "probing", Purpose.REPETITION: "timing again", Purpose.WINDOW: "timing again"}

IDLE_S = 20  # seconds without a running trial after which the display explains why nothing runs


@dataclass(kw_only=True)
class _Running:
    """A running trial with its start on the monotonic clock and the last row that it reported."""

    trial: TrialSpec
    began_s: float
    row: Mapping[str, Any] = field(default_factory=dict)


class Display:
    """Counts the events of a sweep and prints them. Other modules neither store nor read these counts."""

    def __init__(
        self,
        console: Console,
        waiting: Sequence[TrialSpec],
        interim: InterimResults | None = None,
        shares_s: Mapping[str, float | None] | None = None,
    ) -> None:
        """`shares_s` are those of the plan's timetable."""
        self._console = console
        self._waiting = dict.fromkeys(trial.trial_id for trial in waiting)
        self._time_left = TimeLeft()
        self._time_left.queued(shares_s or self._waiting)
        self._running: dict[str, _Running] = {}
        self._ended: Counter[Status] = Counter()
        self._last: deque[tuple[TrialSpec, TrialOutcome, Judgement]] = deque(maxlen=LAST_ENDED)
        self._interim = interim or InterimResults(Metric())
        self._told: set[str] = set()  # notes of ended trials that were printed
        self._footer = self._invalid = ""  # the lines of the results so far, and the counts of invalid timings
        self._again: list[str] = []  # the trials that will be timed again, and are not queued yet
        self._repeated: set[str] = set()  # those that were disturbed when repetitions were queued
        self._rules: dict[str, str] = {}  # the learning-rate rules of trials, by id
        self._widest_label = 0  # the table's columns never get narrower
        self._idle_since = time.monotonic()
        self._idle_said = False
        times = TextColumn("after {task.fields[elapsed]}, {task.fields[left]}")
        self._bar = Progress(TextColumn("trials"), BarColumn(bar_width=24), MofNCompleteColumn(), times)
        self._task = self._bar.add_task("trials", elapsed="", left="")
        self._began_s = time.monotonic()
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
        self._time_left.started(now)
        self._idle_said = False
        self._waiting.pop(trial.trial_id, None)  # a probe has not waited
        self._running[trial.trial_id] = _Running(trial=trial, began_s=now)
        self._rules[trial.trial_id] = str(trial.columns["lr_rule"])

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the last row of a running trial."""
        if running := self._running.get(trial.trial_id):
            running.row = rows[-1]

    def finished(
        self, trial: TrialSpec, outcome: TrialOutcome, judgement: Judgement = VALID, disturbed: str = ""
    ) -> None:
        """Count an ended trial, with the judgement of its timing, and why that was discarded (`TrialRecord.disturbed`).

        Print a line; on a terminal only if the trial is not ok.
        """
        self._running.pop(trial.trial_id, None)
        # Measured here and not the trial's own time: the next one waits for the start of processes as well.
        self._time_left.ended(trial.trial_id, time.monotonic())
        self._ended[outcome.status] += 1
        self._last.append((trial, outcome, judgement))
        figures = self._interim.figures(outcome.metrics, trial.purpose)
        row = {"status": outcome.status, "note": outcome.note, "metrics": outcome.metrics, "disturbed": disturbed}
        self._interim.take({**trial.columns, **row}, judgement)
        # Not at each refresh: the results change only here, and going through thousands of trials takes a while.
        self._update_results()
        if not self._live or outcome.status is not Status.OK:
            done = f"[{self._ended.total():{len(str(self._total))}}/{self._total}]"
            line = f"{done} {outcome.status:<8} {outcome.wall_s:6.1f} s  {_id(trial)}  {_label(trial)}"
            line += "".join(f"  {name} {short_number(value)}" for name, value in figures.items())
            # What all trials of a command have in common is told once.
            is_known = outcome.status is Status.OK and outcome.note in self._told
            self._told.add(outcome.note)
            notes = [_PURPOSES.get(trial.purpose, ""), "" if is_known else outcome.note]
            notes += [f"timed as {timed_with[:SHOWN_DIGITS]}"] if (timed_with := _timed_with(trial)) else []
            notes += [with_reasons(FAULTS[judgement.fault][0], judgement)] if judgement.fault else []
            line += "".join(f"  {note}" for note in notes if note)
            self._print(line, style="" if outcome.status is Status.OK else "bold red")
        self.refresh()

    def _update_results(self) -> None:
        if self._live:
            self._again = [trial_id for trial_id in self._interim.to_repeat() if trial_id not in self._repeated]
            self._footer = "\n".join(self._interim.lines())
            self._invalid = faults_in_words(chain(*self._interim.invalid().values()))
            # One repetition may serve several trials with the same steps.
            up_to = "up to " if len(self._again) > 1 else ""
            self._invalid += f", {up_to}{len(self._again)} timed again at the end" if self._again else ""

    def timed_with(self, others: Mapping[str, str]) -> None:
        """Count timings as valid that are those of other trials, and print how many were not."""
        before = sum(map(len, self._interim.invalid().values()))
        self._interim.timed_with_others(others)
        replaced = before - sum(map(len, self._interim.invalid().values()))
        if replaced:
            count = counted(replaced, "timing is replaced by that", "timings are replaced by those")
            self._print(f"disturbed or doubtful: {count} of other trials with the same steps and seed")
        self._update_results()
        self.refresh()

    def copied(self, trial: TrialSpec, original: TrialRecord, judgement: Judgement = VALID) -> None:
        """Count a trial that has the result of another one with the same training, and the judgement of its timing."""
        self._waiting.pop(trial.trial_id, None)
        note = f"same training as {original.trial_id[:SHOWN_DIGITS]}"
        outcome = TrialOutcome(cause=original.cause, wall_s=0.0, note=note, metrics=original.metrics)
        self.finished(trial, outcome, judgement)

    def retried(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Print that an attempt failed. The trial waits for its next attempt."""
        self._running.pop(trial.trial_id, None)
        self._waiting[trial.trial_id] = None
        self._print(f"will be retried: {_label(trial)}  {outcome.note}", style="yellow")
        self.refresh()

    def queued(self, shares_s: Mapping[str, float | None], why: str) -> None:
        """Count further trials, repetitions or further seeds, by their shares of a timetable; print why they run."""
        self._repeated.update(self._again)
        self._update_results()
        self._time_left.queued(shares_s)
        self._waiting.update(dict.fromkeys(shares_s))
        self._print(why)

    def skipped(self, ends: Sequence[tuple[TrialSpec, TrialOutcome]]) -> None:
        """Count trials that do not start, and print a line for each reason."""
        alike: dict[tuple[Status, str], list[TrialSpec]] = {}
        for trial, end in ends:
            alike.setdefault((end.status, end.note), []).append(trial)
            self._ended[end.status] += not trial.measures
        for (status, why), trials in alike.items():
            which = f"{_id(trials[0])}  {_label(trials[0])} " if len(trials) == 1 else f"{len(trials)} trials:"
            self._print(f"{status}  {which} {why}")

    def dequeued(self, trials: Sequence[TrialSpec]) -> None:
        """Forget trials that wait no longer, and do not run."""
        trial_ids = [trial.trial_id for trial in trials if trial.trial_id in self._waiting]
        self._time_left.dequeued(trial_ids)
        for trial_id in trial_ids:
            del self._waiting[trial_id]

    @property
    def _total(self) -> int:
        """The number of trials of all states."""
        return self._ended.total() + len(self._running) + len(self._waiting)

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
            waiting = counted(len(self._waiting), "trial waits", "trials wait")
            why = "for processes that start slowly, or for resources that others use"
            self._console.print(f"nothing has started for {IDLE_S} s: {waiting} {why}", soft_wrap=not self._live)
        if self._live:
            left = self.left_s()
            time_left = "time left unknown" if left is None else f"about {duration(left)} left"
            if not self._running and not self._waiting:
                time_left = "no trial is left"
            elapsed = duration(time.monotonic() - self._began_s)
            done, total = self._ended.total(), self._total
            self._bar.update(self._task, completed=done, total=total, elapsed=elapsed, left=time_left)
            footer = Text(self._footer)
            # A live table that is higher than the terminal would be cut.
            view = Group(self._table(LAST_ENDED), self._bar, footer)
            excess = len(self._console.render_lines(view)) + 1 - self._console.height
            if excess > 0:
                # Each ended trial takes one line.
                view = Group(self._table(max(0, len(self._last) - excess)), self._bar, footer)
            self._live.update(view, refresh=True)

    def left_s(self) -> float | None:
        """Estimate the seconds until the end, at first from the plan; None if nothing is known."""
        return self._time_left.left_s(time.monotonic(), self._running, self._again)

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _table(self, most: int) -> Table:
        """Return the table of the running trials and at most `most` ended ones, with the counts as its title."""
        table = Table(title=self._title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        trials = [*(running.trial for running in self._running.values()), *(trial for trial, _, _ in self._last)]
        self._widest_label = max([self._widest_label, *(len(_label(trial)) for trial in trials)])
        ended = [(end, self._interim.figures(end[1].metrics, end[0].purpose)) for end in reversed(self._last)]
        units = [unit for _, figures in ended for unit in figures if unit.endswith("/s")]
        unit = next(iter(units), "samples/s")
        # The last axis, often the seed, must stay visible; and a column that gets narrower moves all others.
        is_roomy = self._console.width >= _ROOMY
        least = min(self._widest_label, self._console.width // 3) if is_roomy else None
        table.add_column("trial", no_wrap=True)
        table.add_column("cell", overflow="fold", min_width=least)
        left_out = {"loss": self._console.width < NARROW, "epoch": not is_roomy, "time": not is_roomy}
        headings = [*self._values({}), unit, "time"]
        headings = [heading for heading in headings if not left_out.get(heading)]
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True, min_width=len("0.0000"))
        table.add_column("state", no_wrap=True, min_width=len("disturbed"))

        def add(trial: TrialSpec, values: Mapping[str, str], state: Text, style: str = "") -> None:
            shown = (values.get(heading, "") for heading in headings)
            table.add_row(_id(trial), Text(_label(trial)), *shown, state, style=style)

        for running in self._running.values():
            time_s = duration(time.monotonic() - running.began_s)
            state = Text(_RUNNING.get(running.trial.purpose, "running"))
            add(running.trial, {**self._values(running.row), "time": time_s}, state)
        for (trial, outcome, judgement), figures in ended[:most]:
            known = {**outcome.metrics, "epoch": outcome.metrics.get("epochs")}
            # Its steps are those of another trial, whose rule alone differs in most sweeps, or else its multiplier.
            timed_with = _timed_with(trial)
            rule = self._rules.get(timed_with)
            other = timed_with[:SHOWN_DIGITS] if rule in (None, trial.columns["lr_rule"]) else rule
            rate = f"= {other}'s" if timed_with else short_number(figures.get(unit))
            time_s = duration(outcome.wall_s) if outcome.wall_s else ""  # a copy took no time
            end = Text(_PURPOSES.get(trial.purpose, outcome.status))
            if judgement.fault:
                end = Text("disturbed" if judgement.fault is Fault.DISTURBED else "not timed", "yellow")
            values = self._values(known if trial.purpose is Purpose.TRAIN else {})
            add(trial, {**values, unit: rate, "time": time_s}, end, style="dim")
        return table

    @property
    def _title(self) -> str:
        counts = {status: f"{count} {status}" for status, count in sorted(self._ended.items())}
        if self._invalid:
            counts[Status.OK] += f" (timings: {self._invalid})"
        return ", ".join([f"{len(self._running)} running", f"{len(self._waiting)} waiting", *counts.values()])

    def _values(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return a trial's progress by the headings of its columns."""
        metric = self._interim.metric
        columns = {"epoch": "epoch", "loss": "loss", metric.short_label: metric.name}
        return {heading: short_number(row.get(name)) for heading, name in columns.items()}


def _timed_with(trial: TrialSpec) -> str:
    """Return the id of the trial with the same steps whose timing is also that of this one; empty if it has its own."""
    return str(trial.settings.get("timed_with", ""))


def _label(trial: TrialSpec) -> str:
    return trial_label(trial.columns)


def _id(trial: TrialSpec) -> str:
    """Return a trial's displayed id; a probe has the id of its trial."""
    return (trial.measures or trial.trial_id)[:SHOWN_DIGITS]
