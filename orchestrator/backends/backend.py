"""The interface of back ends, and what all of them share: time limits, and how a trial's outcome follows.

The outcome is the root cause among the exits of the trial's ranks. The contract suite (`tests/contract`) tests every
back end. Seconds are monotonic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from orchestrator.config.settings import Settings
from orchestrator.schedule.cluster import Footprint, Node
from orchestrator.schedule.queue import TrialQueue
from orchestrator.store.record import EARLY_STOP, TrialOutcome
from sweeps.rank_exit import CONNECTION_ERROR, Cause, RankExit
from sweeps.status import Status
from sweeps.trial import TrialSpec

RANK_ENTRY = "trainables.rank:run"
"""The function that every rank's process calls: `(request, emit, should_stop, observe, mailbox) -> RankExit`."""


class NotStartedError(RuntimeError):
    """The back end could not be started although the request is valid; trying again may help."""


class Listener(Protocol):
    """Receives the events of trials. Called from the driver's main thread only; an exception ends the sweep."""

    def started(self, trial: TrialSpec) -> None:
        """The trial's gang has its resources and was told to start."""

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rank 0 reported rows, one per epoch, each exactly once and in order."""

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> bool:
        """The attempt has ended. Return whether another one follows. The end is acknowledged once this returns."""

    def ticked(self) -> None:
        """Called at least once a second while trials run, for clocks and displays."""

    def stopping(self) -> bool:
        """Return whether no further trial may start and running ones must stop."""


class Backend(Protocol):
    """A place where trials run."""

    @property
    def dashboard_url(self) -> str:
        """URL of a dashboard; empty if there is none."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes available now."""

    def ask_for(self, footprints: Sequence[Footprint]) -> None:
        """Ask an autoscaler for nodes for these gangs, until others are asked for or `run` ends."""

    def run(self, trial_queue: TrialQueue, results_dir: Path, listener: Listener) -> None:
        """Run the trials in the order of the queue, and report to the listener.

        The ranks write their logs to `results_dir/trials/<trial_id>/`; `results_dir/trials` must exist. Returns when
        the queue is over, or when the listener asked to stop and nothing runs any more. A trial that is abandoned then
        is not reported as finished.
        """

    def close(self) -> None:
        """Release everything; nothing of this back end keeps running."""


START_S = 120.0  # the least time that a rank has for its first step, since its imports alone take seconds


class HangWatch:
    """The progress of one attempt's ranks; a rank *moves* when it takes a step or reports a row."""

    def __init__(self, settings: Settings, *, ranks: int, now: float) -> None:
        """The limits are `hang_s` and `time_limit_s`; None means no limit."""
        self._limits = settings
        self._started = now
        self._moves = dict.fromkeys(range(ranks), 0)
        self._moved = dict.fromkeys(range(ranks), now)
        self._heard = dict.fromkeys(range(ranks), now)

    def heard(self, moves: Mapping[int, int], now: float) -> None:
        """Record how often these ranks have moved in total."""
        for rank, count in moves.items():
            self._heard[rank] = now
            if count != self._moves[rank]:
                self._moves[rank], self._moved[rank] = count, now

    def ended(self, rank: int) -> None:
        """Stop expecting a rank to move: it has ended."""
        self._moved.pop(rank, None)

    def look_again_s(self) -> float | None:
        """Return how often to ask the ranks; None: never."""
        return None if self._limits.hang_s is None else max(0.25, min(10.0, self._limits.hang_s / 10))

    def overdue(self, now: float) -> RankExit | None:
        """Return the exit of a rank that must be abandoned now, without its trace; None if the trial may continue."""
        # If both limits are exceeded, the time limit is the reason.
        limit_s, hang_s = self._limits.time_limit_s, self._limits.hang_s
        if limit_s is not None and now - self._started >= limit_s:
            note = f"not done after time_limit_s={limit_s:g}"
            return RankExit(rank=min(self._moved, default=0), cause=Cause.TIME_LIMIT, note=note, answered=False)
        if hang_s is None or not any(now - self._moved[rank] >= self._patience_s(rank, hang_s) for rank in self._moved):
            return None
        # A busy rank may miss one question, not three.
        silent_s = max(2.0, 3 * (self.look_again_s() or 0))
        # If one rank hangs, all ranks that wait for it stop moving. The root is a rank that does not even answer, as it
        # runs C code, or else the one that stopped first.
        mute = [rank for rank in self._moved if now - self._heard[rank] > silent_s]
        root = min(mute or self._moved, key=lambda rank: (self._moved[rank], rank))
        note = f"{'does not answer' if mute else 'hangs'}: no step and no row for hang_s={hang_s:g}"
        return RankExit(rank=root, cause=Cause.HANG, note=note, answered=False)

    def _patience_s(self, rank: int, hang_s: float) -> float:
        return hang_s if self._moves[rank] else max(hang_s, START_S)


class NotSaved:
    """Arguments of Tune, which copies their state and never reads it: the copy is empty."""

    def __getstate__(self) -> dict[str, object]:
        return {}


class GuardedListener(NotSaved):
    """Keeps an exception of the listener, which Tune or a trainable may catch, so that it can be raised again."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._error: BaseException | None = None

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """Return the listener; an exception raised in the block is kept."""
        try:
            yield self._listener
        except BaseException as error:
            # Tune and trainables may catch what the listener raises.
            self._error = error
            raise

    def reraise(self) -> None:
        """Raise the kept exception, if any."""
        if self._error is not None:
            raise self._error


def died(rank: int, why: str, trace: str, *, cause: Cause = Cause.CRASH) -> RankExit:
    """Return the exit of a rank whose process died; `why` is one line, `trace` all that is known."""
    return RankExit(rank=rank, cause=cause, note=f"the process died: {why}", trace=trace, answered=False)


def outcome_of(exits: Sequence[RankExit], *, names: Sequence[str], wall_s: float) -> TrialOutcome:
    """Return the trial's outcome from the exits of its ranks, at least one; if a rank failed, others may be missing.

    Figures are those of the lowest rank that answered. `names` has the name of each rank for people.
    """
    root = min(exits, key=_order)
    # A rank that failed has no figures; another rank's say at least where the trial ran.
    answering = min(
        (rank_exit for rank_exit in exits if rank_exit.answered), key=lambda known: known.rank, default=root
    )
    # A time limit is the whole gang's, so it names no rank.
    is_failure = root.status not in (Status.OK, Status.SKIPPED) and root.cause is not Cause.TIME_LIMIT
    is_named = is_failure and (len(names) > 1 or not root.answered)
    devices = [device for rank_exit in exits for device in rank_exit.lost_devices]
    gpus = ", ".join(
        f"GPU {name} of node {node[:8]}" for node, _, name in (device.partition("/") for device in devices)
    )
    note = f"{names[root.rank]}: {root.note}" if is_named else root.note
    return TrialOutcome(
        cause=root.cause,
        note=f"{note}; in quarantine: {gpus}" if devices else note,
        trace=root.trace,
        metrics=answering.metrics,
        provenance=answering.provenance,
        lost_devices=devices,
        wall_s=wall_s,
        skipped_by=EARLY_STOP if root.status is Status.SKIPPED else "",
    )


def _order(rank_exit: RankExit) -> tuple[int, int]:
    """Return a sort key that puts the root cause first; among equals the lowest rank.

    The first failure that is seen is often not the first that happened: ranks that wait for a dead rank see a closed
    connection. So a lack of memory explains more than a lost process, a lost process more than an error, and any other
    error more than an error of the connection.
    """
    status = rank_exit.status
    order = (
        status is Status.TIMEOUT,
        status is Status.OOM,
        rank_exit.cause in (Cause.NODE, Cause.DEVICE, Cause.PORT),
        not rank_exit.answered,
        status is Status.DIVERGED,
        status is not Status.OK and not CONNECTION_ERROR.search(rank_exit.note),
        status is not Status.OK,
        True,
    )
    return order.index(True), rank_exit.rank
