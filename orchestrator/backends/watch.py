"""Decides when a running trial is overdue: out of time, or too long without progress. Uses monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.journal.outcome import Cause


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of one attempt; None means no limit."""

    hang_s: float | None = None
    time_limit_s: float | None = None


NO_LIMITS = Limits()

START_S = 120.0
"""What a rank may take until its first move, where `hang_s` is shorter: its imports alone take seconds."""


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """Why a trial is being ended."""

    cause: Cause
    note: str
    rank: int | None = None
    """The one that stands still; None where no single one does."""


class Watch:
    """What is known of one attempt's ranks: how often each has moved, and when it was first seen to."""

    def __init__(self, limits: Limits, *, ranks: int, now: float) -> None:
        self._limits = limits
        self._started = now
        self._moves = dict.fromkeys(range(ranks), 0)
        self._moved = dict.fromkeys(range(ranks), now)
        self._heard = dict.fromkeys(range(ranks), now)

    def heard(self, moves: Mapping[int, int], now: float) -> None:
        """Ranks answered how often they have moved."""
        for rank, count in moves.items():
            self._heard[rank] = now
            if count != self._moves[rank]:
                self._moves[rank], self._moved[rank] = count, now

    def ended(self, rank: int) -> None:
        """A rank is done, and need not move any more."""
        self._moved.pop(rank, None)

    def look_again_s(self) -> float | None:
        """How often the ranks are to be asked; None: never."""
        return None if self._limits.hang_s is None else max(0.25, min(10.0, self._limits.hang_s / 10))

    def overdue(self, now: float) -> Overdue | None:
        """Why the trial is to end now, if it is.

        Of ranks that wait for one another all stand still: the root is the one that does not even answer, or else that
        stood still first.
        """
        limit_s, hang_s = self._limits.time_limit_s, self._limits.hang_s
        if limit_s is not None and now - self._started >= limit_s:
            return Overdue(cause=Cause.TIME_LIMIT, note=f"not done after time_limit_s={limit_s:g}")
        if hang_s is None or not any(now - self._moved[rank] >= self._patience_s(rank, hang_s) for rank in self._moved):
            return None
        silent_s = max(2.0, 3 * (self.look_again_s() or 0))
        mute = [rank for rank in self._moved if now - self._heard[rank] > silent_s]
        root = min(mute or self._moved, key=lambda rank: (self._moved[rank], rank))
        what = "does not answer" if mute else "stands still"
        return Overdue(cause=Cause.HANG, note=f"{what}: no step and no row for hang_s={hang_s:g}", rank=root)

    def _patience_s(self, rank: int, hang_s: float) -> float:
        return hang_s if self._moves[rank] else max(hang_s, START_S)
