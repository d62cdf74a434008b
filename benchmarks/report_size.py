"""Measure the cost of collecting and reporting a large sweep: by default 10,000 trials of 100 epochs each.

    python -m benchmarks.report_size [trials] [epochs]

Prints JSON: CPU and wall seconds by stage, the process's peak memory, the size of report.html. `collect` is the input
of the tables: replaying a journal of another process, all curves in one frame, and the frames of trials and cells.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.analysis.curve_frame import curves_frame
from orchestrator.config.request import Terms
from orchestrator.decision.recommendation import not_made
from orchestrator.report.page import write_report
from orchestrator.store.journal import encode
from orchestrator.store.results import read_results
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.tables.table_files import write_tables
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.report import demo

SEEDS = 10


def write(folder: ResultsFolder, trials: int, epochs: int) -> None:
    """Write the journal and the curves of that many trials, without syncing."""
    folder.create()
    one = next(record for record in demo.records() if record.status is Status.OK)
    lines = [encode("sweep", {"fingerprint": {}, "driver": demo.DRIVER})]
    for number in range(trials):
        cell, seed = divmod(number, SEEDS)
        gpus, batch = 2 ** (cell % 5), 16 * (1 + cell // 5)
        record = replace(
            one,
            trial_id=f"t{number}",
            cell_id=f"c{cell}",
            gpus=gpus,
            device_batch_size=batch,
            global_batch_size=batch * gpus,
            seed=seed,
            axes={"gpus": gpus, "device_batch_size": batch, "lr_rule": "none", "seed": seed},
            metrics={**one.metrics, "samples_per_s": 1000.0 * gpus**0.9 * (1 + 0.01 * seed)},
        )
        lines.append(encode("finished", record.to_json()))
        folder.trial(record.trial_id).mkdir()
        rows = (
            f'{{"epoch":{epoch},"loss":{2 / epoch + 0.001 * seed:.17g},"val_accuracy":{1 - 1 / (epoch + 1):.17g},'
            f'"epoch_s":{0.1 * epoch:.17g},"samples":{512 * epoch},"steps":{epoch},"lr":0.1}}\n'
            for epoch in range(1, epochs + 1)
        )
        folder.metrics(record.trial_id).write_text("".join(rows))
    folder.journal.write_bytes(b"".join(line + b"\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int, nargs="?", default=10_000)
    parser.add_argument("epochs", type=int, nargs="?", default=100)
    wanted = parser.parse_args()
    trials, epochs = wanted.trials, wanted.epochs
    stages: dict[str, dict[str, float]] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        clock, cpu = time.perf_counter(), time.process_time()
        yield
        stages[name] = {"clock_s": time.perf_counter() - clock, "cpu_s": time.process_time() - cpu}

    with tempfile.TemporaryDirectory() as root:
        folder = ResultsFolder(Path(root) / "results")
        write(folder, trials, epochs)
        with stage("collect"):
            results = read_results(folder)
            curves, problems = curves_frame(folder, results.history.ends)
            frames = collect(list(results.history.ends.values()), scaling="weak", reference_batch_size=32)
        collected_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        with stage("tables"):
            write_tables(folder, *frames)
        with stage("report"):
            decision = not_made(Terms())
            trials_frame, cells = frames[:2]
            write_report(
                SweepEnd(folder=folder, trials=trials_frame, cells=cells, recommendation=decision, curves=curves)
            )
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert len(curves) == trials * epochs and not problems and not results.problems
        told = {
            "trials": trials,
            "rows": len(curves),
            "stages": stages,
            "peak_memory_mb": {"collect": collected_mb, "all": peak_mb},
            "report_html_mb": folder.page.stat().st_size / 1e6,
        }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
