"""How one attempt at a trial ended, whatever it ran on, and what was at the root of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sweeps.number import is_number
from sweeps.status import Status


class Cause(StrEnum):
    """The root of an end that is no plain `ok`, as far as it decides what is done next."""

    NONE = ""
    """There is nothing to explain, or nobody knows."""
    ERROR = "error"
    """The trainable raised."""
    REQUEST = "request"
    """What was asked for cannot be: no trial that asks for it can go better."""
    CRASH = "crash"
    """A rank's process died, and its node did not."""
    NODE = "node"
    """A node, or the supervisor on it, was lost: the trial had no part in it."""
    DEVICE = "device"
    """A GPU was lost, or is broken: the trial had no part in it."""
    HOST_MEMORY = "host_memory"
    DEVICE_MEMORY = "device_memory"
    HANG = "hang"
    """Nothing moved for `hang_s`."""
    TIME_LIMIT = "time_limit"
    DISK = "disk"
    """A disk is full, or takes no writes."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt at a trial ended."""

    status: Status
    cause: Cause = Cause.NONE
    """What was at the root of it, for whoever decides whether to try again."""
    note: str = ""
    """One line for the tables: empty for a plain `ok`."""
    trace: str = ""
    """The whole traceback of the rank at the root of a failure."""
    wall_s: float
    """From the moment the gang was asked to start this trial to its last rank's answer; monotonic."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The trial's figures by their column names in `tables/trials.csv`; absent means not measured."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The hardware and software that produced them."""
    skipped_by: str = ""
    """The rule of the sweep that skipped the trial: `budget`, `early_stop`, `phases` or `search`."""
    lost_devices: Sequence[str] = ()
    """Of cause DEVICE: the GPUs that are not to be used any more, as `orchestrator.backends.quarantine` names them."""


def figure(metrics: Mapping[str, Any], name: str) -> float | None:
    """One of a trial's metrics as a number; None where it was not measured, or is something else."""
    value = metrics.get(name)
    return float(value) if is_number(value) else None
