"""One driver's time with a sweep: everything that happens goes into the journal first, and then onto the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import yaml

from orchestrator import curve
from orchestrator.backend import Outcome
from orchestrator.durable import write_whole
from orchestrator.interrupt import Interrupt
from orchestrator.journal import Journal, Kind
from orchestrator.layout import Layout
from orchestrator.live import Display
from orchestrator.record import TrialRecord
from sweeps.status import Status
from sweeps.trial import TrialSpec


class Session:
    """The listener of a back end's trials."""

    def __init__(self, layout: Layout, journal: Journal, display: Display, interrupt: Interrupt) -> None:
        self._layout = layout
        self._journal = journal
        self._display = display
        self._interrupt = interrupt
        self._attempts = journal.attempts()

    def started(self, trial: TrialSpec) -> None:
        """Journal the attempt, and begin the trial's own folder anew."""
        attempt = self._attempts.get(trial.trial_id, 0) + 1
        self._attempts[trial.trial_id] = attempt
        self._journal.append(Kind.STARTED, {"trial_id": trial.trial_id, "attempt": attempt})
        curve.begin(self._layout.metrics(trial.trial_id))
        write_whole(self._layout.config(trial.trial_id), _as_yaml(trial).encode())
        self._display.started(trial)

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Extend the learning curve."""
        curve.extend(self._layout.metrics(trial.trial_id), rows)
        self._display.reported(trial, rows)

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        """Journal the end; once this returns it is never run again."""
        if outcome.trace:
            write_whole(self._layout.trace(trial.trial_id), outcome.trace.encode())
        self._end(trial, outcome)
        self._display.finished(trial, outcome)

    def found_infeasible(self, trial: TrialSpec, reason: str) -> None:
        """Journal that no placement of this trial exists on these nodes."""
        outcome = Outcome(status=Status.INFEASIBLE, note=reason, wall_s=0.0)
        self._end(trial, outcome)
        self._display.skipped(trial, outcome)

    def _end(self, trial: TrialSpec, outcome: Outcome) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        attempt = self._attempts.get(trial.trial_id, 0)
        record = TrialRecord.of(trial, outcome, attempt=attempt, finished_at=now)
        self._journal.append(Kind.FINISHED, record.to_json())

    def ticked(self) -> None:
        """Let the clocks on the screen go on."""
        self._display.refresh()

    def stopping(self) -> bool:
        """Whether a signal asked for the end."""
        return self._interrupt.signal is not None


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where PyYAML was built with it


def _as_yaml(trial: TrialSpec) -> str:
    return str(yaml.dump(_plain(asdict(trial)), Dumper=_DUMPER, sort_keys=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
