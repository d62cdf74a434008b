"""Which end of a trial is valid ("stands") if a journal has several, and which timing.

It is the last one, but a trial with a result keeps it if it was asked for again and left out, because of a budget or
lack of room. A repetition gives a row another timing, unless something spoiled that, too. And where something spoiled
the timing of a rerun, the row keeps the earlier one, if that was valid. The row says all of this.

In journals of earlier versions a repetition was a further attempt: a trial that was ok stays so, however that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.journal.line import Kind, Record
from orchestrator.journal.timing import not_repeated, with_timing
from sweeps.status import Status


class Standing:
    """Reads records one by one; they may be of any form."""

    def __init__(self) -> None:
        self._results: dict[str, Mapping[str, Any]] = {}
        """By trial, its valid end with the timing that counts, without the notes on how it came to be."""
        self._trained: dict[str, Mapping[str, Any]] = {}
        """By trial, the same end with its own timing."""
        self._once_more: set[str] = set()

    def take(self, record: Record) -> Record:
        """The record; in place of an end or a repetition that of the row as it then is, of kind `finished`.

        Records that make no sense are passed on unchanged.
        """
        value = record.value if isinstance(record.value, Mapping) else {}
        if record.kind == Kind.SWEEP:  # a new driver, and a new request
            self._once_more = set()
        elif record.kind == Kind.SPOILED and isinstance(value.get("trial_ids"), list):
            ok = {key for key, result in self._results.items() if _is_ok(result)}
            self._once_more |= {str(each) for each in value["trial_ids"]} & ok
        elif record.kind == Kind.TIMED and _is_ok(self._results.get(str(value.get("times")), {})):
            return Record(kind=Kind.FINISHED, value=self._timed(str(value["times"]), value))
        elif record.kind == Kind.FINISHED:
            return replace(record, value=self._ended(str(value.get("trial_id")), value)) if value else record
        return record

    def _ended(self, trial_id: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        before = self._results.get(trial_id)
        if before and trial_id in self._once_more and not _is_ok(value):
            word = "not repeated:" if _never_ran(value) else "a repetition ended as"
            return _noted(before, f"{word} {_end_of(value)}")
        if before and _never_ran(value):
            return _noted(before, f"not run again, although requested: {_end_of(value)}")
        if value.get("status") not in _RESULTS:
            self._results.pop(trial_id, None)
            return value
        self._trained[trial_id] = {**value, "spoiled": ""}
        keeps = before and _is_ok(before) and _is_ok(value) and value.get("spoiled")
        self._results[trial_id] = with_timing(value, before) if before and keeps else self._trained[trial_id]
        return _noted(self._results[trial_id]) if keeps else value

    def _timed(self, trial_id: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        row = self._results[trial_id]
        if not _is_ok(value):
            return _noted(row, f"a repetition of its timing ended as {_end_of(value)}")
        if value.get("spoiled"):
            return _noted(row, f"timed again, in vain: {value['spoiled']}")
        row = self._results[trial_id] = with_timing(self._trained[trial_id], value)
        spoiled = ", ".join(not_repeated(row, value))
        return _noted(row, "timed again, alone" + (f", except {spoiled}" if spoiled else ""))


def standing(records: Iterable[Record]) -> Iterator[Record]:
    """The records in order, as `Standing` reads them."""
    return map(Standing().take, records)


def repeated(records: Iterable[Record]) -> set[str]:
    """The trials that were timed once more since they were asked for, whatever came of it, unless it was to follow."""
    found: set[str] = set()
    for record in records:
        if record.kind == Kind.TIMED and not record.value.get("again"):
            found.add(record.value["times"])
        elif record.kind == Kind.FINISHED:
            found.discard(record.value["trial_id"])
    return found


def further_attempts(records: Iterable[Record]) -> dict[str, bool]:
    """For each trial that was started again after an end: whether its files are now those of the further attempt.

    They are not while that attempt runs, or if it was cut off: the valid end is then an earlier one, and its files
    belong to it.
    """
    ended: set[str] = set()
    found: dict[str, bool] = {}
    for record in records:
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id = str(value.get("trial_id"))
        if record.kind == Kind.STARTED and trial_id in ended:
            found[trial_id] = False
        elif record.kind == Kind.FINISHED:
            ended.add(trial_id)
            if trial_id in found:
                found[trial_id] = True
    return found


_RESULTS = tuple(status.value for status in Status if status.is_result() and status.is_final())


def _is_ok(value: Mapping[str, Any]) -> bool:
    return bool(value.get("status") == Status.OK.value)


def _never_ran(value: Mapping[str, Any]) -> bool:
    """Whether the trial was left out; one that was stopped early has run for some time."""
    return value.get("status") in (Status.SKIPPED.value, Status.INFEASIBLE.value) and not value.get("wall_s")


def _end_of(value: Mapping[str, Any]) -> str:
    return f"{value.get('status')}" + (f": {value['note']}" if value.get("note") else "")


def _noted(row: Mapping[str, Any], *more: str) -> Mapping[str, Any]:
    """The row with notes on where its timing is from, and on what did not replace it."""
    spoiled = f"the timing is an earlier attempt's: this one's was spoiled ({row['spoiled']})" if row["spoiled"] else ""
    return {**row, "note": "; ".join(filter(None, (str(row.get("note") or ""), spoiled, *more)))}
