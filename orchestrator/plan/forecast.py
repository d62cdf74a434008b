"""A forecast of the trials on these nodes: when each starts and ends, and how many GPU-hours they take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.scheduling.node import Node
from orchestrator.scheduling.order import Expected
from orchestrator.scheduling.simulation import Stay, makespan_s, simulate
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The schedule, simulated with the known durations of trials."""

    stays: Sequence[Stay]
    """In the order of starting; in seconds if any duration is known."""
    expected_s: Expected

    @staticmethod
    def of(
        trials: Sequence[TrialSpec], nodes: Sequence[Node], expected_s: Expected, *, seed_by_seed: bool = False
    ) -> Forecast:
        """The forecast; a trial of unknown duration is assumed to take the median of the known ones."""
        known = [seconds for trial in trials if (seconds := expected_s(trial)) is not None]
        typical_s = statistics.median(known) if known else 1.0

        def takes_s(trial: TrialSpec) -> float:
            seconds = expected_s(trial)
            return typical_s if seconds is None else seconds

        stays = simulate(trials, nodes, expected_s, takes_s, seed_by_seed=seed_by_seed)
        return Forecast(stays=stays, expected_s=expected_s)

    @property
    def unknown(self) -> int:
        """Trials of unknown duration."""
        return sum(self.expected_s(stay.trial) is None for stay in self.stays)

    @property
    def makespan_s(self) -> float | None:
        """From the first start to the last end; None if no duration is known."""
        return None if self.stays and self.unknown == len(self.stays) else makespan_s(self.stays)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the trials whose duration is known."""
        known = ((stay.trial.gpus_held, self.expected_s(stay.trial)) for stay in self.stays)
        return sum(gpus * seconds for gpus, seconds in known if seconds is not None) / 3600
