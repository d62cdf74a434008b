"""Compare the makespan of simulated schedules with a lower bound: mixed gangs on nodes with 8 GPUs each.

    python -m benchmarks.scheduling scheduling.json [--trials 10000] [--many 100000]

Trials request 1, 2, 4 or 8 GPUs (40, 25, 20, 15%) and take a log-normal time (median 300 s, σ = 1); estimates are off
by up to 30%. The bound is max(Σ GPU-seconds / GPUs, longest trial). Tune's order is simulated on the same list: every
trial that fits starts in the order of the list, over several nodes if no single node has room, without reservations.
`gangs_started` counts gangs that found no processes of their footprint: 15 on a node of 8 GPUs if each fills it
once. Goals: makespan ≤ 1.05 × bound, and 100,000 trials planned in 30 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, tell
from benchmarks.warmth import cold_starts
from orchestrator.schedule.cluster import Footprint, Node, weight
from orchestrator.schedule.simulation import ScheduledTrial, makespan_s, simulate
from sweeps.layout import Gang
from sweeps.trial import TrialSpec
from tests.contract.trials import trial

GPUS_A_NODE = 8
CLUSTERS = (8, 64, 1024)
WANTED_RATIO, WANTED_S = 1.05, 30.0
MEDIAN_S, SIGMA, WRONG = 300.0, 1.0, 0.3
Seconds = Mapping[str, float]


def mixed(count: int, seed: int) -> tuple[list[TrialSpec], Seconds, Seconds]:
    """Return trials in random order, their durations and the estimates."""
    rng = random.Random(seed)
    plain = dataclasses.replace(trial("", "quick", timing="device"), device="cuda")
    trials, takes, thought = [], {}, {}
    for number in range(count):
        gpus = rng.choices((1, 2, 4, 8), (0.40, 0.25, 0.20, 0.15))[0]
        gang = Gang(ranks=gpus, gpus_per_rank=1, cpus_per_rank=8)
        key = str(number)
        trials.append(dataclasses.replace(plain, trial_id=key, cell_id=key, seed=number % 3, gpus=gpus, gang=gang))
        takes[key] = rng.lognormvariate(math.log(MEDIAN_S), SIGMA)
        thought[key] = takes[key] * rng.uniform(1 - WRONG, 1 + WRONG)
    return trials, takes, thought


def nodes(gpus: int) -> list[Node]:
    """Return nodes of 8 GPUs and 64 cores."""
    return [Node(name=f"n{number}", cpus=64, gpus=GPUS_A_NODE) for number in range(gpus // GPUS_A_NODE)]


def fifo(trials: Sequence[TrialSpec], takes: Seconds, gpus: int) -> tuple[float, int]:
    """Return the makespan of Tune's order, and how many gangs spanned nodes although one would have fitted."""
    free = [GPUS_A_NODE] * (gpus // GPUS_A_NODE)
    queues: dict[int, deque[tuple[int, TrialSpec]]] = {}
    for number, spec in enumerate(trials):
        queues.setdefault(spec.gang.ranks, deque()).append((number, spec))
    ends: list[tuple[float, int, list[tuple[int, int]]]] = []
    now_s, torn = 0.0, 0
    while ends or any(queues.values()):
        while fitting := [queue[0] for size, queue in queues.items() if queue and size <= sum(free)]:
            number, spec = min(fitting, key=lambda entry: entry[0])
            ranks = spec.gang.ranks
            queues[ranks].popleft()
            held = packed(free, ranks)
            torn += len(held) > 1
            heapq.heappush(ends, (now_s + takes[spec.trial_id], number, held))
        now_s, _, held = heapq.heappop(ends)
        for node, count in held:
            free[node] += count
    return now_s, torn


def packed(free: list[int], ranks: int) -> list[tuple[int, int]]:
    """Take the fullest node with room for all, else the emptiest ones."""
    fullest = min((node for node, left in enumerate(free) if left >= ranks), key=lambda node: free[node], default=None)
    by_room = sorted(range(len(free)), key=lambda node: -free[node]) if fullest is None else [fullest]
    held = []
    for node in by_room:
        count = min(free[node], ranks)
        if count:
            held.append((node, count))
            free[node] -= count
            ranks -= count
    return held


def idle_share(stays: Sequence[ScheduledTrial], gpus: int) -> float:
    """Return the share of all GPU-time until the last end in which a GPU had no trial."""
    busy_s = sum(stay.trial.gpus * (stay.end_s - stay.start_s) for stay in stays)
    return 1 - busy_s / (makespan_s(stays) * gpus)


def lower_bound_s(trials: Sequence[TrialSpec], nodes: Sequence[Node], takes_s: Callable[[TrialSpec], float]) -> float:
    """Return a lower bound for any order: max(Σ GPU-seconds / GPUs, longest trial); without GPUs in cores."""
    have = sum(node.gpus for node in nodes) or sum(node.cpus for node in nodes)
    weights = {footprint: weight(footprint, nodes) for footprint in set(map(Footprint.of, trials))}
    work = sum(weights[Footprint.of(trial)] * takes_s(trial) for trial in trials)
    return max(work / have, max(map(takes_s, trials), default=0.0))


def measure(count: int, gpus: int, seed: int) -> dict[str, Any]:
    trials, takes, thought = mixed(count, seed)
    cluster = nodes(gpus)
    began, began_cpu = time.perf_counter(), time.process_time()
    stays = simulate(trials, cluster, lambda trial: thought[trial.trial_id], lambda trial: takes[trial.trial_id])
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    bound_s = lower_bound_s(trials, cluster, lambda trial: takes[trial.trial_id])
    fifo_s, torn = fifo(trials, takes, gpus)
    return {
        "trials": count,
        "gpus": gpus,
        "bound_s": bound_s,
        "longest_s": max(takes.values()),
        "makespan_over_bound": makespan_s(stays) / bound_s,
        "idle_share": idle_share(stays, gpus),
        "gangs_started": len(cold_starts(stays, cluster)),
        "fifo_over_bound": fifo_s / bound_s,
        "fifo_torn_gangs": torn,
        "planned_in_s": wall_s,
        "planned_in_cpu_s": cpu_s,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--trials", type=int, default=10_000, help="on clusters of 8, 64 and 1,024 GPUs")
    arguments.add_argument("--many", type=int, default=100_000, help="on 64 and 1,024 GPUs, for the time it takes")
    arguments.add_argument("--seeds", type=int, default=3, help="lists of trials drawn for each cluster")
    arguments.add_argument("--few", type=int, default=100, help="on 8 and 64 GPUs, as a small sweep; not held to 1.05")
    given = arguments.parse_args()
    rows = [measure(given.trials, gpus, seed) for gpus in CLUSTERS for seed in range(given.seeds)]
    rows += [measure(given.many, gpus, seed=0) for gpus in CLUSTERS[1:]]
    few = [measure(given.few, gpus, seed) for gpus in CLUSTERS[:2] for seed in range(given.seeds)]
    tell({**machine(), "wanted": [WANTED_RATIO, WANTED_S], "rows": rows, "few": few}, given.json)
    assert all(row["makespan_over_bound"] <= WANTED_RATIO for row in rows)


if __name__ == "__main__":
    main()
