"""A gang: a supervisor without resources, and a rank actor in every bundle of its placement group.

To Tune the supervisor is a trial's actor. This module does not import Tune, which would double the time that a gang
takes to start. `WorkerGroup` has the ranks' processes, `RankWatch` sees their progress, and `Supervisor` runs trials.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.backends.backend import HangWatch, outcome_of
from orchestrator.backends.ray.deaths import death_of, final_errors, oom_kills
from orchestrator.backends.ray.head import DrainNotice
from orchestrator.backends.ray.rank import WATCH, Rank, rank_log
from orchestrator.config.settings import Settings
from orchestrator.end_process import RANKS_STOP_S
from orchestrator.store.record import TrialOutcome
from orchestrator.telemetry.sources import Readings
from orchestrator.trackers.tracking import numbers
from sweeps.rank_exit import Cause, RankExit
from sweeps.status import Status
from sweeps.trial import RankRequest, TrialSpec

RESERVED = ("rows", "outcome", "done", "config")  # keys of a result that have a meaning to Tune or to this back end


STACKS_S = 1.0  # how long a rank that hangs may take to return its stacks


class RankWatch(HangWatch):
    """Watches the ranks of one attempt, from construction on."""

    def __init__(self, ranks: Sequence[Any], run_number: int, limits: Settings) -> None:
        """See `Rank` for `run_number`."""
        super().__init__(limits, ranks=len(ranks), now=time.monotonic())
        self._ranks, self._run_number = ranks, run_number
        self._asked: dict[int, Any] = {}
        self._ask_at = 0.0

    def look(self) -> RankExit | None:
        """Return the exit of a rank that must be abandoned now; None if the trial may continue."""
        now, every_s = time.monotonic(), self.look_again_s()
        if every_s is not None and now >= self._ask_at:
            self._ask_at = now + every_s
            self.heard(self._answers(), now)
            for rank in set(range(len(self._ranks))) - set(self._asked):
                self._asked[rank] = self._ranks[rank].moves.options(concurrency_group=WATCH).remote(self._run_number)
        return self.overdue(now)

    def stacks(self, rank: int) -> str:
        """Return the stacks of a rank's threads, if it still answers."""
        try:
            asked = self._ranks[rank].stacks.options(concurrency_group=WATCH).remote()
            return str(ray.get(asked, timeout=STACKS_S))
        except RayError as error:
            return f"rank {rank} did not return its stacks: {type(error).__name__}\n"

    def _answers(self) -> dict[int, int]:
        """Return the answers received since the last call: how often each rank has moved."""
        if not self._asked:
            return {}
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=0)
        moves: dict[int, int] = {}
        for rank in [rank for rank, answer in self._asked.items() if answer in ready]:
            try:
                moves[rank] = ray.get(self._asked.pop(rank))
            except RayError:  # the rank is dead; the call of `run` fails too
                continue
        return moves


LEAVE_S = 10.0  # how long processes may take to leave their process group before they are replaced


PREPARE_S = 60.0  # how long a trial waits for the imports of ranks that it does not need


class WorkerGroup:
    """Rank actors, rank i in bundle i: the supervisor's empty bundle is not part of the placement group."""

    def __init__(self, workers: str) -> None:
        """`workers`: see `Settings.workers`."""
        self._workers = workers
        self._seed: int | None = None
        self._actors: dict[int, Any] = {}
        self._connected = 0
        self.gang_id = ""  # identifies the processes that are connected now; a new connection gets a new id
        self.nodes: Sequence[str] = ()  # the node id of each bundle when the gang started; bundles of a lost node move

    def take(self, trial: TrialSpec, lost: Collection[str] = ()) -> list[Any]:
        """Return the trial's ranks, connected to one another only; they use no GPU that is `lost`."""
        # A command starts its own processes in every trial, so those that start it may serve all seeds.
        if not trial.layout.starts_ranks:
            if self._workers == "per_seed" and trial.seed != self._seed:
                self.close()
            self._seed = trial.seed
        ranks = range(trial.gang.ranks)
        if len(ranks) != self._connected:
            self._disconnect()
            self._connected, self.gang_id = len(ranks), uuid4().hex
        if not self._actors:
            nodes = ray.util.placement_group_table(ray.util.get_current_placement_group())["bundles_to_node_id"]
            self.nodes = [nodes[index] for index in sorted(nodes)]
        new = [rank for rank in range(len(self.nodes)) if rank not in self._actors]
        for rank in new:
            # For Ray's dashboard; each call of the actor shows its own trial's name.
            later = "" if self._workers == "fresh" else " and following"
            name = f"{trial.label}{later}/rank{rank}/{uuid4().hex[:6]}"
            self._actors[rank] = _start(trial, rank, name, lost)
        # The ranks that only larger trials need start at the same time: later, each would delay a trial by seconds.
        # The trial waits for them, because their imports would disturb its timing.
        if any(rank not in ranks for rank in new):
            preparing = [self._actors[rank].prepare.remote(trial.trainable) for rank in new]
            ray.wait(preparing, num_returns=len(preparing), timeout=PREPARE_S)
        return [self._actors[rank] for rank in ranks]

    def names(self, ranks: int) -> list[str]:
        """Return a name of each rank, with its host if the gang is on several nodes."""
        nodes = self.nodes[:ranks]
        if len(set(nodes)) == 1:
            return [f"rank {rank}" for rank in range(ranks)]
        hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
        return [f"rank {rank} on {hosts.get(node, node[:8])}" for rank, node in enumerate(nodes)]

    def end(self) -> None:
        """End the processes of the last trial; idle ones may serve the next."""
        for rank in range(self._connected):
            ray.kill(self._actors.pop(rank))
        self._connected = 0

    def close(self) -> None:
        """End all processes."""
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors, self._connected = {}, 0

    def _disconnect(self) -> None:
        """Disconnect all ranks at the same time: if one left alone, the others would wait for it."""
        leaving = {self._actors[rank].disconnect.remote(): rank for rank in range(self._connected)}
        if not leaving:
            return
        answers, _ = ray.wait(list(leaving), num_returns=len(leaving), timeout=LEAVE_S)
        for answer in answers:
            with suppress(RayError):
                ray.get(answer)
                del leaving[answer]
        for rank in leaving.values():
            ray.kill(self._actors.pop(rank))


def _start(trial: TrialSpec, rank: int, name: str, lost: Collection[str]) -> Any:
    gang, group = trial.gang, ray.util.get_current_placement_group()
    actor = ray.remote(concurrency_groups={WATCH: 1})(Rank)
    return actor.options(
        name=name,
        num_cpus=gang.cpus_per_rank,
        num_gpus=gang.gpus_per_rank,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
    ).remote(gang.cpus_per_rank, gang.gpus_per_rank, lost)


POLL_S = 0.5  # how often to ask a running gang for rows; its end is noticed at once
REPORT_S = 2.0
"""How long the other ranks may continue after one has failed, to report what they saw, before they are killed."""
COMMAND_END_S = 8.0
"""How long the command of a node may take to end after that of another node has failed, before it is killed."""
NOTICE_S = 15.0  # how long ranks may take for a checkpoint once their node is about to be removed


@dataclass(kw_only=True)
class _Attempt:
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
        self._attempt = attempt = _Attempt(
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
        # The address is passed as a reference, so that only the ranks that need it wait for rank 0.
        meeting = ranks[0].rendezvous.remote() if len(ranks) > 1 else None
        peers = ranks if len(ranks) > 1 else ()
        for rank, actor in enumerate(ranks):
            own = replace(request, rank=rank, gang_id=self._workers.gang_id)
            # The name is for Ray's dashboard, which shows each call.
            call = actor.run.options(name=f"{trial.label}/rank{rank}")
            attempt.running[call.remote(attempt.number, own, meeting, config["sampling"], peers)] = rank

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
        if attempt.running and not attempt.leaving:
            attempt.leaving = sorted(self._notice.of(self._workers.nodes[: len(attempt.ranks)]))
            if attempt.leaving:  # all ranks write a checkpoint and stop
                self._ask_to_stop()
                attempt.deadline_s = min(attempt.deadline_s, time.monotonic() + NOTICE_S)
        overdue = attempt.watch.look() if attempt.running and attempt.deadline_s == float("inf") else None
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
        have_all_ended = len(attempt.exits) == len(attempt.ranks)
        are_reusable = have_all_ended and all(rank_exit.reusable for rank_exit in attempt.exits)
        if attempt.settings.workers == "fresh" or not are_reusable:
            self._workers.end()
        has_stopped = any(rank_exit.stopped for rank_exit in attempt.exits)
        if attempt.leaving:
            self._workers.close()
        if attempt.leaving and not (have_all_ended and have_result(attempt.exits)):
            # The trial continues on another node.
            note = f"node {attempt.leaving[0][:8]} is about to be removed"
            attempt.exits = [RankExit(rank=0, cause=Cause.NODE, note=note, answered=False)]
        elif attempt.given_up and has_stopped and not attempt.has_failed:
            attempt.exits = [_stopped_early(rank_exit, attempt.given_up) for rank_exit in attempt.exits]
        outcome = outcome_of(attempt.exits, names=self._workers.names(len(attempt.ranks)), wall_s=wall_s)
        return with_telemetry(outcome, attempt.readings, attempt.trial, attempt.trial_dir)


def have_result(exits: Sequence[RankExit]) -> bool:
    """Return whether these ranks ended by themselves, with what is a result also on a node that is about to leave."""
    results = (Status.OK, Status.OOM, Status.DIVERGED)
    return all(rank_exit.status in results and not rank_exit.stopped for rank_exit in exits)


def _stopped_early(rank_exit: RankExit, why: str) -> RankExit:
    """Return the exit of a rank that was stopped early."""
    # The test accuracy after a part of the training means nothing.
    metrics = {name: value for name, value in rank_exit.metrics.items() if name != "accuracy"}
    return replace(rank_exit, cause=Cause.GIVEN_UP, note=why, metrics=metrics)
