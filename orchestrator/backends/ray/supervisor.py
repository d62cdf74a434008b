"""The supervisor of a gang: an actor without resources that runs one trial after another on the gang's ranks.

To Tune it is a trial's actor. This module does not import Tune, which would double the time that a gang takes to start.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from orchestrator.backends.backend import outcome_of
from orchestrator.backends.ray.deaths import death_of, final_errors, oom_kills
from orchestrator.backends.ray.head import DrainNotice
from orchestrator.backends.ray.rank import WATCH, rank_log
from orchestrator.backends.ray.workers import RankWatch, WorkerGroup
from orchestrator.config.settings import Settings
from orchestrator.end_process import RANKS_STOP_S
from orchestrator.store.record import TrialOutcome
from orchestrator.telemetry.sampler import Sampling
from orchestrator.telemetry.sources import Readings
from orchestrator.trackers.tracking import numbers
from sweeps.rank_exit import Cause, RankExit
from sweeps.status import Status
from sweeps.trial import RankRequest, TrialSpec

RESERVED = ("rows", "outcome", "done", "config")  # keys of a result that have a meaning to Tune or to this back end

POLL_S = 0.5  # how often to ask a running gang for rows; its end is noticed at once
REPORT_S = 2.0
"""How long the other ranks may continue after one has failed, to report what they saw, before they are killed."""
COMMAND_END_S = 8.0
"""How long the command of a node may take to end after that of another node has failed, before it is killed."""
NOTICE_S = 15.0  # how long ranks may take for a checkpoint once their node is about to be removed


@dataclass(kw_only=True)
class _RunningAttempt:
    """One attempt at a trial while it runs, of which nothing stays for the next trial but the processes."""

    number: int  # see `Rank`
    began_s: float  # by the monotonic clock, as all times here
    settings: Settings
    trial: TrialSpec
    trial_dir: Path
    logs: Sequence[tuple[Path, int]]  # the log of each rank, and the bytes that it had before
    oom_kills: int  # processes of this machine that were killed for memory before
    ranks: Sequence[Any]  # the ranks' actors
    watch: RankWatch
    running: dict[Any, int] = field(default_factory=dict)  # the ranks that run, by the answer of their `run`
    exits: list[RankExit] = field(default_factory=list)
    readings: list[Readings] = field(default_factory=list)
    deadline_s: float = float("inf")  # when the ranks that still run are killed
    end_commands_s: float = float("inf")  # when the commands that still run are asked to stop
    leaving: Sequence[str] = ()  # the nodes that are about to be removed
    given_up: str = ""  # why the trial is stopped early
    rows: list[dict[str, Any]] | None = None  # all rows, once rank 0 has ended
    seen: int = 0  # how many of them were reported
    last_row: Mapping[str, Any] = field(default_factory=dict)
    iterations: int = 0  # results so far
    reported_s: float = 0.0  # the time from the start to the last of them

    @property
    def has_failed(self) -> bool:
        """Return whether a rank has failed."""
        return any(rank_exit.status is not Status.OK for rank_exit in self.exits)

    @property
    def have_all_ended(self) -> bool:
        """Return whether every rank has ended."""
        return len(self.exits) == len(self.ranks)

    def final_exits(self) -> Sequence[RankExit]:
        """Return how the ranks ended, in view of what made them stop."""
        if self.leaving and not (self.have_all_ended and have_result(self.exits)):
            # The trial continues on another node.
            note = f"node {self.leaving[0][:8]} is about to be removed"
            return [RankExit(rank=0, cause=Cause.NODE, note=note, answered=False)]
        has_stopped = any(rank_exit.stopped for rank_exit in self.exits)
        if self.given_up and has_stopped and not self.has_failed:
            return [_stopped_early(rank_exit, self.given_up) for rank_exit in self.exits]
        return self.exits


class Supervisor:
    """Runs one trial after another on its gang of ranks; it never imports what they compute with.

    Its config is {"request": RankRequest, "settings": Settings, "sampling": Sampling, "lost": GPUs in quarantine}.
    Every result has the "rows" reported since the previous one, and the last result also the trial's "outcome". For
    Tune's callbacks, each result contains the figures of the last row as well.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Start the first trial."""
        self._workers = WorkerGroup(config["settings"].workers)
        self._notice = DrainNotice()
        self._runs = 0  # calls of the ranks' `run`, by which they tell one from the next
        self._start(config)

    def reset(self, config: Mapping[str, Any]) -> bool:
        """Start the next trial, which fits this gang. Returns True, as Tune requires."""
        self._start(config)
        return True

    def train(self) -> dict[str, Any]:
        """One iteration in Tune's sense: a step, plus the fields that Tune's callbacks expect in its result."""
        attempt = self._attempt
        result = self.step()
        attempt.iterations += 1
        total_s = time.monotonic() - attempt.began_s
        passed = {"time_this_iter_s": total_s - attempt.reported_s, "time_total_s": total_s}
        attempt.reported_s = total_s
        about = self.get_auto_filled_metrics()
        return {"done": False, "training_iteration": attempt.iterations} | passed | about | result

    def get_auto_filled_metrics(self, debug_metrics_only: bool = True) -> dict[str, Any]:
        """Place and time under Tune's names; Tune asks for them when a trial starts."""
        now = datetime.now()
        return {
            "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
            "timestamp": int(now.timestamp()),
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "node_ip": ray.util.get_node_ip_address(),
        }

    def step(self) -> dict[str, Any]:
        """Wait until all ranks have ended, or for POLL_S; returns what is new."""
        attempt = self._attempt
        answers, _ = ray.wait(list(attempt.running), num_returns=len(attempt.running), timeout=POLL_S)
        self._record({attempt.running.pop(answer): answer for answer in answers})
        self._look_after_ranks()
        # Rows come before the end: after it, the ranks' processes may be gone.
        rows = self._new_rows()
        figures = numbers(attempt.last_row)
        own: dict[str, Any] = {"rows": rows}
        if not attempt.running or time.monotonic() > attempt.deadline_s:
            outcome = self._finish()
            figures |= numbers(outcome.metrics)
            own |= {"outcome": outcome, "done": True}
        # Tune's callbacks expect numbers by their names.
        return {name: value for name, value in figures.items() if name not in RESERVED} | own

    def stop(self) -> None:
        """Stop the running trial, if any, and end the ranks."""
        attempt = self._attempt
        if attempt.running:
            self._ask_to_stop()
            ray.wait(list(attempt.running), num_returns=len(attempt.running), timeout=RANKS_STOP_S)
        self._workers.close()

    def _start(self, config: Mapping[str, Any]) -> None:
        request: RankRequest = config["request"]
        began_s, trial = time.monotonic(), request.trial
        assert request.trial_dir
        self._runs += 1
        # What a log has by now is of earlier attempts.
        logs = [rank_log(request.trial_dir, rank) for rank in range(trial.gang.ranks)]
        sizes = [log.stat().st_size if log.exists() else 0 for log in logs]
        killed_before = oom_kills()
        ranks = self._workers.take(trial, config["lost"])
        self._attempt = _RunningAttempt(
            number=self._runs,
            began_s=began_s,
            settings=config["settings"],
            trial=trial,
            trial_dir=request.trial_dir,
            logs=list(zip(logs, sizes, strict=True)),
            oom_kills=killed_before,
            ranks=ranks,
            watch=RankWatch(ranks, self._runs, config["settings"]),
        )
        self._run_ranks(request, config["sampling"])

    def _run_ranks(self, request: RankRequest, sampling: Sampling) -> None:
        """Call `run` of every rank, which answers when the rank has ended."""
        attempt, ranks = self._attempt, self._attempt.ranks
        # The address is passed as a reference, so that only the ranks that need it wait for rank 0.
        meeting = ranks[0].rendezvous.remote() if len(ranks) > 1 else None
        peers = ranks if len(ranks) > 1 else ()
        for rank, actor in enumerate(ranks):
            own = replace(request, rank=rank, gang_id=self._workers.gang_id)
            # The name is for Ray's dashboard, which shows each call.
            call = actor.run.options(name=f"{attempt.trial.label}/rank{rank}")
            attempt.running[call.remote(attempt.number, own, meeting, sampling, peers)] = rank

    def give_up(self, trial_id: str, why: str) -> None:
        """End the trial early, if it still runs."""
        attempt = self._attempt
        if attempt.running and attempt.trial.trial_id == trial_id:
            attempt.given_up = why
            self._ask_to_stop()

    def _look_after_ranks(self) -> None:
        """End a trial that has failed, has exceeded its time limits, or whose node is about to be removed."""
        attempt = self._attempt
        self._end_commands()
        if not attempt.running:
            return
        if not attempt.leaving:
            attempt.leaving = sorted(self._notice.of(self._workers.nodes[: len(attempt.ranks)]))
            if attempt.leaving:  # all ranks write a checkpoint and stop
                self._ask_to_stop()
                attempt.deadline_s = min(attempt.deadline_s, time.monotonic() + NOTICE_S)
        # With a deadline, the trial is ending already.
        overdue = attempt.watch.look() if attempt.deadline_s == float("inf") else None
        if overdue is not None:
            attempt.exits.append(replace(overdue, trace=attempt.watch.stacks(overdue.rank)))
            attempt.deadline_s = time.monotonic()

    def _ask_to_stop(self) -> None:
        for rank in self._attempt.ranks:
            rank.stop.options(concurrency_group=WATCH).remote(self._attempt.number)

    def _record(self, answers: Mapping[int, Any]) -> None:
        """Record how these ranks ended; the first failure sets a deadline for the others."""
        attempt = self._attempt
        unanswered: dict[int, RayError] = {}
        for rank, answer in answers.items():
            try:
                rank_exit, rows, readings = ray.get(answer)
            except RayError as error:
                unanswered[rank] = error
                continue
            attempt.exits.append(rank_exit)
            attempt.readings.append(readings)
            if rank == 0:
                attempt.rows = rows
        # Ray may need many seconds to find out what happened.
        if unanswered:
            attempt.end_commands_s = time.monotonic()
            self._end_commands()
        for rank, failure in final_errors(unanswered, self._ask_again).items():
            log, began_at = attempt.logs[rank]
            killed = oom_kills() > attempt.oom_kills
            attempt.exits.append(death_of(failure, rank, log, began_at=began_at, oom_killed=killed))
        for rank in answers:
            attempt.watch.ended(rank)
        if attempt.has_failed:
            others_s = COMMAND_END_S if attempt.trial.layout.starts_ranks else REPORT_S
            attempt.deadline_s = min(attempt.deadline_s, time.monotonic() + others_s)
            attempt.end_commands_s = min(attempt.end_commands_s, time.monotonic() + REPORT_S)

    def _end_commands(self) -> None:
        """End commands in time after one has failed: their processes may wait for those of a lost node for minutes."""
        attempt = self._attempt
        if attempt.trial.layout.starts_ranks and attempt.running and time.monotonic() >= attempt.end_commands_s:
            attempt.end_commands_s = float("inf")
            self._ask_to_stop()

    def _ask_again(self, rank: int, timeout_s: float) -> None:
        asked = self._attempt.ranks[rank].moves.options(concurrency_group=WATCH).remote(self._attempt.number)
        ray.get(asked, timeout=timeout_s)

    def _new_rows(self) -> list[dict[str, Any]]:
        attempt = self._attempt
        if attempt.rows is not None:
            rows = attempt.rows[attempt.seen :]
        else:
            asked = attempt.ranks[0].rows.options(concurrency_group=WATCH).remote(attempt.number, attempt.seen)
            try:
                rows = ray.get(asked, timeout=POLL_S)
            except RayError:  # too busy to answer: asked again later; or dead: the call of `run` fails too
                rows = []
        attempt.seen += len(rows)
        attempt.last_row = rows[-1] if rows else attempt.last_row
        return rows

    def _finish(self) -> TrialOutcome:
        """Return the outcome of the trial, and keep only processes that may serve another one."""
        from orchestrator.telemetry.columns import with_telemetry  # pyarrow would delay the start of the gang

        attempt = self._attempt
        wall_s = time.monotonic() - attempt.began_s
        attempt.running = {}
        self._end_processes()
        exits = attempt.final_exits()
        outcome = outcome_of(exits, names=self._workers.names(len(attempt.ranks)), wall_s=wall_s)
        return with_telemetry(outcome, attempt.readings, attempt.trial, attempt.trial_dir)

    def _end_processes(self) -> None:
        """End the processes that may not serve another trial."""
        attempt = self._attempt
        are_reusable = attempt.have_all_ended and all(rank_exit.reusable for rank_exit in attempt.exits)
        if attempt.settings.workers == "fresh" or not are_reusable:
            self._workers.end()
        if attempt.leaving:
            self._workers.close()


def have_result(exits: Sequence[RankExit]) -> bool:
    """Return whether these ranks ended by themselves, with what is a result also on a node that is about to leave."""
    results = (Status.OK, Status.OOM, Status.DIVERGED)
    return all(rank_exit.status in results and not rank_exit.stopped for rank_exit in exits)


def _stopped_early(rank_exit: RankExit, why: str) -> RankExit:
    """Return the exit of a rank that was stopped early."""
    # The test accuracy after a part of the training means nothing.
    metrics = {name: value for name, value in rank_exit.metrics.items() if name != "accuracy"}
    return replace(rank_exit, cause=Cause.GIVEN_UP, note=why, metrics=metrics)
