"""The schedule on real Ray, with GPUs that only its books know: trials that sleep, on one machine as several nodes.

    python tests/benchmarks/scheduling_on_ray.py on_ray.json [--trials 40] [--nodes 2] [--gpus 2] [--mean 9]

Trials ask for 1, 2 or 4 logical GPUs and sleep for a log-normal time, which was estimated between 30% too short and
30% too long. The bound is max(Σ GPU-seconds / GPUs, longest trial) of what they slept; beyond it the makespan holds the
start of every process (a supervisor's imports take 4 s of CPU, a rank's 2) and Tune's own work: on few cores more GPUs
than these, or shorter trials, measure how fast Python imports. Wanted: makespan ≤ 1.10 × bound. It takes five minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # as a script it is started with its own folder on the path
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # else a busy machine is too slow
os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"

from ray.cluster_utils import Cluster  # noqa: E402

from orchestrator.backends.agenda import Agenda  # noqa: E402
from orchestrator.backends.on_ray.backend import RayBackend  # noqa: E402
from orchestrator.journal.durations import Durations  # noqa: E402
from orchestrator.journal.outcome import Outcome  # noqa: E402
from sweeps.simulation import lower_bound_s, simulate  # noqa: E402
from sweeps.status import Status  # noqa: E402
from sweeps.trial import Gang, TrialSpec  # noqa: E402
from sweeps.warmth import cold_starts  # noqa: E402
from tests.contract.trials import trial  # noqa: E402


class Ends:
    """A listener that notes how each trial ended and when the first started."""

    def __init__(self) -> None:
        self.first_s = math.inf
        self.last_s = 0.0
        self.outcomes: list[Outcome] = []

    def started(self, trial: TrialSpec) -> None:
        self.first_s = min(self.first_s, time.monotonic())

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        self.last_s = time.monotonic()
        self.outcomes.append(outcome)
        print(f"{self.last_s - self.first_s:6.1f} s: {trial.label} {outcome.status}", file=sys.stderr)

    def ticked(self) -> None: ...

    def stopping(self) -> bool:
        return False


def sleepers(count: int, mean_s: float, seed: int = 0) -> tuple[list[TrialSpec], Durations, dict[str, float]]:
    """Trials on logical GPUs, what they are thought to take, and what they take."""
    rng = random.Random(seed)
    trials, thought, takes = [], Durations(), {}
    for number in range(count):
        gpus = rng.choices((1, 2, 4), (0.5, 0.3, 0.2))[0]
        key, seconds = f"{number}", rng.lognormvariate(math.log(mean_s) - 0.125, 0.5)
        one = trial(key, "quick", timing="device", pace_s=seconds)
        gang = Gang(ranks=gpus, gpus_per_rank=1, cpus_per_rank=1)
        axes = {"gpus": gpus, "cell": number}
        trials.append(dataclasses.replace(one, gpus=gpus, gang=gang, axes=axes, seed=number % 3))
        takes[key] = seconds
        thought.add(key, axes, seconds * rng.uniform(0.7, 1.3))
    return trials, thought, takes


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--trials", type=int, default=40)
    arguments.add_argument("--nodes", type=int, default=2)
    arguments.add_argument("--gpus", type=int, default=2, help="of each node, logical ones")
    arguments.add_argument("--mean", type=float, default=9.0, help="seconds that a trial sleeps")
    given = arguments.parse_args()
    trials, thought, takes = sleepers(given.trials, given.mean)
    each = {"num_cpus": given.gpus, "num_gpus": given.gpus}
    cluster = Cluster(initialize_head=True, head_node_args=each | {"include_dashboard": False})
    for _ in range(given.nodes - 1):
        cluster.add_node(**each)
    backend = RayBackend(address=cluster.address, dashboard=False)
    ends = Ends()
    try:
        nodes = backend.nodes()
        with tempfile.TemporaryDirectory() as results:
            backend.run(Agenda(trials, durations=thought), Path(results), ends)
    finally:
        backend.close()
        cluster.shutdown()
    assert len(ends.outcomes) == len(trials) and all(each.status is Status.OK for each in ends.outcomes), ends.outcomes
    bound_s = lower_bound_s(trials, nodes, lambda each: takes[each.trial_id])
    stays = simulate(trials, nodes, thought.expected_s, lambda each: takes[each.trial_id])
    cold = cold_starts(stays, nodes)
    figures = {
        "about": {"machine": platform.platform(), "ray": version("ray"), "load_average": os.getloadavg()[0]},
        "trials": given.trials,
        "nodes": [vars(node) | {"node_id": ""} for node in nodes],
        "gangs_started": len({each.metrics["pid"] for each in ends.outcomes}),
        "gangs_needed": len(cold),
        "bound_s": bound_s,
        "makespan_s": ends.last_s - ends.first_s,
        "makespan_over_bound": (ends.last_s - ends.first_s) / bound_s,
    }
    given.json.write_text(json.dumps(figures, indent=2))
    print(figures)


if __name__ == "__main__":
    main()
