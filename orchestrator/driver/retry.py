"""Whether a trial is tried again after an attempt that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.journal.cause import Cause
from orchestrator.journal.kind import Kind
from orchestrator.journal.line import Record

LOST_NODES = 5
"""Attempts that one trial may lose to nodes, and to GPUs: not its fault, but something that eats them must end."""

_CHARGED = (Cause.ERROR, Cause.CRASH)


def is_tried_again(cause: Cause, before: Sequence[Cause], retries: int) -> bool:
    """Whether there is another attempt after those that ended `before`, and the one that has just ended by `cause`.

    Errors and crashes have `retries` further attempts; lost nodes and GPUs are not charged, up to LOST_NODES; of a
    host that ran out of memory, which others may have filled, one. All other ends are what the trial itself came to.
    """
    if cause in (Cause.NODE, Cause.DEVICE):
        return before.count(cause) < LOST_NODES
    if cause is Cause.HOST_MEMORY:
        return Cause.HOST_MEMORY not in before
    return cause in _CHARGED and sum(each in _CHARGED for each in before) < retries


def tried_before(records: Iterable[Record]) -> dict[str, list[Cause]]:
    """By trial, how the attempts since its last terminal record ended: those of an earlier run of the driver count."""
    found: dict[str, list[Cause]] = {}
    for record in records:
        if record.kind == Kind.RETRIED:
            found.setdefault(record.value["trial_id"], []).append(Cause(record.value["cause"]))
        elif record.kind == Kind.FINISHED:
            found.pop(record.value["trial_id"], None)
    return found
