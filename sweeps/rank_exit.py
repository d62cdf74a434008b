"""How a rank ended: the one form of it, from the rank's process to the trial's row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sweeps.status import Status


class Cause(StrEnum):
    """The root cause of an end other than a plain `ok`, as far as it decides what happens next."""

    NONE = ""  # nothing to explain, or unknown
    ERROR = "error"  # the trainable raised
    REQUEST = "request"  # the request itself is invalid: every trial with the same request would fail, too
    CRASH = "crash"  # a rank's process died, but its node did not
    NODE = "node"  # a node, or the supervisor on it, was lost; the trial did not cause it
    DEVICE = "device"  # a GPU was lost or is broken; the trial did not cause it
    PORT = "port"  # a port is in use, probably by another trial on the host that has the same one
    HOST_MEMORY = "host_memory"
    DEVICE_MEMORY = "device_memory"
    HANG = "hang"  # no progress for `hang_s`
    TIME_LIMIT = "time_limit"
    DISK = "disk"  # a disk is full or cannot be written
    DIVERGED = "diverged"  # the loss, or another metric, is no longer a finite number
    GIVEN_UP = "given_up"  # the rest of the trial could not change the recommendation
    NO_ROOM = "no_room"  # no node is large enough for the trial, so that it did not start

    @property
    def status(self) -> Status:
        """The status of a rank, or of a trial, that ended for this cause."""
        return _STATUS.get(self, Status.FAILED)


_STATUS: Mapping[Cause, Status] = {
    Cause.NONE: Status.OK,
    Cause.HOST_MEMORY: Status.OOM,
    Cause.DEVICE_MEMORY: Status.OOM,
    Cause.HANG: Status.TIMEOUT,
    Cause.TIME_LIMIT: Status.TIMEOUT,
    Cause.DIVERGED: Status.DIVERGED,
    Cause.GIVEN_UP: Status.SKIPPED,
    Cause.NO_ROOM: Status.INFEASIBLE,
}


NOTE_LENGTH = 300  # characters of a note, which is one line of a table

CONNECTION_ERROR = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket timeout|NCCL|gloo|ProcessGroup|TCPStore|DistBackendError"
    r"|DistNetworkError",
    re.IGNORECASE,
)
"""Errors of torch.distributed in a rank that has lost the connection to another rank: not the root cause."""


def reason_of(note: str) -> str:
    """Return why a trial failed, by its note: the first line without the rank that tells it, `rank 1 on node-b: `."""
    # Later lines differ from trial to trial, and so does the rank that failed first.
    return re.sub(r"^rank \d+( on [^:]+)?: ", "", note.partition("\n")[0])


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How something ended, with what it measured: a rank (`RankExit`), or a whole trial (`TrialOutcome`)."""

    cause: Cause = Cause.NONE  # the root cause, which decides whether the trial is tried again
    note: str = ""  # one line for the tables: the exception, or remarks; empty for a plain `ok`
    trace: str = ""  # the full traceback, or all that is known of a process that died
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The trial's figures as JSON values, by column name of `tables/trials.csv`; absent if not measured."""
    provenance: Mapping[str, Any] = field(default_factory=dict)  # the hardware and software that produced them
    lost_devices: Sequence[str] = ()
    """For cause DEVICE: the GPUs that take no further trials, as named in `orchestrator.backends.gpu_quarantine`."""

    @property
    def status(self) -> Status:
        """The status of a trial that ends in this way."""
        return self.cause.status


@dataclass(frozen=True, kw_only=True)
class RankExit(Exit):
    """How one rank of one attempt ended."""

    rank: int
    reusable: bool = False  # whether the rank's process may take another trial
    stopped: bool = False  # whether the trainable asked whether to stop and got yes
    answered: bool = True  # False if the process died, or was abandoned, before it could report
