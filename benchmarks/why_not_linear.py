"""Test whether the split of lost efficiency names the cause: two ranks with a known delay, or with a neighbour.

    python -m benchmarks.why_not_linear [--device cuda] [--rounds 3] [--out FILE.json]

The pair trains in turn without a delay; with a delay in its input, on its host, in the exchange of gradients, in the
passes of both ranks and of one; and with a neighbour that works on the second rank's GPU (or core) all the time. The
extra time of a step against the undisturbed one of the same round must appear in the part of that name. Goals: at least
80% there, and at most 10% in no part. About 2 minutes on two GPUs. On CPUs each rank is bound to a core, and the
neighbour to the second rank's; with a single core there is no neighbour.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.figures import machine, tell
from benchmarks.gpu_throughput import Ranks
from sweeps.trial import RankRequest
from tests.unit.trainables.ranks import rendezvous, request, run

PARTS = ("data", "host", "compute", "communication", "imbalance")
PART_OF = {"input": "data", "host": "host", "exchange": "communication", "passes": "compute", "one rank": "imbalance"}
"""Where each delay belongs."""
NEIGHBOUR = "neighbour"
WANTED, AT_MOST = 0.8, 0.1

DELAY_S = {"cpu": 0.02, "cuda": 0.04}
"""On a GPU much more than host and device have to spare beside each other, so that all of it shows in the step."""
TIMED = {"warmup_steps": 5, "warmup_s": 0.3, "val_fraction": 0.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "cpu": {"trainable": {**TIMED, "window_s": 0.5, "window_steps": 20}, "budget": {"steps": 5}},
    "cuda": {
        "trainable": {
            **TIMED,
            "window_s": 1.0,
            "window_steps": 50,
            "precision": "bf16",
            "memory_format": "channels_last",
        },
        "model": {"name": "resnet18"},
        "data": {"name": "synthetic", "shape": [3, 32, 32], "train_size": 16_384, "test_size": 64},
        "budget": {"steps": 5},
    },
}
SHARE = {"cpu": 32, "cuda": 1024}
"""On a GPU so many that its host waits for it: else a neighbour on it would cost the step nothing."""

WORK = """
import os, signal, sys
import torch
device, core = sys.argv[1], int(sys.argv[2])
if core >= 0:
    os.sched_setaffinity(0, {core})
torch.set_num_threads(1)
def work():
    size = 2048 if device == "cuda" else 256
    left, right = torch.randn(2, size, size, device=device)
    told = False
    while True:
        left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        if not told:
            print("working", flush=True)
            told = True
print("resting", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        work()
    sys.stdin.readline()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("resting", flush=True)
"""


class Neighbour:
    """A process that computes on a GPU, or on a core, on request."""

    def __init__(self, device: str, core: int, gpu: int) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible[gpu] if device == "cuda" else ""}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORK, device, str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._await("resting")

    @contextmanager
    def at_work(self, *, at_once: bool = True) -> Iterator[None]:
        """Compute while the block lasts, or from somewhere within it on; at rest nothing is on a GPU."""
        self._tell()
        if at_once:
            self._await("working")
        try:
            yield
        finally:
            self._tell()
            self._await("resting")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _tell(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("next\n")
        self._process.stdin.flush()

    def _await(self, word: str) -> None:
        assert self._process.stdout
        while (said := self._process.stdout.readline().strip()) != word:
            assert said, f"the neighbour has ended, and was to say {word}"


def trial(asked: RankRequest, cause: str, delay_s: float, core: int) -> dict[str, Any]:
    """Return one rank's metrics of a training with this delay in its step; `core` >= 0: on this one."""
    from trainables.inputs.inputs import ResidentInputs
    from trainables.step import training_step
    from trainables.supervised import loop
    from trainables.timed_window import device_pause

    if core >= 0:
        os.sched_setaffinity(0, {core})
    wait_on_device = device_pause(asked.trial.device, delay_s)
    step = training_step.TrainingStep
    places: dict[str, tuple[Any, str, Callable[[], None]]] = {
        "input": (ResidentInputs, "_block", lambda: time.sleep(delay_s)),
        "host": (loop.Loop, "step", lambda: time.sleep(delay_s)),
        "passes": (step, "loss_of", wait_on_device),
        "one rank": (step, "loss_of", wait_on_device),
    }
    with ExitStack() as patched:
        if cause == "exchange":
            patched.enter_context(patch.object(step, "update", _behind_exchange(step.update, wait_on_device)))
        elif cause in places and (cause != "one rank" or asked.rank == 1):
            owner, name, wait = places[cause]
            patched.enter_context(patch.object(owner, name, _before(getattr(owner, name), wait)))
        if cause == "input":
            patched.enter_context(patch.object(ResidentInputs, "_block_steps", 1))
        answer = run(asked)
    assert answer["status"] == "ok", answer
    return {name: answer["metrics"][f"step_{name}_s"] for name in PARTS} | {"step": answer["metrics"]["step_s"]}


def _before(function: Callable[..., Any], wait: Callable[[], None]) -> Callable[..., Any]:
    def waiting(*given: Any, **named: Any) -> Any:
        wait()
        return function(*given, **named)

    return waiting


def _behind_exchange(update: Callable[..., Any], wait: Callable[[], None]) -> Callable[..., Any]:
    def updating(step: Any, *given: Any) -> None:
        update(step, *given)
        if step._exchanges:
            wait()

    return updating


class Pair:
    """Two ranks, and the neighbour of the second."""

    def __init__(self, device: str) -> None:
        self._device, self._delay_s = device, DELAY_S[device]
        cores = sorted(os.sched_getaffinity(0))
        self._cores = cores[:2] if device == "cpu" and len(cores) > 1 else [-1, -1]
        self._ranks = Ranks(2, device)
        alone = device == "cpu" and len(cores) == 1
        self._neighbour = None if alone else Neighbour(device, self._cores[1], gpu=1)
        self.causes = [*PART_OF] if alone else [*PART_OF, NEIGHBOUR]

    def steps(self, cause: str) -> dict[str, float]:
        """Return the parts of a step in seconds, as rank 0 reports them."""
        place = {"gang_id": f"{cause} {time.monotonic()}", "rendezvous": rendezvous(), "device": self._device}
        shares = (SHARE[self._device],) * 2
        asked = [request(rank=rank, shares=shares, config=CONFIGS[self._device], **place) for rank in range(2)]
        given = [(its, cause, self._delay_s, core) for its, core in zip(asked, self._cores, strict=True)]
        if cause != NEIGHBOUR or not self._neighbour:
            parts_by_rank = self._ranks.call(trial, *given)
        else:
            with self._neighbour.at_work():
                parts_by_rank = self._ranks.call(trial, *given)
        own: dict[str, float] = parts_by_rank[0]
        return own

    def close(self) -> None:
        """End all processes."""
        self._ranks.close()
        if self._neighbour:
            self._neighbour.close()


def compared(disturbed: dict[str, float], clean: dict[str, float], part: str) -> dict[str, Any]:
    """Return how much longer the step took, and the share of each part in that."""
    longer = disturbed["step"] - clean["step"]
    grew = {name: (disturbed[name] - clean[name]) / longer for name in PARTS}
    return {
        "longer_ms": longer * 1e3,
        "in_its_part": grew[part],
        "in_no_part": 1 - sum(grew.values()),
        "most_elsewhere": max(grew[name] for name in PARTS if name != part),
    }


def report(rounds: list[dict[str, dict[str, float]]], device: str) -> dict[str, Any]:
    """Return medians over the rounds by cause."""
    causes = {}
    for cause in [name for name in rounds[0] if name != "clean"]:
        part = PART_OF.get(cause, "imbalance")
        comparisons = [compared(one[cause], one["clean"], part) for one in rounds]
        row: dict[str, Any] = {name: round(median(one[name] for one in comparisons), 4) for name in comparisons[0]}
        holds = row["in_its_part"] >= WANTED and abs(row["in_no_part"]) <= AT_MOST
        causes[cause] = {"part": part, **row, "holds": holds}
    return {
        "causes": causes,
        "delay_ms": DELAY_S[device] * 1e3,
        "wanted": {"in_its_part": WANTED, "in_no_part": f"within {AT_MOST}"},
        "rounds": len(rounds),
        **machine(device),
        "steps_ms": [{c: {k: round(v * 1e3, 3) for k, v in parts.items()} for c, parts in r.items()} for r in rounds],
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(SHARE), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    pair = Pair(given.device)
    try:
        pair.steps("clean")  # compiles, allocates and meets for the first time
        rounds = [{cause: pair.steps(cause) for cause in ("clean", *pair.causes)} for _ in range(given.rounds)]
    finally:
        pair.close()
    tell(report(rounds, given.device), given.out, long="steps_ms")


if __name__ == "__main__":
    main()
