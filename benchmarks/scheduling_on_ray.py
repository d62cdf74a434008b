"""Compare the makespan on real Ray with a lower bound: sleeping trials on logical GPUs, several nodes on one machine.

    python -m benchmarks.scheduling_on_ray on_ray.json [--trials 40] [--nodes 2] [--gpus 2] [--mean 9]
    python -m benchmarks.scheduling_on_ray commands.json --commands --nodes 4 --gpus 1

Trials request 1, 2 or 4 logical GPUs and sleep for a log-normal time; estimates are off by up to 30%. The bound is
max(Σ GPU-seconds / GPUs, longest trial) of the sleep. The makespan also includes the start of every process (1.5 s of
CPU for a supervisor, and for every rank) and Tune's work. On few cores, more GPUs or shorter trials would measure
Python's imports. With `--commands` each trial is the command `sleep` on 1, 2 or 4 whole nodes, a process on each.
Goal: makespan ≤ 1.10 × bound. It takes five minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # else a busy machine is too slow
os.environ.setdefault("RAY_worker_niceness", "0")  # as the files of mode=launch set it
os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"

import psutil  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from benchmarks.figures import machine, tell  # noqa: E402
from benchmarks.scheduling import lower_bound_s  # noqa: E402
from benchmarks.warmth import cold_starts  # noqa: E402
from orchestrator.backends.ray.backend import RayBackend  # noqa: E402
from orchestrator.config.settings import ClusterSection  # noqa: E402
from orchestrator.schedule.cluster import Node  # noqa: E402
from orchestrator.schedule.queue import TrialQueue  # noqa: E402
from orchestrator.schedule.simulation import makespan_s, simulate  # noqa: E402
from orchestrator.store.history import Durations  # noqa: E402
from orchestrator.store.record import TrialOutcome  # noqa: E402
from sweeps.layout import OWN_RANKS, Gang, Layout  # noqa: E402
from sweeps.status import Status  # noqa: E402
from sweeps.trial import TrialSpec  # noqa: E402
from tests.contract.trials import Recorder, request, trial  # noqa: E402


class Ends(Recorder):
    """A listener that notes how each trial ended, and when each started and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.first_s = math.inf
        self.last_s = 0.0
        self.stays: dict[str, tuple[TrialSpec, float, float, TrialOutcome]] = {}
        self._began: dict[str, float] = {}

    def started(self, trial: TrialSpec) -> None:
        self._began[trial.trial_id] = time.monotonic()
        self.first_s = min(self.first_s, time.monotonic())

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> bool:
        self.last_s = time.monotonic()
        self.outcomes[trial.trial_id] = outcome
        self.stays[trial.trial_id] = (trial, self._began[trial.trial_id], self.last_s, outcome)
        print(f"{self.last_s - self.first_s:6.1f} s: {trial.label} {outcome.status}", file=sys.stderr)
        return False


def sleepers(count: int, mean_s: float, seed: int = 0) -> tuple[list[TrialSpec], Durations, dict[str, float]]:
    """Return trials on logical GPUs, their estimates and durations."""
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


def as_command(trial: TrialSpec, seconds: float, gpus_per_node: int) -> TrialSpec:
    """Return the trial as a command that sleeps on as many whole nodes as the trial has GPUs."""
    nodes = int(trial.gpus)
    return dataclasses.replace(
        trial,
        gpus=nodes * gpus_per_node,
        gang=Gang(ranks=nodes, gpus_per_rank=gpus_per_node, cpus_per_rank=1, nodes=nodes),
        layout=Layout(strategy=OWN_RANKS, replicas=nodes * gpus_per_node),
        trainable="trainables.command.training:train",
        config={"trainable": {"argv": ["sleep", f"{seconds}"]}},
    )


def cpu_s(since: float = 0.0) -> float:
    """Return the CPU seconds of all processes on this machine's cores."""
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system - since)


def lost(ends: Ends, takes: Mapping[str, float], gpus: float) -> dict[str, float]:
    """Return how the GPU-seconds without a sleeping trial were spent, in seconds of the makespan.

    `cold` are a gang's first trials, whose ranks start within them. `idle` is time without a trial: gangs that start
    and end, and gaps of the order (see `order`).
    """
    pids: set[str] = set()
    cold = warm = heard = held = 0.0
    for one, began_s, ended_s, outcome in sorted(ends.stays.values(), key=lambda stay: stay[1]):
        within_s = outcome.wall_s - takes[one.trial_id]
        first = outcome.metrics["pid"] not in pids
        pids.add(outcome.metrics["pid"])
        cold += one.gpus * within_s * first
        warm += one.gpus * within_s * (not first)
        heard += one.gpus * (ended_s - began_s - outcome.wall_s)
        held += one.gpus * (ended_s - began_s)
    idle = gpus * (ends.last_s - ends.first_s) - held
    return {
        "in_cold_trials_s": cold / gpus,
        "in_warm_trials_s": warm / gpus,
        "until_heard_s": heard / gpus,
        "idle_s": idle / gpus,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--trials", type=int, default=40)
    arguments.add_argument("--nodes", type=int, default=2)
    arguments.add_argument("--gpus", type=int, default=2, help="of each node, logical ones")
    arguments.add_argument("--mean", type=float, default=9.0, help="seconds that a trial sleeps")
    arguments.add_argument("--commands", action="store_true", help="of whole nodes, instead of functions on GPUs")
    given = arguments.parse_args()
    trials, thought, takes = sleepers(given.trials, given.mean)
    if given.commands:
        trials = [as_command(one, takes[one.trial_id], given.gpus) for one in trials]
    resources = {"num_cpus": given.gpus, "num_gpus": given.gpus}
    cluster = Cluster(initialize_head=True, head_node_args=resources | {"include_dashboard": False})
    for _ in range(given.nodes - 1):
        cluster.add_node(**resources)
    asked = request(cluster=ClusterSection(address=cluster.address), workers="warm")
    backend = RayBackend(asked, Node(name="here", cpus=given.gpus, gpus=given.gpus))
    ends = Ends()
    try:
        nodes = backend.nodes()
        began_cpu_s = cpu_s()
        with tempfile.TemporaryDirectory() as results:
            (Path(results) / "trials").mkdir()  # ranks on this node make only their trial's own folder
            backend.run(TrialQueue(trials, durations=thought), Path(results), ends)
    finally:
        backend.close()
        cluster.shutdown()
    ended = list(ends.outcomes.values())
    assert len(ended) == len(trials) and all(outcome.status is Status.OK for outcome in ended), ended
    bound_s = lower_bound_s(trials, nodes, lambda trial: takes[trial.trial_id])
    stays = simulate(trials, nodes, thought.expected_s, lambda trial: takes[trial.trial_id])
    gpus = sum(node.gpus for node in nodes)
    # A command does not tell in which process it was started.
    gangs = {"gangs_started": len({outcome.metrics["pid"] for outcome in ended})} if not given.commands else {}
    causes = lost(ends, takes, gpus) if not given.commands else {}
    figures = {
        **machine(),
        "trials": given.trials,
        "nodes": [vars(node) | {"node_id": ""} for node in nodes],
        **gangs,
        "gangs_needed": len(cold_starts(stays, nodes)),
        "bound_s": bound_s,
        "makespan_s": ends.last_s - ends.first_s,
        "makespan_over_bound": (ends.last_s - ends.first_s) / bound_s,
        "lost": causes | {"order_s": makespan_s(stays) - bound_s},
        "cpu_s": cpu_s(began_cpu_s),
    }
    tell(figures, given.json)


if __name__ == "__main__":
    main()
