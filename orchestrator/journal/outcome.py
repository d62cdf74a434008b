"""How one attempt at a trial ended, on any back end, and the root cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sweeps.number import is_number
from sweeps.status import Status


class Cause(StrEnum):
    """The root cause of an end other than a plain `ok`, as far as it decides what happens next."""

    NONE = ""
    """Nothing to explain, or unknown."""
    ERROR = "error"
    """The trainable raised."""
    REQUEST = "request"
    """The request itself is invalid: every trial with the same request would fail, too."""
    CRASH = "crash"
    """A rank's process died, but its node did not."""
    NODE = "node"
    """A node, or the supervisor on it, was lost; the trial did not cause it."""
    DEVICE = "device"
    """A GPU was lost or is broken; the trial did not cause it."""
    HOST_MEMORY = "host_memory"
    DEVICE_MEMORY = "device_memory"
    HANG = "hang"
    """No progress for `hang_s`."""
    TIME_LIMIT = "time_limit"
    DISK = "disk"
    """A disk is full or cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt at a trial ended."""

    status: Status
    cause: Cause = Cause.NONE
    """The root cause, which decides whether the trial is tried again."""
    note: str = ""
    """One line for the tables: empty for a plain `ok`."""
    trace: str = ""
    """The full traceback of the rank that caused the failure."""
    wall_s: float
    """Seconds from the request to start until the last rank's answer, on a monotonic clock."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The trial's figures by column name of `tables/trials.csv`; absent if not measured."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The hardware and software that produced them."""
    skipped_by: str = ""
    """The rule of the sweep that skipped the trial: `budget`, `early_stop`, `phases` or `search`."""
    lost_devices: Sequence[str] = ()
    """For cause DEVICE: the GPUs not to be used any more, as named in `orchestrator.backends.quarantine`."""


def figure(metrics: Mapping[str, Any], name: str) -> float | None:
    """One of a trial's metrics as a number; None if it was not measured or is not a number."""
    value = metrics.get(name)
    return float(value) if is_number(value) else None
