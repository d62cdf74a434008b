"""A gang: a supervisor without resources, and a rank actor in every bundle of its placement group.

To Tune the supervisor is a trial's actor. It does not import Tune, which would double the time that a gang takes to
start.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from orchestrator.backends.conduct import Conduct
from orchestrator.backends.gang_end import RankEnd, outcome_of
from orchestrator.backends.on_ray.drain_notice import DrainNotice
from orchestrator.backends.on_ray.plain_values import plain_result
from orchestrator.backends.on_ray.rank import WATCH, rank_log
from orchestrator.backends.on_ray.rank_end import all_settled, end_by, oom_kills
from orchestrator.backends.on_ray.rank_watch import RankWatch
from orchestrator.backends.on_ray.worker_group import WorkerGroup
from orchestrator.journal.outcome import Outcome
from orchestrator.telemetry.outcome import with_telemetry
from orchestrator.telemetry.readings import Readings
from sweeps.status import Status
from sweeps.trial import TrialSpec

POLL_S = 0.5
"""How often to ask a running gang for rows; its end is noticed at once."""
LAST_WORDS_S = 2.0
"""How long the other ranks may continue after one has failed, to report what they saw, before they are killed."""
NOTICE_S = 15.0
"""How long ranks may take for a checkpoint once their node is about to be removed."""
STOP_S = 2.0
"""How long ranks may take to stop before they are killed."""


class Supervisor:
    """Runs one trial after another on its gang of ranks; it never imports what they compute with.

    Its config is {"trial": TrialSpec, "trial_dir": str, "conduct": Conduct, "lost": GPUs in quarantine}. Every result
    has the "rows" reported since the previous one, and the last result also the trial's "outcome". For Tune's own
    callbacks, each result contains the figures of the last row as well.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Start the first trial."""
        self._workers = WorkerGroup(config["conduct"].workers)
        self._notice = DrainNotice()
        self._reported_s = 0.0
        self._turn = 0
        self._start(config)

    def reset(self, config: Mapping[str, Any]) -> bool:
        """Start the next trial, which fits this gang. Returns True, as Tune requires."""
        self._start(config)
        return True

    def train(self) -> dict[str, Any]:
        """One iteration in Tune's sense: a step, plus the fields that Tune's callbacks expect in its result."""
        result = self.step()
        self._iterations += 1
        total_s = time.monotonic() - self._started
        passed = {"time_this_iter_s": total_s - self._reported_s, "time_total_s": total_s}
        self._reported_s = total_s
        about = self.get_auto_filled_metrics()
        return {"done": False, "training_iteration": self._iterations} | passed | about | result

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
        ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=POLL_S)
        self._hear({self._running.pop(answer): answer for answer in ended})
        self._look_after_ranks()
        if not self._running or time.monotonic() > self._deadline:
            rows, outcome = self._new_rows(), self._finish()
            return {**plain_result(self._last_row, outcome.metrics), "rows": rows, "outcome": outcome, "done": True}
        rows = self._new_rows()
        return {**plain_result(self._last_row, {}), "rows": rows}

    def stop(self) -> None:
        """Stop the running trial, if any, and end the ranks."""
        if self._running:
            self._ask_to_stop()
            ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_S)
        self._workers.close()

    def _start(self, config: Mapping[str, Any]) -> None:
        self._started = time.monotonic()
        self._turn += 1
        self._iterations = 0
        self._reported_s = 0.0
        self._trial: TrialSpec = config["trial"]
        self._trial_dir = Path(config["trial_dir"])
        self._conduct: Conduct = config["conduct"]
        self._ends: list[RankEnd] = []
        self._readings: list[Readings] = []
        self._deadline = float("inf")
        self._leaving: Sequence[str] = ()
        self._given_up = ""
        self._was_told_to_stop = False
        self._rows: list[dict[str, Any]] | None = None
        self._seen = 0
        self._last_row: Mapping[str, Any] = {}
        self._oom_kills = oom_kills()
        logs = [rank_log(self._trial_dir, rank) for rank in range(self._trial.gang.ranks)]
        self._logs = [(log, log.stat().st_size if log.exists() else 0) for log in logs]
        self._ranks = self._workers.take(self._trial, config["lost"])
        self._watch = RankWatch(self._ranks, self._turn, self._conduct.limits)
        shared = {"gang_id": self._workers.gang_id, "trial_dir": str(self._trial_dir)}
        # The address is passed as a reference, so that only the ranks that need it wait for rank 0.
        meeting = self._ranks[0].rendezvous.remote() if len(self._ranks) > 1 else None
        self._running = {
            actor.run.options(name=f"{self._trial.label}/rank{rank}").remote(
                self._turn, self._trial.rank_request(rank) | shared, meeting, self._conduct.sampling
            ): rank
            for rank, actor in enumerate(self._ranks)
        }

    def give_up(self, trial_id: str, why: str) -> None:
        """End the trial early, if it still runs."""
        if self._running and self._trial.trial_id == trial_id:
            self._given_up = why
            self._ask_to_stop()

    def _look_after_ranks(self) -> None:
        """End a trial that has exceeded its time limits, or whose node is about to be removed."""
        if self._running and not self._leaving:
            self._leave(self._notice.of(self._workers.nodes[: len(self._ranks)]))
        overdue = self._watch.overdue() if self._running and self._deadline == float("inf") else None
        if overdue is not None:
            rank = min(self._running.values()) if overdue.rank is None else overdue.rank
            self._ends.append(RankEnd.overdue(rank, overdue, self._watch.stacks(rank)))
            self._deadline = time.monotonic()

    def _leave(self, nodes: Collection[str]) -> None:
        """Ask all ranks to write a checkpoint and stop, if any of their nodes is about to be removed."""
        self._leaving = sorted(nodes)
        if nodes:
            self._ask_to_stop()
            self._deadline = min(self._deadline, time.monotonic() + NOTICE_S)

    def _ask_to_stop(self) -> None:
        for rank in self._ranks:
            rank.stop.options(concurrency_group=WATCH).remote(self._turn)

    def _hear(self, answers: Mapping[int, Any]) -> None:
        """Record how these ranks ended; the first failure sets a deadline for the others."""
        unanswered: dict[int, RayError] = {}
        for rank, answer in answers.items():
            try:
                reply, rows, readings = ray.get(answer)
            except RayError as error:
                unanswered[rank] = error
                continue
            self._ends.append(RankEnd.of(reply))
            self._was_told_to_stop |= reply["stopped"]
            self._readings.append(readings)
            if rank == 0:
                self._rows = rows
        self._ends += self._lost(unanswered)
        for rank in answers:
            self._watch.ended(rank)
        if any(end.status is not Status.OK for end in self._ends):
            self._deadline = min(self._deadline, time.monotonic() + LAST_WORDS_S)

    def _lost(self, errors: Mapping[int, RayError]) -> list[RankEnd]:
        """The ends of ranks whose processes did not answer."""
        ends = []
        for rank, error in all_settled(errors, self._ask_again).items():
            log, began_at = self._logs[rank]
            ends.append(end_by(error, rank, log, began_at=began_at, oom_killed=oom_kills() > self._oom_kills))
        return ends

    def _ask_again(self, rank: int, timeout_s: float) -> None:
        ray.get(self._ranks[rank].moves.options(concurrency_group=WATCH).remote(self._turn), timeout=timeout_s)

    def _new_rows(self) -> list[dict[str, Any]]:
        if self._rows is not None:
            rows = self._rows[self._seen :]
        else:
            asked = self._ranks[0].rows.options(concurrency_group=WATCH).remote(self._turn, self._seen)
            try:
                rows = ray.get(asked, timeout=POLL_S)
            except RayError:  # too busy to answer: asked again later; or dead: the call of `run` fails too
                rows = []
        self._seen += len(rows)
        self._last_row = rows[-1] if rows else self._last_row
        return rows

    def _finish(self) -> Outcome:
        wall_s = time.monotonic() - self._started
        complete = len(self._ends) == len(self._ranks)
        if self._conduct.workers == "fresh" or not complete or not all(end.reusable for end in self._ends):
            self._workers.end()
        self._running = {}
        if self._leaving:
            self._workers.close()
            self._ends = [RankEnd.moved(0, f"node {self._leaving[0][:8]} is about to be taken away")]
        outcome = outcome_of(self._ends, world_size=self._trial.gang.ranks, wall_s=wall_s)
        if self._given_up and self._was_told_to_stop and outcome.status is Status.OK:
            outcome = _given_up(outcome, self._given_up)
        return with_telemetry(outcome, self._readings, self._trial, self._trial_dir)


def _given_up(outcome: Outcome, why: str) -> Outcome:
    """The outcome of a trial stopped early, without test accuracy, which means nothing for half a training."""
    metrics = {name: value for name, value in outcome.metrics.items() if name != "accuracy"}
    return replace(outcome, status=Status.SKIPPED, note=why, skipped_by="early_stop", metrics=metrics)
