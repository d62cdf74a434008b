"""Measure the cost around the training for many trials: expand, identity, journal, collect, tables.

    python -m benchmarks.pipeline [10000 …] [--out pipeline.json]

The back end and the trainable's setup are fake, and every trial ends at once with invented figures. Everything between
the composed config and the tables is the product's code. Each size runs in a separate process, so that its peak memory
is its own. Prints seconds by stage and per trial, peak memory, hardware and versions. The reference is a bare write and
fsync of the same bytes per record.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.backends.backend import Backend, Listener
from orchestrator.plan.plan import Plan
from orchestrator.run.live_view import Display
from orchestrator.run.session import Session
from orchestrator.schedule.cluster import Footprint, Node
from orchestrator.schedule.queue import TrialQueue
from orchestrator.store.journal import Journal
from orchestrator.store.lock import DirectoryLock
from orchestrator.store.record import Kind, TrialOutcome
from orchestrator.store.results_folder import ResultsFolder
from sweeps.sweep import Setup, Sweep, trials
from sweeps.trial import TrialSpec

NODES = (Node(name="fake", cpus=1024, gpus=0),)
SEEDS = 10
PROVENANCE = {"host": "fake", "device_model": "cpu", "torch": "0", "python": platform.python_version()}


class FakeBackend:
    """A back end that ends every trial at once; figures follow from the trial, so that all cells differ."""

    dashboard_url = ""

    def nodes(self) -> tuple[Node, ...]:
        return NODES

    def ask_for(self, footprints: Sequence[Footprint]) -> None:
        """Do nothing: there is only this node."""

    def run(self, trials: Sequence[TrialSpec] | TrialQueue, results_dir: Path, listener: Listener) -> None:
        if isinstance(trials, TrialQueue):
            raise TypeError("it ends the trials in the order that it is given them")
        for trial in trials:
            listener.started(trial)
            speed = 1000.0 * trial.gpus**0.9 * (1 + 0.01 * trial.seed)
            metrics = {"samples_per_s": speed, "epoch_s": 1e5 / speed, "accuracy": 0.9, "val_accuracy": 0.9}
            listener.reported(trial, [{"epoch": 1, "loss": 0.5, "val_accuracy": 0.9}])
            listener.finished(trial, TrialOutcome(wall_s=1.0, metrics=metrics, provenance=PROVENANCE))

    def close(self) -> None: ...


class Endless:
    """An interrupt that never happens."""

    signal = None


def sweep_of(size: int) -> Sweep:
    cells = size // SEEDS
    axes: Mapping[str, Sequence[Any]] = {
        "gpus": [1, 2, 4, 8, 16],
        "device_batch_size": [16 * (1 + index) for index in range(cells // 5)],
        "seed": list(range(SEEDS)),
    }
    return Sweep(name="pipeline", axes=axes)


def setup(axes: Mapping[str, Any]) -> Setup:
    return Setup(
        trainable="fake:train",
        config={"model": {"name": "cnn"}, "data": {"name": "digits"}, "budget": {"epochs": 10}},
        reference_lr=0.1,
        reference_batch_size=32,
        optimizer={"name": "sgd"},
        strategy="auto",
        device="cpu",
        cpus_per_worker=None,
        cores_per_gpu=1,
        timing="exclusive",
        grad_accum_steps=1,
        uneven_batch=False,
        warmup_epochs=5,
        identity={"fingerprint": "benchmark"},
    )


def measure(size: int) -> dict[str, Any]:
    """Return the seconds by stage of one sweep with that many trials, in this process."""
    stages: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        stages[name] = time.perf_counter() - began

    backend: Backend = FakeBackend()
    screen = Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as root:
        folder = ResultsFolder(Path(root) / "results")
        with DirectoryLock(folder), Journal.open(folder.journal) as journal:
            with stage("expand"):
                specs = trials(sweep_of(size), setup)
            with stage("plan"):
                plan = Plan.of(specs, journal.history.all_ends, NODES)
            journal.append(Kind.SWEEP, {"fingerprint": {}})
            with stage("run"), Display(screen, waiting=specs) as display:
                session = Session(folder, journal, display, Endless())  # type: ignore[arg-type]
                backend.run(plan.to_run, folder.root, session)
            with stage("collect"):
                from tests.unit.orchestrator.frames import collect

                ends = list(journal.history.all_ends.values())
                frames = collect(ends, scaling="weak", reference_batch_size=32)
            with stage("tables"):
                from orchestrator.tables.table_files import write_tables

                write_tables(folder, *frames)
        with stage("bare_fsyncs"):
            bare_fsyncs(folder.journal, Path(root) / "bare")
        journal_bytes = folder.journal.stat().st_size
    total = sum(seconds for name, seconds in stages.items() if name != "bare_fsyncs")
    return {
        "trials": len(specs),
        "total_s": total,
        "ms_per_trial": 1e3 * total / len(specs),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "journal_mb": journal_bytes / 2**20,
        "stages_s": stages,
    }


def bare_fsyncs(journal: Path, target: Path) -> None:
    """Write and sync the same lines with plain system calls."""
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for line in journal.read_bytes().splitlines(keepends=True):
        os.write(file, line)
        os.fsync(file)
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000, 20_000])
    parser.add_argument("--out", type=Path, help="write the figures as JSON, too")
    parser.add_argument("--here", action="store_true", help="measure one size in this process")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure(asked.sizes[0])))
        return
    command = [sys.executable, "-m", "benchmarks.pipeline", "--here"]
    rows = [json.loads(subprocess.check_output([*command, str(size)])) for size in asked.sizes]
    about = {
        "host": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "versions": {name: version(name) for name in ("pandas", "rich", "filelock")}
        | {"python": sys.version.split()[0]},
    }
    for row in rows:
        told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["stages_s"].items())
        print(
            f"{row['trials']:>7} trials: {row['total_s']:6.2f} s, {row['ms_per_trial']:.2f} ms a trial,"
            f" peak {row['peak_memory_mb']:.0f} MB ({told})"
        )
    print(json.dumps(about))
    if asked.out:
        asked.out.write_text(json.dumps({"about": about, "sizes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
