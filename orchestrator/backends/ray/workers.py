"""The processes of a gang's ranks: `WorkerGroup` starts, reuses and ends them, and `RankWatch` sees their progress."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.backends.backend import HangWatch
from orchestrator.backends.ray.rank import WATCH, Rank
from orchestrator.config.settings import Settings
from sweeps.rank_exit import RankExit
from sweeps.trial import TrialSpec

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
