"""What nothing being lost costs: `python tests/benchmarks/fault_overhead.py [folder]`.

A journal's append beside a bare write and fsync of the same bytes, in turns, and all that a driver does for one trial
of a second (journal, config, learning curve, checksums, secrets, the alarm) as a share of it. Ratios of one run only.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.alarm import Alarm
from orchestrator.backend import Outcome
from orchestrator.interrupt import Interrupt
from orchestrator.journal import Journal, Kind
from orchestrator.journal_line import encode
from orchestrator.layout import Layout
from orchestrator.secrets import Secrets
from orchestrator.session import Session
from orchestrator.watch import Limits
from sweeps.status import Status
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


def append_ratio(folder: Path) -> tuple[float, float, int, list[float]]:
    """Medians of a bare write+fsync and of an append, in seconds; the bytes of a record; the ratio block by block."""
    value = {"trial_id": "0123456789abcdef", "attempt": 1, "padding": "x" * 1200}
    line = encode(Kind.FINISHED, value) + b"\n"
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with Journal.open(folder / "journal.jsonl") as journal:
        acts = [lambda: (os.write(bare, line), os.fsync(bare)), lambda: journal.append(Kind.FINISHED, value)]
        spent: list[list[float]] = [[], []]
        for number in range(BLOCKS * ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):  # whoever comes second finds the disk as the other left it
                spent[which].append(seconds(acts[which]))
    os.close(bare)
    blocks = [[statistics.median(each[at : at + ROUNDS]) for each in spent] for at in range(0, BLOCKS * ROUNDS, ROUNDS)]
    return statistics.median(spent[0]), statistics.median(spent[1]), len(line), sorted(b / a for a, b in blocks)


def trial_cost(folder: Path) -> float:
    """Seconds that a driver spends on one trial, the median of many."""
    layout = Layout(folder / "results")
    layout.create()
    display: Any = Nobody()
    secrets = Secrets({"a-value-from-the-environment": "<hidden>"})
    costs = []
    with Journal.open(layout.journal) as journal:
        session = Session(layout, journal, display, Interrupt(), retries=1, secrets=secrets)
        for number in range(ROUNDS // 4):
            each = trial(f"t{number}", "quick", optimizer={"name": "sgd", "lr": 0.1}, model={"name": "small_cnn"})
            outcome = Outcome(status=Status.OK, wall_s=TRIAL_S, metrics={f"m{i}": 0.5 for i in range(20)})

            def whole(each: Any = each, outcome: Outcome = outcome) -> None:
                session.started(each)
                alarm = Alarm(Limits(hang_s=1800, time_limit_s=None))
                with alarm:
                    for epoch in range(ROWS):
                        alarm.moved()
                        session.reported(each, [{"epoch": epoch, "loss": 0.5, "val_accuracy": 0.5}])
                session.finished(each, outcome)

            costs.append(seconds(whole))
    return statistics.median(costs)


def main() -> None:
    where = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        plain, journalled, size, ratios = append_ratio(Path(folder))
        print(f"write+fsync of {size} bytes {1e3 * plain:.3f} ms, journal append {1e3 * journalled:.3f} ms:", end=" ")
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {BLOCKS} blocks"
        print(f"{journalled / plain:.2f} times, {spread} (wanted: at most 1.2)")
        cost = trial_cost(Path(folder))
        print(
            f"a trial with {ROWS} rows costs its driver {1e3 * cost:.2f} ms: {100 * cost / TRIAL_S:.2f}% of a trial",
            end=" ",
        )
        print(f"of {TRIAL_S:g} s (wanted: at most 1%)")


if __name__ == "__main__":
    main()
