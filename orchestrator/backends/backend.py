"""The interface of back ends: the nodes they have, and trials run on them. The contract suite tests each one.

Decides when a running trial is overdue: out of time, or too long without progress. Uses monotonic seconds.

How attempts are run, independent of the trial.

A listener that is called from within code that catches what it raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.schedule.cluster import Node, Shape
from orchestrator.store.listener import Listener
from orchestrator.store.record import Cause
from orchestrator.telemetry.sampler import Sampling
from sweeps.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.schedule.queue import TrialQueue

RANK_ENTRY = "trainables.rank:run"
"""The function every rank's process calls: `(request, emit, should_stop, observe) -> outcome`, plain values all."""


class NotStartedError(RuntimeError):
    """The back end could not be started although the request is valid; trying again may help."""


class Backend(Protocol):
    """Where trials run."""

    @property
    def dashboard_url(self) -> str:
        """URL of a dashboard; empty if there is none."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes available now."""

    def ask_for(self, shapes: Sequence[Shape]) -> None:
        """Ask an autoscaler for nodes for these gangs, until others are asked for or `run` ends."""

    def run(self, trials: Sequence[TrialSpec] | TrialQueue, results_dir: Path, listener: Listener) -> None:
        """Run the trials as the agenda says, and tell the listener; trials without an agenda make one of their own.

        `results_dir/trials/<trial_id>/` is where the ranks write their logs. Returns when every trial was reported as
        finished, or when the listener asked to stop and nothing runs any more; a trial given up so is not finished.
        """

    def close(self) -> None:
        """Release everything; nothing of this back end keeps running."""


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


BEHIND = 3
"""A trial that, within its training, falls short by so many margins of the best one that is as fast ends there."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Which trials are stopped early as hopeless."""

    after: float
    """Share of its budget that every trial gets."""
    behind: float
    """By how much its validation accuracy has to fall short of the best one's that is as fast."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a back end for all attempts."""

    workers: str = "per_seed"
    """Which trials a gang's processes serve, one after another. per_seed: those of one seed; warm: all; fresh: one."""
    limits: Limits = NO_LIMITS
    sampling: Sampling = field(default_factory=Sampling)
    early_stopping: EarlyStopping | None = None
    """None: every trial gets its whole budget."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Which cluster to use, and which of its nodes."""

    address: str | None = None
    """None: RAY_ADDRESS if it is set, else a cluster started on this machine and stopped at the end."""
    dashboard: bool = True
    """Whether a cluster started here has a dashboard."""
    cpus: int | None = None
    """Resources of a cluster started here; None: as many as Ray finds."""
    gpus: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Only nodes with all of these are used."""
    asks: bool = False
    """Whether to ask its autoscaler for nodes that trials wait for."""
    verbose: bool = False
    """Whether Ray and Tune print their messages."""


class GuardedListener:
    """Keeps what the listener raised on its way through Tune or a trainable, so that it can be raised again."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._error: BaseException | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tune writes a copy of whatever it is given into a state that nobody reads; no listener goes there."""
        return {}

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """The listener; whatever is raised in the block is kept."""
        try:
            yield self._listener
        except BaseException as error:
            self._error = error
            raise

    def reraise(self) -> None:
        """Raise what was kept, if anything was."""
        if self._error is not None:
            raise self._error
