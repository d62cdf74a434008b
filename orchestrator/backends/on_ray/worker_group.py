"""The processes in the bundles of a placement group; each starts when first needed and runs one trial after another.

A trial uses as many of them as it has ranks, from the first on; the others are idle meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.backends.on_ray.rank import WATCH, Rank
from sweeps.trial import TrialSpec

PART_S = 10.0
"""How long processes may take to leave their process group before they are replaced."""


class WorkerGroup:
    """Rank actors, rank i in bundle i: the supervisor's empty bundle is not part of the placement group."""

    def __init__(self, workers: str) -> None:
        """`workers`: see `Conduct.workers`."""
        self._workers = workers
        self._seed: int | None = None
        self._actors: dict[int, Any] = {}
        self._connected = 0
        self.gang_id = ""
        """Identifies the processes that are connected now; a new connection gets a new id."""
        self.nodes: Sequence[str] = ()
        """The node id of each bundle when the gang started; bundles of a lost node move."""

    def take(self, trial: TrialSpec, lost: Collection[str] = ()) -> list[Any]:
        """The trial's ranks, connected to one another only; they use no GPU that is `lost`."""
        if self._workers == "per_seed" and trial.seed != self._seed:
            self.close()
        self._seed = trial.seed
        ranks = range(trial.gang.ranks)
        if len(ranks) != self._connected:
            self._part()
            self._connected, self.gang_id = len(ranks), uuid4().hex
        if not self._actors:
            self.nodes = _nodes_of_bundles()
        for rank in ranks:
            if rank not in self._actors:
                self._actors[rank] = _start(trial, rank, self._name(trial, rank), lost)
        return [self._actors[rank] for rank in ranks]

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

    def _name(self, trial: TrialSpec, rank: int) -> str:
        """The actor's name in Ray's dashboard; each call of it shows its own trial's name."""
        return f"{trial.label}{'' if self._workers == 'fresh' else ' and following'}/rank{rank}/{uuid4().hex[:6]}"

    def _part(self) -> None:
        """Disconnect all ranks at the same time: if one left alone, the others would wait for it."""
        leaving = {self._actors[rank].part.remote(): rank for rank in range(self._connected)}
        if not leaving:
            return
        left, late = ray.wait(list(leaving), num_returns=len(leaving), timeout=PART_S)
        for answer in [*late, *(each for each in left if not _answered(each))]:
            ray.kill(self._actors.pop(leaving[answer]))


def _answered(answer: Any) -> bool:
    try:
        ray.get(answer)
    except RayError:
        return False
    return True


def _start(trial: TrialSpec, rank: int, name: str, lost: Collection[str]) -> Any:
    gang, group = trial.gang, ray.util.get_current_placement_group()
    actor = ray.remote(concurrency_groups={WATCH: 1})(Rank)
    return actor.options(
        name=name,
        num_cpus=gang.cpus_per_rank,
        num_gpus=gang.gpus_per_rank,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
    ).remote(gang.cpus_per_rank, gang.gpus_per_rank, lost)


def _nodes_of_bundles() -> list[str]:
    nodes = ray.util.placement_group_table(ray.util.get_current_placement_group())["bundles_to_node_id"]
    return [nodes[index] for index in sorted(nodes)]
