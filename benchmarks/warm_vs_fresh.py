"""Compare the timings of kept workers with those of new ones: the same sweep with workers=warm and workers=fresh.

    python -m benchmarks.warm_vs_fresh FILE.json [--rounds 5] [--seeds 1] [overrides of the sweep …]

Every round runs one or more seeds of the whole sweep with kept workers and with new ones, in alternating order, so that
drift affects both alike. A cell's ratio is warm over fresh throughput: the geometric mean over the seeds, with a 95%
interval by Student's t on paired log ratios. Goal: within 2% of 1. Kept trials of a round share a process: if steps are
short, more rounds are more informative than more seeds. The same ratio of `mfu` is shown, which is throughput over the
machine's matrix speed just after the trial's window and so removes some of the machine's drift.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.statistics.intervals import ratio

ROOT = Path(__file__).parents[1]
FIGURES = ("samples_per_s", "mfu")
DEFAULTS = ("sweep=batch_scaling", "sweep.axes.lr_rule=[none]", "budget.epochs=3", "cluster.dashboard=false")
WANTED = 0.02
SHOWN = 400
"""Characters of the end of what a sweep says that fails."""


def sweep(workers: str, seeds: list[int], folder: Path, overrides: list[str]) -> None:
    """Run these seeds of the sweep; its results join those of the seeds before."""
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        *DEFAULTS,
        f"workers={workers}",
        f"sweep.axes.seed={json.dumps(seeds)}",
    ]
    said = folder / "said.txt"  # a pipe would stay open as long as anything that Ray has started
    with said.open("w") as output:
        ended = subprocess.run(
            [*command, f"results_dir={folder / workers}", *overrides],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if ended.returncode:
        told = " ".join(said.read_text().split())
        sys.exit(f"the sweep with workers={workers} ended with {ended.returncode}: …{told[-SHOWN:]}")


def trials(folder: Path, workers: str, figure: str) -> pd.Series:
    (table,) = (folder / workers).glob("*/tables/trials.csv")
    return pd.read_csv(table).set_index(["gpus", "device_batch_size", "seed"])[figure]


def pairs(folder: Path) -> list[dict[str, Any]]:
    """Return every cell and seed with its two throughputs."""
    both = pd.DataFrame({workers: trials(folder, workers, FIGURES[0]) for workers in ("warm", "fresh")})
    return json.loads(both.reset_index().to_json(orient="records"))  # type: ignore[no-any-return]


def compare(folder: Path) -> list[dict[str, Any]]:
    """Return for each figure one row per cell, and one for all of them together."""
    return [row for figure in FIGURES for row in _rows(folder, figure)]


def _rows(folder: Path, figure: str) -> list[dict[str, Any]]:
    both = pd.DataFrame({workers: trials(folder, workers, figure) for workers in ("warm", "fresh")})
    cells = [(f"gpus={gpus}, batch={batch}", cell) for (gpus, batch), cell in both.groupby(level=[0, 1])]
    return [_row(figure, name, cell) for name, cell in [*cells, ("all cells", both)]]


def _row(figure: str, name: str, cell: pd.DataFrame) -> dict[str, Any]:
    interval = ratio(np.array(cell["warm"]), np.array(cell["fresh"]), paired=True)
    return {
        "cell": name,
        "of": figure,
        "seeds": len(cell),
        "ratio": interval.point,
        "lo": interval.lo,
        "hi": interval.hi,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="where the figures go")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1, help="in a round")
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for turn in range(asked.rounds):
            seeds = list(range(turn * asked.seeds, (turn + 1) * asked.seeds))
            for workers in ("warm", "fresh") if turn % 2 == 0 else ("fresh", "warm"):
                sweep(workers, seeds, folder, asked.overrides)
        rows, paired = compare(folder), pairs(folder)
        (table,) = (folder / "warm").glob("*/tables/trials.csv")
        first = pd.read_csv(table).iloc[0]
    about = {
        "device": first["device_model"],
        "torch": first["provenance.torch"],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "overrides": asked.overrides,
    }
    for row in rows:
        interval = f"{row['ratio']:.4f} [{row['lo']:.4f}, {row['hi']:.4f}]"
        print(f"{row['cell']:<24} {row['of']:<14} warm/fresh {interval} n={row['seeds']}")
    print(json.dumps(about))
    told = {"about": about, "wanted": WANTED, "cells": rows, "pairs": paired}
    asked.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
