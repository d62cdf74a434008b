"""Asks the ranks of a running gang whether they make progress, without waiting for their answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from orchestrator.backends.on_ray.rank import WATCH
from orchestrator.backends.watch import Limits, Overdue, Watch

STACKS_S = 1.0
"""How long a rank that hangs may take to return its stacks."""


class RankWatch:
    """Watches the ranks of one attempt, from construction on."""

    def __init__(self, ranks: Sequence[Any], turn: int, limits: Limits) -> None:
        """`turn` is the attempt's number; see `Rank`."""
        self._ranks, self._turn = ranks, turn
        self._watch = Watch(limits, ranks=len(ranks), now=time.monotonic())
        self._asked: dict[int, Any] = {}
        self._ask_at = 0.0

    def ended(self, rank: int) -> None:
        """Stop asking this rank, which has ended."""
        self._watch.ended(rank)

    def overdue(self) -> Overdue | None:
        """Why to end the trial now; None if it may continue."""
        now, every_s = time.monotonic(), self._watch.look_again_s()
        if every_s is not None and now >= self._ask_at:
            self._ask_at = now + every_s
            self._watch.heard(self._answers(), now)
            for rank in set(range(len(self._ranks))) - set(self._asked):
                self._asked[rank] = self._ranks[rank].moves.options(concurrency_group=WATCH).remote(self._turn)
        return self._watch.overdue(now)

    def stacks(self, rank: int) -> str:
        """The stacks of a rank's threads, if it still answers."""
        try:
            asked = self._ranks[rank].stacks.options(concurrency_group=WATCH).remote()
            return str(ray.get(asked, timeout=STACKS_S))
        except RayError as error:
            return f"rank {rank} does not say where it is: {type(error).__name__}\n"

    def _answers(self) -> dict[int, int]:
        """The answers received since the last call: how often each rank has moved."""
        if not self._asked:
            return {}
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=0)
        found = {}
        for rank in [rank for rank, answer in self._asked.items() if answer in ready]:
            try:
                found[rank] = ray.get(self._asked.pop(rank))
            except RayError:  # the rank is dead; the call of `run` fails too
                continue
        return found
