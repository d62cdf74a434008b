"""Compare a trial of a command over two nodes with torchrun started by hand on both, in turns.

    python -m benchmarks.command_over_nodes over_nodes.json [--pairs 10]

Two raylets on this machine are the nodes; the trials of one sweep follow one another there. Each trial waits for a
file before it starts torchrun. Meanwhile torchrun is started twice by hand, with the same script and environment. The
overhead of a trial is the time from the end of the trial before it to its own end, without that wait, minus the time
that torchrun took by hand. It includes the end of a trial, the start of the next one, and the counting of steps. Goal:
a median of at most 1 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, tell
from sweeps.ports import free_port
from tests.integration.test_several_nodes import cluster_of

TRAINING = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print('{"epoch": 1, "loss": 1.0}')
dist.destroy_process_group()
"""

GATED = """
import os, pathlib, subprocess, sys, time
folder, number, node = pathlib.Path(os.environ["SWEEP_SOURCE_DIR"]), sys.argv[1], os.environ["SWEEP_NODE_RANK"]
def note(what):
    with open(folder / "times", "a") as file:
        file.write(f"{what} {number} {node} {time.time()}\\n")
note("waiting")
while not (folder / f"go{number}").exists():
    time.sleep(0.005)
note("began")
status = subprocess.call([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", folder / "train.py"])
note("ended")
sys.exit(status)
"""


def by_hand(folder: Path) -> float:
    """Return the seconds of torchrun on two nodes, started together as in two shells."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place |= {"PET_MASTER_ADDR": place["MASTER_ADDR"], "PET_MASTER_PORT": place["MASTER_PORT"], "PET_NNODES": "2"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", str(folder / "train.py")]
    own = os.environ | place | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    began_s = time.monotonic()
    nodes = [
        subprocess.Popen(command, env=own | {"PET_NODE_RANK": str(node)}, stdout=subprocess.DEVNULL) for node in (0, 1)
    ]
    assert [node.wait() for node in nodes] == [0, 0]
    return time.monotonic() - began_s


def times(folder: Path, what: str, number: int) -> list[float]:
    """Return when the nodes of a trial did this, as soon as both have."""
    deadline_s = time.monotonic() + 300
    while True:
        path = folder / "times"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        at = [float(line[3]) for line in lines if line[:2] == [what, str(number)]]
        if len(at) == 2:
            return at
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"trial {number} has not {what}")
        time.sleep(0.02)


def in_turns(nodes: Any, pairs: int) -> dict[str, list[float]]:
    """Return the seconds by hand and the overhead of each trial but the first."""
    folder = nodes.folder
    (folder / "train.py").write_text(TRAINING)
    (folder / "gated.py").write_text(GATED)
    numbers = list(range(pairs + 1))
    axes = ("sweep.axes.gpus=[2]", "sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]", "warmup_epochs=0")
    own = (f"trainable.python={sys.executable}", "sweep.name=gated", "nodes=2", "rerun_invalid=0")
    seeds = f"sweep.axes.seed={numbers}"
    words = "{python} gated.py {seed} {gpus_per_node} {device_batch_size}"
    driver = nodes.start("sweep=batch_scaling", *axes, seeds, *own, "--", *words.split())
    figures: dict[str, list[float]] = {"by_hand_s": [], "trial_s": [], "overhead_s": []}
    for number in numbers:
        waiting_s = times(folder, "waiting", number)
        hand_s = by_hand(folder) if number else 0.0
        (folder / f"go{number}").touch()
        began_s, ended_s = times(folder, "began", number), times(folder, "ended", number)
        if number:
            before_s = max(times(folder, "ended", number - 1))
            trial_s = max(ended_s) - before_s - (max(began_s) - max(waiting_s))
            for name, value in zip(figures, (hand_s, trial_s, trial_s - hand_s), strict=True):
                figures[name].append(value)
                print(f"{name} {value:.2f}", end="; ", file=sys.stderr)
            print(file=sys.stderr)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 0, out + err
    return figures


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--pairs", type=int, default=10)
    given = arguments.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), 1, 1) as nodes:
        figures = in_turns(nodes, given.pairs)
    tell({**about, **figures, "median_overhead_s": statistics.median(figures["overhead_s"])}, given.json)


if __name__ == "__main__":
    main()
