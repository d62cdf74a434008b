"""Measure the cost of durability: `python -m benchmarks.fault_overhead [--folder FOLDER]`.

Compares a journal's append with a bare write and fsync of the same bytes, in turns. Then measures the driver's work for
one trial of a second (journal, config, learning curve, checksums, secrets, the alarm) as a share of it. Only ratios
within one run are meaningful.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.inprocess import RunningTrial
from orchestrator.config.settings import Settings
from orchestrator.run.interrupt import Interrupt
from orchestrator.run.session import Session
from orchestrator.store.journal import Journal, encode
from orchestrator.store.record import Kind, TrialOutcome, TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.secrets import Secrets
from tests.contract.trials import trial

ROUNDS = 400
BLOCKS = 5
ROWS = 10
TRIAL_S = 1.0


class Nobody:
    """A display for a machine without a screen."""

    def __getattr__(self, name: str) -> Any:
        return lambda *anything: None


def seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def record() -> dict[str, Any]:
    """Return the end of a trial of `sweep=batch_scaling` with realistic form and size."""
    chance = random.Random(7)
    files = {name: f"{chance.getrandbits(256):064x}" for name in ("config.yaml", "metrics.jsonl", "telemetry.parquet")}
    figures = {f"a_figure_of_it_{i}": chance.random() for i in range(30)}
    outcome = TrialOutcome(wall_s=TRIAL_S, metrics=figures, provenance={"host": "h", "torch": "2.15.0"})
    ended = TrialRecord.of(trial("0123456789abcdef", "quick"), outcome, attempt=1, finished_at="2026-11-22T01:05:18")
    return {**ended.to_json(), "files": files}


@dataclass(frozen=True, kw_only=True)
class Append:
    """Median seconds of a journal's append and of a bare write and fsync."""

    bare_s: float
    append_s: float
    cpu_s: float
    """What the append takes of the processor beyond the bare one: the share that no other process makes longer."""
    ratios: list[float]
    """Block by block."""
    size: int
    """Bytes of a record."""


def append_ratio(folder: Path) -> Append:
    """Measure both in turns, so that both meet the same disk."""
    value = record()
    line = encode(Kind.FINISHED, value) + b"\n"
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with Journal.open(folder / "journal.jsonl") as journal:
        acts = [lambda: (os.write(bare, line), os.fsync(bare)), lambda: journal.append(Kind.FINISHED, value)]
        spent, cpu = list[list[float]]([[], []]), list[list[float]]([[], []])
        for number in range(BLOCKS * ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):  # the second one finds the disk as the other left it
                before = time.thread_time()
                spent[which].append(seconds(acts[which]))
                cpu[which].append(time.thread_time() - before)
    os.close(bare)
    blocks = [
        [statistics.median(times[at : at + ROUNDS]) for times in spent] for at in range(0, BLOCKS * ROUNDS, ROUNDS)
    ]
    bare_s, append_s = map(statistics.median, spent)
    return Append(
        bare_s=bare_s,
        append_s=append_s,
        cpu_s=statistics.median(cpu[1]) - statistics.median(cpu[0]),
        ratios=sorted(b / a for a, b in blocks),
        size=len(line),
    )


def trial_cost(root: Path) -> float:
    """Return the median seconds that a driver spends on one trial."""
    folder = ResultsFolder(root / "results")
    folder.create()
    display: Any = Nobody()
    secrets = Secrets({"a-value-from-the-environment": "<hidden>"})
    costs = []
    with Journal.open(folder.journal) as journal:
        session = Session(folder, journal, display, Interrupt(), retries=1, secrets=secrets)
        for number in range(ROUNDS // 4):
            spec = trial(f"t{number}", "quick", optimizer={"name": "sgd", "lr": 0.1}, model={"name": "small_cnn"})
            outcome = TrialOutcome(wall_s=TRIAL_S, metrics={f"m{i}": 0.5 for i in range(20)})

            def whole(planned: Any = spec, outcome: TrialOutcome = outcome) -> None:
                session.started(planned)
                with RunningTrial(planned, session, Settings(hang_s=1800)) as running:
                    for epoch in range(ROWS):
                        running.emit({"epoch": epoch, "loss": 0.5, "val_accuracy": 0.5})
                session.finished(planned, outcome)

            costs.append(seconds(whole))
    return statistics.median(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="a folder on the disk to measure")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        append = append_ratio(Path(folder))
        print(f"write+fsync of {append.size} bytes {1e3 * append.bare_s:.3f} ms,", end=" ")
        print(f"journal append {1e3 * append.append_s:.3f} ms, {1e6 * append.cpu_s:.1f} us of it own CPU:", end=" ")
        spread = f"{append.ratios[0]:.2f} to {append.ratios[-1]:.2f} in {BLOCKS} blocks"
        print(f"{append.append_s / append.bare_s:.2f} times, {spread} (wanted: at most 1.2)")
        cost = trial_cost(Path(folder))
        print(
            f"a trial with {ROWS} rows costs its driver {1e3 * cost:.2f} ms: {100 * cost / TRIAL_S:.2f}% of a trial",
            end=" ",
        )
        print(f"of {TRIAL_S:g} s (wanted: at most 1%)")


if __name__ == "__main__":
    main()
