"""Which end of a trial is valid ("stands") if a journal has several.

It is the last one, with two exceptions. A trial that was ok and ran once more only because something had spoiled its
timing stays ok, however that further attempt ended. And a trial with a result keeps it if it was asked for again but
left out, because of a budget or lack of room. Its row says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.journal.line import Kind, Record
from sweeps.status import Status


def standing(records: Iterable[Record]) -> Iterator[Record]:
    """The records in order; an end that must not replace an earlier one is replaced by that one.

    Records may be of any form: those that make no sense are passed on unchanged.
    """
    results: dict[str, Mapping[str, Any]] = {}
    once_more: set[str] = set()
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id = str(value.get("trial_id"))
        if record.kind == Kind.SWEEP:  # a new driver, and a new request
            once_more = set()
        elif record.kind == Kind.SPOILED and isinstance(value.get("trial_ids"), list):
            ok = {key for key, result in results.items() if result["status"] == Status.OK.value}
            once_more |= {str(each) for each in value["trial_ids"]} & ok
        elif record.kind == Kind.FINISHED and trial_id in once_more and value.get("status") != Status.OK.value:
            word = "not run once more:" if _never_ran(value) else "run once more, which ended as"
            record = replace(record, value=_noted(results[trial_id], word, value))
        elif record.kind == Kind.FINISHED and trial_id in results and _never_ran(value):
            record = replace(record, value=_noted(results[trial_id], "not run again when asked for:", value))
        elif record.kind == Kind.FINISHED and value.get("status") in _RESULTS:
            results[trial_id] = value
        elif record.kind == Kind.FINISHED:
            results.pop(trial_id, None)
        yield record


def further_attempts(records: Iterable[Record]) -> dict[str, bool]:
    """For each trial that was started again after an end: whether its files are now those of the further attempt.

    They are not while that attempt runs, if it was cut off, or if it failed and only repeated a spoiled timing: the
    valid end is then an earlier one, and its files belong to it.
    """
    ended: set[str] = set()
    spoiled: set[str] = set()
    found: dict[str, bool] = {}
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id = str(value.get("trial_id"))
        if record.kind == Kind.SWEEP:
            spoiled = set()
        elif record.kind == Kind.SPOILED and isinstance(value.get("trial_ids"), list):
            spoiled |= {str(each) for each in value["trial_ids"]}
        elif record.kind == Kind.STARTED and trial_id in ended:
            found[trial_id] = False
        elif record.kind == Kind.FINISHED:
            ended.add(trial_id)
            if trial_id in found:
                found[trial_id] = value.get("status") == Status.OK.value or trial_id not in spoiled
    return found


_RESULTS = tuple(status.value for status in Status if status.is_result() and status.is_final())


def _never_ran(value: Mapping[str, Any]) -> bool:
    """Whether the trial was left out; one that was stopped early has run for some time."""
    return value.get("status") in (Status.SKIPPED.value, Status.INFEASIBLE.value) and not value.get("wall_s")


def _noted(stands: Mapping[str, Any], word: str, further: Mapping[str, Any]) -> Mapping[str, Any]:
    """The valid end, with a note about the one that did not replace it."""
    reason = f": {further['note']}" if further.get("note") else ""
    note = f"{word} {further.get('status')}{reason}"
    return {**stands, "note": "; ".join(filter(None, (str(stands.get("note") or ""), note)))}
