"""Which ends of trials stand, where a journal has several of one trial.

The last one does, with one exception: a trial that was ok, and ran once more only because something had spoiled its
timing, stays ok whatever became of that further attempt. Its row says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.journal.kind import Kind
from orchestrator.journal.line import Record
from sweeps.status import Status


def standing(records: Iterable[Record]) -> Iterator[Record]:
    """The records in their order, the end of an attempt that must not replace an ok row replaced by that row.

    Takes records as somebody else may have written them: what has no sense is passed on as it is.
    """
    ok: dict[str, Mapping[str, Any]] = {}
    once_more: set[str] = set()
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id = str(value.get("trial_id"))
        if record.kind == Kind.SWEEP:  # whoever takes the sweep up again asks anew
            once_more = set()
        elif record.kind == Kind.SPOILED and isinstance(value.get("trial_ids"), list):
            once_more |= {str(each) for each in value["trial_ids"]} & ok.keys()
        elif record.kind == Kind.FINISHED and value.get("status") == Status.OK.value:
            ok[trial_id] = value
        elif record.kind == Kind.FINISHED and trial_id in once_more:
            record = replace(record, value=_told(ok[trial_id], value))
        elif record.kind == Kind.FINISHED:
            ok.pop(trial_id, None)
        yield record


def _told(ok: Mapping[str, Any], further: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ok end, with a word about the attempt that did not replace it."""
    word = f"run once more, which ended as {further.get('status')}"
    reason = f": {further['note']}" if further.get("note") else ""
    return {**ok, "note": "; ".join(filter(None, (str(ok.get("note") or ""), word + reason)))}
