"""Further attempts of a trial: which ends are followed by one."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.rank_exit import Cause

OWN_FAULT = (Cause.ERROR, Cause.CRASH)  # causes that are blamed on the trial; a node or a GPU fails by itself

LOST_NODES = 5
"""Attempts that one trial may lose to nodes, and as many to GPUs: not its fault, but one that breaks them must stop."""


def is_retried(cause: Cause, earlier: Sequence[Cause], retries: int) -> bool:
    """Return whether another attempt follows one that ended by this cause; `earlier` attempts failed by these.

    Errors and crashes get `retries` further attempts. Lost nodes and lost GPUs are not charged, each up to LOST_NODES.
    A host that ran out of memory or has a port in use, possibly by other processes, grants one. All other ends are the
    trial's own result.
    """
    if cause in (Cause.NODE, Cause.DEVICE):
        return earlier.count(cause) < LOST_NODES
    if cause in (Cause.HOST_MEMORY, Cause.PORT):
        return cause not in earlier
    charged = sum(failure in OWN_FAULT for failure in earlier)
    return cause in OWN_FAULT and charged < retries
