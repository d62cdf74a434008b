"""What was at the root of an attempt's end, as far as it decides what is done next."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """The root of an end that is no plain `ok`."""

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
