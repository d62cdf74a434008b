"""Named moments between two effects on the disk, at which the fault tests kill the driver.

ORCHESTRATOR_CRASH_AT=journal.written:3 kills the process with SIGKILL when that moment is reached for the third time.
This tests a crash at every place where something could be half done, and not only at random ones.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "ORCHESTRATOR_CRASH_AT"


class Moment(StrEnum):
    """A moment at which a driver may be killed, named for the step that it has just completed."""

    LOCKED = "lock.taken"
    SIGNED = "lock.signed"
    RECORD_WRITTEN = "journal.written"
    RECORD_SYNCED = "journal.synced"
    ASIDE_WRITTEN = "file.written_aside"
    REPLACED = "file.replaced"
    SWEEP_TAKEN_UP = "sweep.taken_up"
    TRIAL_STARTED = "trial.started"
    TRIAL_PREPARED = "trial.prepared"
    ROWS_ADDED = "trial.rows_added"
    TRACE_WRITTEN = "trial.trace_written"
    TRIAL_RETRIED = "trial.retried"
    TRIAL_FINISHED = "trial.finished"
    ALL_RAN = "sweep.all_ran"
    TABLES_WRITTEN = "sweep.tables_written"
    SWEEP_ENDED = "sweep.ended"


_wanted = ""
_left = 0


def arm() -> None:
    """Read from the environment at which moment to die."""
    global _wanted, _left
    _wanted, _, number = os.environ.get(VARIABLE, "").partition(":")
    _left = int(number or 1)


arm()


def reached(moment: Moment) -> None:
    """Called at the moment; does nothing unless a test asks for a crash there."""
    global _left
    if moment == _wanted:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
