"""Forecasts from shapes, made on a machine without a GPU, against cells that `benchmarks.forecast` measured on H100.

python -m benchmarks.forecast_shapes --out docs/results/forecast/shapes.json [--only gpt2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.forecast import GRID, LENGTH, TOKENS, Machine, errors, kinds_of
from orchestrator.plan.estimates import SHAPES
from orchestrator.plan.forecasts import rehearsal_of
from orchestrator.plan.rehearsals import Rehearsal, Rehearsals
from sweeps.trial import ALONE, RankRequest, TrialSpec
from tests.unit.trainables.ranks import run

MEASURED = Path("docs/results/forecast/gpu_cells.json")
SHAPES_OF = "NVIDIA H100 80GB HBM3"
CALIBRATED = ("resnet18", "gpt2 ", "gpt2-large single", "gpt2-medium", "llama", "resnet50 single")
"""The beginnings of the kinds that shares and host times of `trainables.supervised.shape_rehearsal` were read from."""
LARGE = 0.5
"""A cell's step is bound by the GPU at this share of the largest micro-batch of its kind."""


def measured_cells() -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return the measured rows of each cell that ran on H100, by kind and micro-batch."""
    document = json.loads(MEASURED.read_text())
    cells: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    rows = [row for part in ("again", "together", "alone", "single") for row in document[part]["rows"]]
    for row in rows + [row for row in document["rows"] if row["gpu"] == "H100"]:
        if row["status"] == "ok":
            cells[row["kind"]][row["micro_batch"]].append(row)
    return cells


def rehearsed(trials: Sequence[TrialSpec]) -> Rehearsals:
    """Return the rehearsals that the forecasts of these trials need."""
    rehearsals = Rehearsals()
    while trial := rehearsals.next(trials):
        started = time.perf_counter()
        exit = run(RankRequest(trial=rehearsal_of(trial, SHAPES_OF), rendezvous=ALONE, gang_id=ALONE))
        if exit["status"] != "ok":
            print(exit["trace"][-2000:], flush=True)
        answer = {"status": exit["status"], "note": exit["note"], "took_s": time.perf_counter() - started}
        rehearsals.add(Rehearsal.of(trial, answer | {"figures": exit["metrics"]}, SHAPES))
    return rehearsals


def accuracy_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors of the forecasts, of all cells and of those that are bound by the GPU."""
    pairs = [
        {"forecast": {name: dict(zip(("lo", "value", "hi"), row[name]["forecast"], strict=True)) for name in NAMES}}
        | {"measured": {name: row[name]["measured"] for name in NAMES}, "large": row["large"], "kind": row["kind"]}
        for row in rows
        if row["peak_memory_gb"]["forecast"]
    ]
    large = [row for row in pairs if row["large"]]
    accuracy = {name: errors(pairs, name) for name in NAMES}
    accuracy |= {f"{name}, large micro-batches": errors(large, name) for name in NAMES}
    parts = {"": pairs, ", large micro-batches": large}
    parts |= {
        f"{part}, not calibrated on": [row for row in own if not row["kind"].startswith(CALIBRATED)]
        for part, own in parts.items()
    }
    for part, own in parts.items():
        factors = [row["forecast"]["samples_per_s"]["value"] / row["measured"]["samples_per_s"] for row in own]
        within = sum(1 / 1.5 <= factor <= 1.5 for factor in factors)
        accuracy[f"time within 1.5×{part}"] = {"cells": len(factors), "within": within}
    return accuracy


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--only", default="", help="a part of the names of the kinds")
    given = arguments.parse_args()
    cells, rows, count, took_s = measured_cells(), [], 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, tokens in (("train", TOKENS), ("val", 64 * LENGTH + 1)):
            np.zeros(tokens, dtype=np.uint16).tofile(Path(folder) / f"{name}.bin")
        machine = Machine(device="cuda", tokens=Path(folder), tiny=False)
        for kind in (kind for kind, _ in kinds_of(GRID) if given.only in kind and kind in cells):
            trials = {size: machine.spec(kind, size) for size in sorted(cells[kind])}
            rehearsals = rehearsed(list(trials.values()))
            count += len(rehearsals)
            took_s += sum(rehearsal.took_s for rehearsal in rehearsals)
            for size, trial in trials.items():
                forecast = rehearsals.forecast(trial)
                row: dict[str, Any] = {"kind": kind, "micro_batch": size, "fits": forecast.fits if forecast else None}
                row |= {"large": size >= LARGE * max(trials)}
                for figure in ("peak_memory_gb", "samples_per_s"):
                    estimate = getattr(forecast, figure, None)
                    ends = [round(end, 4) for end in (estimate.lo, estimate.value, estimate.hi)] if estimate else None
                    values = [again[figure]["measured"] for again in cells[kind][size] if again[figure]["measured"]]
                    row[figure] = {"forecast": ends, "measured": median(values)}
                rows.append(row)
                print(json.dumps(row), flush=True)
    accuracy = accuracy_of(rows)
    about = {"shapes_of": SHAPES_OF, "measured": MEASURED.name, "rehearsals": count, "rehearsed_s": round(took_s)}
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(about | {"accuracy": accuracy}, indent=1, ensure_ascii=False).removesuffix("\n}")
    given.out.write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')
    print(json.dumps(accuracy, indent=2, ensure_ascii=False))


NAMES = ("peak_memory_gb", "samples_per_s")
"""The figures that are compared."""


if __name__ == "__main__":
    main()
