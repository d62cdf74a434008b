r"""Accuracies of thirty seeds of the digits, from which benchmarks draw grids with known truth.

    python -m orchestrator sweep=batch_scaling backend=inprocess results_dir=ACC report.html=false rerun_invalid=0 \
        'sweep.axes.gpus=[1]' 'sweep.axes.device_batch_size=[32,64,128,256,512,1024]' "sweep.axes.seed='range(0,30)'" \
        trainable.window_s=0.01 trainable.window_steps=1 trainable.warmup_steps=0 trainable.warmup_s=0.001

produced the journal of accuracies.csv. Two ranks take the same steps as one rank with their global batch, so one rank
is enough.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "batch_scaling"
KEPT = RESULTS / "phases"
"""A full grid of gpus=[1,2] and the phased sweep of it, with their journals."""

Accuracies = Mapping[tuple[int, str], Sequence[float]]
"""On the validation split, by global batch and rule: a value a seed."""


def accuracies_of_thirty_seeds() -> dict[tuple[int, str], list[float]]:
    """Return the accuracies in the order of their seeds."""
    accuracies: dict[tuple[int, str], list[float]] = {}
    with (RESULTS / "accuracies.csv").open() as file:
        for row in csv.DictReader(file):
            accuracies.setdefault((int(row["global_batch_size"]), row["lr_rule"]), []).append(
                float(row["val_accuracy"])
            )
    return accuracies
