"""Test random fault schedules on scheduler and journal, with a fake back end, clock and disk.

The machine starts and kills drivers, cuts the power (unsynced data are lost), fails writes, loses nodes, ends trials in
every way and lets the wall clock jump. Acknowledged results always stay, and never run again.
ORCHESTRATOR_FAULT_SEED chooses other schedules; the seed is printed.
"""

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orchestrator.run import session as session_module
from orchestrator.run.interrupt import Interrupt
from orchestrator.run.session import Session
from orchestrator.run.verify import JournalCheck
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.scheduler import Scheduler
from orchestrator.store.history import History
from orchestrator.store.journal import Journal, JournalError, replay
from orchestrator.store.record import Kind, TrialOutcome
from orchestrator.store.results_folder import ResultsFolder
from sweeps.rank_exit import Cause
from sweeps.trial import TrialSpec
from tests.contract.trials import trial
from tests.unit.orchestrator.run.screen import Nobody

SEED = int(os.environ.get("ORCHESTRATOR_FAULT_SEED", "7"))
NODES = (Node(name="a", cpus=2, gpus=0), Node(name="b", cpus=2, gpus=0))
ENDS = (
    *(Cause.NONE, Cause.DIVERGED, Cause.DEVICE_MEMORY, Cause.ERROR, Cause.CRASH, Cause.NODE),
    *(Cause.HOST_MEMORY, Cause.HANG, Cause.TIME_LIMIT),
)


class Clock(datetime):
    """A wall clock, which may jump."""

    offset = timedelta()

    @classmethod
    def now(cls, tz=None):  # type: ignore[override]
        return datetime(2026, 1, 1, tzinfo=tz) + cls.offset


class Disk:
    """A disk that remembers how much of each file was synced, and fails writes on request."""

    def __init__(self):
        self.synced: dict[int, int] = {}
        self.fails = 0
        self._write, self._fsync = os.write, os.fsync

    def write(self, file, data):
        if self.fails:
            self.fails -= 1
            if self.fails % 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return self._write(file, bytes(data)[: len(data) // 2])
        return self._write(file, data)

    def fsync(self, file):
        stat = os.fstat(file)
        self.synced[stat.st_ino] = stat.st_size

    def cut_power(self, path, share):
        """Keep a random share of the unsynced data."""
        stat = path.stat()
        safe = min(stat.st_size, self.synced.get(stat.st_ino, 0))
        os.truncate(path, safe + round(share * (stat.st_size - safe)))


class Schedules(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.disk = Disk()
        self.patch.setattr(os, "write", self.disk.write)
        self.patch.setattr(os, "fsync", self.disk.fsync)
        self.patch.setattr(session_module, "datetime", Clock)
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = ResultsFolder(Path(self.temporary.name))
        self.folder.create()
        self.acknowledged: set[str] = set()
        self.executions: list[str] = []
        self.session: Session | None = None
        self.now_s = 0.0

    @initialize(ranks=st.lists(st.integers(1, 4), min_size=1, max_size=6), retries=st.integers(0, 2))
    def plan(self, ranks, retries):
        self.trials = [trial(f"t{i}", "quick", ranks=n, timing="shared") for i, n in enumerate(ranks)]
        self.limit = retries

    def _start(self):
        self.journal = Journal.open(self.folder.journal)
        ended = self.journal.history.all_ends
        self.journal.append(Kind.SWEEP, {"fingerprint": {}, "rerun": "none"})
        interrupt: Any = Interrupt()
        display: Any = Nobody()
        self.session = Session(self.folder, self.journal, display, interrupt, retries=self.limit)
        waiting = [trial for trial in self.trials if trial.trial_id not in ended]
        self.scheduler = Scheduler(waiting, NODES, lambda trial: None)
        self.running: list[TrialSpec] = []

    def _die(self):
        self.journal.close()
        self.session = None

    @precondition(lambda self: self.session is None)
    @rule()
    def driver_starts(self):
        try:
            self._start()
        except JournalError:
            self._die()

    @precondition(lambda self: self.session is not None)
    @rule()
    def next_trial_starts(self):
        self.now_s += 1.0
        start = self.scheduler.next(self.now_s)
        if start is None:
            return
        assert start.trial.trial_id not in self.acknowledged, "a finished trial runs again"
        assert self.session
        try:
            self.session.started(start.trial)
        except OSError:
            return self._die()
        self.executions.append(start.trial.trial_id)
        self.running.append(start.trial)

    @precondition(lambda self: self.session is not None and self.running)
    @rule(which=st.integers(0, 5), epoch=st.integers(1, 9))
    def rows_come(self, which, epoch):
        rows: Sequence[Mapping[str, Any]] = [{"epoch": epoch, "loss": 0.5}]
        assert self.session
        try:
            self.session.reported(self.running[which % len(self.running)], rows)
        except OSError:
            self._die()

    @precondition(lambda self: self.session is not None and self.running)
    @rule(which=st.integers(0, 5), cause=st.sampled_from(ENDS))
    def trial_ends(self, which, cause):
        ended = self.running.pop(which % len(self.running))
        trace = "" if cause is Cause.NONE else "Traceback"
        outcome = TrialOutcome(cause=cause, wall_s=1.0, trace=trace)
        assert self.session
        try:
            is_retried = self.session.finished(ended, outcome)
        except OSError:
            return self._die()
        self.scheduler.ended(ended.trial_id)
        if is_retried:
            self.scheduler.retry(ended)
        else:
            self.acknowledged.add(ended.trial_id)

    @precondition(lambda self: self.session is not None)
    @rule()
    def driver_is_killed(self):
        self._die()

    @precondition(lambda self: self.session is not None)
    @rule(share=st.floats(0, 1))
    def power_fails(self, share):
        self._die()
        self.disk.cut_power(self.folder.journal, share)

    @rule(times=st.integers(1, 3))
    def disk_is_about_to_fail(self, times):
        self.disk.fails = times

    @rule(days=st.integers(-400, 400))
    def clock_jumps(self, days):
        Clock.offset = timedelta(days=days)

    @invariant()
    def what_was_acknowledged_stays(self):
        if self.folder.journal.exists():
            journal = replay(self.folder.journal)
            assert JournalCheck(journal.records).violations == []
            assert self.acknowledged <= set(History(journal.records).all_ends)

    def teardown(self):
        """Run the sweep to its end without faults: each trial ends once, and no finished trial runs again."""
        try:
            self.disk.fails = 0
            if self.session is not None:
                self._die()
            if hasattr(self, "trials"):
                self._finish()
        finally:
            self.patch.undo()
            self.temporary.cleanup()

    def _finish(self):
        self._start()
        assert self.session
        while start := self.scheduler.next(self.now_s):
            assert start.trial.trial_id not in self.acknowledged
            self.session.started(start.trial)
            self.session.finished(start.trial, TrialOutcome(wall_s=1.0))
            self.scheduler.ended(start.trial.trial_id)
        self._die()
        records = replay(self.folder.journal).records
        ends = [record.value["trial_id"] for record in records if record.kind == Kind.FINISHED]
        assert sorted(ends) == sorted(trial.trial_id for trial in self.trials)
        assert JournalCheck(records).violations == []


def play(examples):
    print(f"{examples} schedules from seed {SEED}")
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    chosen = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, database=None, suppress_health_check=checks
    )
    run_state_machine_as_test(seed(SEED)(Schedules), settings=chosen)  # type: ignore[no-untyped-call]


def test_a_few_random_schedules():
    play(25)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_thousand_random_schedules():
    play(int(os.environ.get("ORCHESTRATOR_FAULTS", "1000")))
