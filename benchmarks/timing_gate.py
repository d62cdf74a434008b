"""Test the timing gate on windows of a training, half of them with a deliberate neighbour.

    python -m benchmarks.timing_gate [--device cuda] [--of command] [--windows 120] [--seconds 2] [--out FILE.json]

Every second window gets a neighbour: processes that take an eighth to all of the cores from within the window on. On a
GPU these alternate with a process that multiplies matrices on the same device, from before the window or from within it
on. With `--of function` or `--of command` the timed part of a window lies between its first and its last report, as for
users' own code. A window is disturbed if its neighbours took more than 5% of the cores' time by their own account, or
used its GPU. It is caught if the gate gives any reason against it. Goals: at least 95% of the disturbed windows caught,
at most 2% false alarms. Use a quiet machine, because other programs disturb windows, too. For users' own code their CPU
time is summed process by process, and a clean window in which they took more than 5% does not count. About 5 minutes,
for commands 15. Swap, throttling and clocks are tested with fakes in tests/unit/orchestrator/telemetry.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.figures import machine, tell
from benchmarks.why_not_linear import Neighbour
from orchestrator.telemetry.columns import figures
from orchestrator.telemetry.foreign_load import Census, Owners, census, family
from orchestrator.telemetry.sampler import Sampler, Sampling, Watched
from orchestrator.telemetry.sources import WINDOW
from orchestrator.telemetry.timing_gate import FOREIGN_CPU, disturbances
from tests.unit.orchestrator.records import record_of
from tests.unit.trainables.ranks import request
from trainables.command.training import train as command
from trainables.context import Context

SHARES = (1.0, 0.5, 0.25, 0.125)
"""Of all cores, taken by neighbours, in turn."""
ON_GPU = ("from before", "from within")
MOST_ALARMS, LEAST_CAUGHT = 0.02, 0.95

BUSY = """
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


class OnCores:
    """Processes that are busy for a share of all cores' time, and report the time they took."""

    def __init__(self, share: float, seconds: float, told: Path) -> None:
        cores = len(os.sched_getaffinity(0))
        count = math.ceil(share * cores)
        self._told = [told.with_suffix(f".{number}") for number in range(count)]
        for path in self._told:  # their parents end at once, so that they are no children of this process's
            arguments = [str(share * cores / count), str(seconds), str(path)]
            subprocess.run([sys.executable, "-c", BUSY, *arguments], check=True)

    def taken_s(self) -> float:
        """Return the CPU seconds, once they have ended."""
        deadline = time.monotonic() + 30
        while not all(path.exists() and path.read_text() for path in self._told) and time.monotonic() < deadline:
            time.sleep(0.02)
        total_s = math.fsum(float(path.read_text()) for path in self._told)
        for path in self._told:
            path.unlink()
        return total_s


class Training:
    """Steps that keep the device busy."""

    def __init__(self, device: str) -> None:
        size = 512 if device == "cpu" else 4096
        self._model = torch.nn.Linear(size, size, device=device)
        self._images = torch.randn(size // 2, size, device=device)

    def until(self, ends: float) -> None:
        """Take steps until then."""
        while time.monotonic() < ends:
            for _ in range(5):
                self._model(self._images).sum().backward()
            if self._images.is_cuda:
                torch.cuda.synchronize()


SCRIPT = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(512, 256))
loader = torch.utils.data.DataLoader(data, 64, num_workers=1)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
open(sys.argv[2], "w").close()
ends, epoch = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < ends:
    for (x,) in loader:
        for _ in range(20):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    epoch += 1
    print(json.dumps({"epoch": epoch, "loss": 0.5}), flush=True)
"""


def own_code(of: str, seconds: float, observe: Callable[[str], None], begins: Callable[[], None]) -> None:
    """Run a function or a command for some seconds; `begins` is called when its training begins."""
    with tempfile.TemporaryDirectory() as folder:
        began, trial = Path(folder) / "began", Path(folder) / "trial"
        trial.mkdir()
        context = Context.alone(trial_dir=trial, observe=observe)
        if of == "function":
            begins()
            training, ends = Training("cpu"), time.monotonic() + seconds
            while time.monotonic() < ends:
                training.until(time.monotonic() + 0.2)
                context.report({"loss": 0.5})
            return
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)

        def begin() -> None:
            while not began.exists():
                time.sleep(0.02)
            begins()

        watching = threading.Thread(target=begin, daemon=True)
        watching.start()
        section = {"argv": [sys.executable, str(script), str(seconds), str(began)], "metrics": {"loss": None}}
        command({"trainable": section, "budget": {"epochs": 1}}, context)
        watching.join()


class Others:
    """The CPU time of processes that never were descendants of this one, between the first and the last report."""

    def __init__(self) -> None:
        self._own = {os.getpid()}
        self._first: Census | None = None
        self._last: Census | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def reported(self) -> None:
        """Note a report."""
        if self._first is None:
            self._first = census(time.monotonic())
        elif time.monotonic() - (self._last or self._first).time_s > 0.2:
            self._last = census(time.monotonic())

    def share(self) -> float:
        """Return their share of the cores' time; NaN after fewer than two reports."""
        self._ends.set()
        self._thread.join()
        first, last = self._first, self._last
        if first is None or last is None:
            return math.nan
        spent_s = last.steal_s - first.steal_s
        for pid in {*first.processes, *last.processes} - self._own:
            now, before = last.processes.get(pid), first.processes.get(pid)
            spent_s += (now.cpu_s if now else 0.0) - (before.cpu_s if before else 0.0)
        return max(0.0, spent_s) / (last.time_s - first.time_s) / len(os.sched_getaffinity(0))

    def _look(self) -> None:
        while not self._ends.wait(0.25):
            self._own |= family(census(0.0).processes, Owners(roots=self._own))


class Bench:
    """The state that all windows share."""

    def __init__(self, device: str, seconds: float, of: str) -> None:
        self._device, self._seconds, self._of = device, seconds, of
        self._told = Path(f"/tmp/neighbour.{os.getpid()}")
        self._training = Training(device)
        self._gpu = Neighbour(device, -1, gpu=0) if device == "cuda" else None
        self._training.until(time.monotonic() + 0.5)

    def window(self, share: float, on_gpu: str) -> dict[str, Any]:
        """Time one window beside neighbours; return the gate's verdict and the neighbours' CPU time."""
        sampler = Sampler(Sampling(hz=5), Watched.of(request(device=self._device, gpus_per_rank=1)))
        if self._of != "window":
            return self._own_code(share, sampler)
        busy = None
        with self._beside(on_gpu == "from before", at_once=True), sampler:
            sampler.observe(WINDOW)
            ends = time.monotonic() + self._seconds
            if share:
                busy = OnCores(share, self._seconds, self._told)
            with self._beside(on_gpu == "from within", at_once=False):
                self._training.until(ends)
                sampler.observe("")
        taken_s = busy.taken_s() if busy else 0.0
        metrics = figures([sampler.readings()], {}, alone=False)
        return {
            "neighbour": taken_s / (self._seconds * len(os.sched_getaffinity(0))),
            "on_gpu": on_gpu,
            "metrics": metrics,
        }

    def _own_code(self, share: float, sampler: Sampler) -> dict[str, Any]:
        others, busy = Others(), []
        with sampler:

            def observe(phase: str) -> None:
                sampler.observe(phase)
                others.reported()

            def begins() -> None:
                if share:
                    busy.append(OnCores(share, self._seconds, self._told))

            own_code(self._of, self._seconds, observe, begins)
        taken_s = sum(process.taken_s() for process in busy)
        return {
            "neighbour": taken_s / (self._seconds * len(os.sched_getaffinity(0))),
            "on_gpu": "",
            "others": others.share(),
            "metrics": figures([sampler.readings()], {}, alone=False),
        }

    def close(self) -> None:
        """End the neighbour."""
        if self._gpu:
            self._gpu.close()

    @contextmanager
    def _beside(self, wanted: bool, *, at_once: bool) -> Iterator[None]:
        """Start a neighbour on the GPU, if there should be one."""
        if not (wanted and self._gpu):
            yield
            return
        with self._gpu.at_work(at_once=at_once):
            yield


def judged(windows: list[dict[str, Any]]) -> list[str]:
    """Return the gate's first reason against each window, treated as trials of one device."""
    records = [record_of(trial_id=str(number), metrics=window["metrics"]) for number, window in enumerate(windows)]
    reasons = disturbances(records)
    return ["; ".join(reasons[record.trial_id]) for record in records]


def report(windows: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """Count the caught windows of each kind."""
    reasons = judged(windows)
    disturbed = [i for i, window in enumerate(windows) if window["neighbour"] > FOREIGN_CPU or window["on_gpu"]]
    clean = [
        i
        for i, window in enumerate(windows)
        if window["neighbour"] == 0 and not window["on_gpu"] and not window.get("others", 0.0) > FOREIGN_CPU
    ]
    caught = sum(bool(reasons[i]) for i in disturbed) / len(disturbed) if disturbed else None
    alarms = sum(bool(reasons[i]) for i in clean) / len(clean) if clean else None
    foreign = [windows[i]["metrics"].get("foreign_cpu", math.nan) for i in clean]
    kinds = {
        name: [bool(reasons[i]) for i in disturbed if (windows[i]["on_gpu"] or "on the cores") == name]
        for name in ("on the cores", *ON_GPU)
    }
    differences = [window["metrics"]["foreign_cpu"] - window["others"] for window in windows if "others" in window]
    return {
        "caught": caught,
        "alarms_on_clean": alarms,
        "holds": None if caught is None or alarms is None else caught >= LEAST_CAUGHT and alarms <= MOST_ALARMS,
        "wanted": {"caught": LEAST_CAUGHT, "alarms_on_clean": MOST_ALARMS},
        "disturbed": len(disturbed),
        "clean": len(clean),
        "caught_by_kind": {name: f"{sum(verdicts)} of {len(verdicts)}" for name, verdicts in kinds.items() if verdicts},
        "missed": [_told(windows[i]) for i in disturbed if not reasons[i]],
        "alarms": dict(Counter(reasons[i] for i in clean if reasons[i])),
        "foreign_cpu_of_clean_median": median(foreign) if foreign else None,
        "largest_difference_from_others": max(map(abs, differences)) if differences else None,
        **machine(device),
        "windows": [window | {"reason": reason} for window, reason in zip(windows, reasons, strict=True)],
    }


def _told(window: dict[str, Any]) -> str:
    on_gpu = f", one on the GPU {window['on_gpu']}" if window["on_gpu"] else ""
    return f"neighbours took {window['neighbour']:.1%} of the cores{on_gpu}"


def turns(device: str) -> Iterator[tuple[float, str]]:
    """Return the neighbour of each window: every second window has none."""
    kinds = [(share, "") for share in SHARES]
    if device == "cuda":
        kinds = [kind for pair in zip(kinds, [(0.0, when) for when in ON_GPU] * 2, strict=True) for kind in pair]
    while True:
        for kind in kinds:
            yield 0.0, ""
            yield kind


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--of", choices=("window", "function", "command"), default="window")
    parser.add_argument("--windows", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(chosen.device, chosen.seconds, chosen.of)
    try:
        kinds = turns(chosen.device)
        windows = [bench.window(*next(kinds)) for _ in range(chosen.windows)]
    finally:
        bench.close()
    tell(report(windows, chosen.device), chosen.out, long="windows")


if __name__ == "__main__":
    main()
