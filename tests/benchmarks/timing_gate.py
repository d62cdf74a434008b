"""Does the gate catch what spoils a timing, and let clean windows pass? Windows of a training, some with a neighbour.

    python -m tests.benchmarks.timing_gate [--windows 40] [--seconds 2] [--out FILE.json]

In turn a window is left alone, and gets a neighbour: a process that takes a share of one core (10% to 100% of it) from
within the window on. Spoiled is a window whose neighbour took more than 5% of the cores' time, by its own account.
What else runs on the machine spoils windows, too: run it on a quiet one. The foreign share of clean windows is told, so
that it shows how quiet it was. Swap, throttling, clocks and GPUs are fakes, in
tests/unit/orchestrator/test_timing_gate.py and test_telemetry_*.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from orchestrator.telemetry_sampler import WINDOW, Sampler, Sampling
from orchestrator.timing_gate import FOREIGN_CPU

SHARES = (0.0, 1.0, 0.0, 0.5, 0.0, 0.25)
"""Of one core, taken by the neighbour, in turn."""

NEIGHBOUR = """
import os, sys, time
if os.fork():
    os._exit(0)
share, ends = float(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < ends:
    began = time.monotonic()
    while time.monotonic() - began < 0.05 * share:
        pass
    time.sleep(0.05 * (1 - share))
with open(sys.argv[3], "w") as file:
    file.write(str(time.process_time()))
"""


def window(share: float, seconds: float, told: Path) -> dict[str, Any]:
    """One window beside a neighbour, with what the gate saw and what the neighbour says that it took."""
    model, images = torch.nn.Linear(512, 512), torch.randn(256, 512)
    request = {"device": "cpu", "rank": 0, "gpus_per_rank": 0}
    with Sampler.on(Sampling(hz=5), request) as sampler:
        sampler.observe(WINDOW)
        if share:
            # Its parent ends at once, so that it is no child of this process's.
            subprocess.run([sys.executable, "-c", NEIGHBOUR, str(share), str(seconds), str(told)], check=True)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            model(images).sum().backward()
        sampler.observe("")
    deadline = time.monotonic() + 30
    while share and not (told.exists() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    taken_s = float(told.read_text()) if share else 0.0
    told.unlink(missing_ok=True)
    seen = sampler.readings().company
    return {
        "neighbour": taken_s / (seconds * len(os.sched_getaffinity(0))),
        "foreign_cpu": seen["foreign_cpu"],
        "by": seen.get("foreign_cpu_by", ""),
    }


def report(windows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of which were caught."""
    spoiled = [each for each in windows if each["neighbour"] > FOREIGN_CPU]
    clean = [each for each in windows if each["neighbour"] == 0]
    caught = [each for each in spoiled if each["foreign_cpu"] > FOREIGN_CPU]
    alarms = [each for each in clean if each["foreign_cpu"] > FOREIGN_CPU]
    return {
        "spoiled": len(spoiled),
        "caught": len(caught) / len(spoiled) if spoiled else None,
        "clean": len(clean),
        "alarms_on_clean": len(alarms) / len(clean) if clean else None,
        "foreign_cpu_of_clean_median": median(each["foreign_cpu"] for each in clean) if clean else None,
        "host": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[0],
        "windows": windows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    told = Path(f"/tmp/neighbour.{os.getpid()}")
    windows = [window(SHARES[number % len(SHARES)], chosen.seconds, told) for number in range(chosen.windows)]
    figures = report(windows)
    print(json.dumps({key: value for key, value in figures.items() if key != "windows"}, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
