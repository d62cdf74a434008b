"""The time that a running sweep still takes, from its plan and from the trials that have ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

_BELIEVED = 3
"""How many trials the plan's estimate counts as, beside those that have ended: the first of them start processes."""


_START_S = 15.0  # of the first trial's processes, which says nothing about the pace of the others


class TimeLeft:
    """Estimates the seconds until the last trial ends: those that the plan foresees, at the pace of the trials so far.

    Where the plan foresees none, all trials count alike.
    """

    def __init__(self) -> None:
        self._shares_s: dict[str, float] = {}
        self._typical_s, self._is_foreseen = 1.0, False
        self._open_s = self._done_s = self._took_s = 0.0  # `open`: of the trials that have not ended
        self._is_under_way = False
        self._last_s: float | None = None  # when the last trial has ended, or the first one has started

    def queued(self, shares_s: Mapping[str, float | None]) -> None:
        """Count trials that are to run, by the shares of a timetable."""
        known = [share_s for share_s in shares_s.values() if share_s is not None]
        # The first trials tell whether shares are seconds or numbers of trials.
        if not self._shares_s and known:
            self._typical_s, self._is_foreseen = statistics.fmean(known), True
            self._done_s = self._took_s = _BELIEVED * self._typical_s
        for trial_id, share_s in shares_s.items():
            self._shares_s[trial_id] = share_s if share_s is not None and self._is_foreseen else self._typical_s
            self._open_s += self._shares_s[trial_id]

    def dequeued(self, trial_ids: Iterable[str]) -> None:
        """Count trials no longer that will not run."""
        self._open_s = max(0.0, self._open_s - sum(map(self._share_s, trial_ids)))

    def started(self, now_s: float) -> None:
        """Count the time from the first start on."""
        self._last_s = now_s if self._last_s is None else self._last_s

    def ended(self, trial_id: str, now_s: float) -> None:
        """Count an ended trial; a probe is none of those that were planned."""
        share_s = self._share_s(trial_id)
        self._open_s = max(0.0, self._open_s - share_s)
        # Without a plan, an unknown part of the first trial's time is the start of its processes.
        if self._last_s is not None and share_s and (self._is_foreseen or self._is_under_way):
            self._done_s += share_s
            self._took_s += max(min(share_s, now_s - self._last_s), self._paced_s(now_s))
        self._last_s, self._is_under_way = now_s, True

    def left_s(self, now_s: float, running: Iterable[str], again: Iterable[str] = ()) -> float | None:
        """Return the estimate while these trials run; None if neither the plan nor two ended trials tell.

        The trials `again` will be timed again, and are not queued yet.
        """
        open_s = self._open_s + sum(map(self._share_s, again))
        if not open_s:
            return 0.0
        if not self._done_s:
            return None
        running_s = sum(map(self._share_s, running))
        # Running trials that are overdue show that the pace is slower.
        pace = max(self._took_s / self._done_s, (self._took_s + self._paced_s(now_s)) / (self._done_s + running_s))
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        return max(0.0, pace * open_s - since_s, pace * (open_s - running_s))

    def _paced_s(self, now_s: float) -> float:
        """Return the seconds since the last end; those since the first start without a start of processes."""
        if self._last_s is None:
            return 0.0
        return now_s - self._last_s if self._is_under_way else max(0.0, now_s - self._last_s - _START_S)

    def _share_s(self, trial_id: str) -> float:
        return self._shares_s.get(trial_id, 0.0)
