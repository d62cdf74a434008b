"""A synthetic sweep with every status, three learning-rate rules and, if asked for, hostile strings."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.config.request import Metric, Terms
from orchestrator.decision.recommendation import Figure, GpuCount, MoreSeeds, Recommendation, Remark, not_made, remark
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind, TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.text.text_tables import Document, TextTable
from sweeps.status import Status
from tests.unit.orchestrator.records import record_of

EVIL = "<script>alert('x')</script> $\\frac{ & \" 'é 漢字"

RULES = ("none", "linear", "sqrt")
BATCHES = (32, 128, 512)
GPUS = (1, 2, 4, 8)
PROVENANCE = {
    "device_model": "NVIDIA H200",
    "host": "node-1",
    "python": "3.12.3",
    "torch": "2.15.0",
    "cuda": "12.8",
    "nccl": "2.27.3",
    "driver": "570.124",
    "cpu_cores": 64,
}
DRIVER = {
    "host": "node-1",
    "python": "3.12.3",
    "packages": {"sweep-orchestrator": "0.1.0", "ray": "2.60.0"},
    "command": "python -m orchestrator sweep=demo 'sweep.axes.gpus=[1,2,4,8]'",
    "commit": "0123456789abcdef0123456789abcdef01234567",
}


def records(sweep: str = "demo", evil: str = "") -> list[TrialRecord]:
    """Return records of 3 rules, 3 batches, 4 GPU counts and 3 seeds; every status occurs."""
    return [
        _record(sweep, gpus, batch, rule, seed, evil)
        for gpus in GPUS
        for batch in BATCHES
        for rule in RULES
        for seed in (0, 1, 2)
    ]


def _record(sweep: str, gpus: int, batch: int, rule: str, seed: int, evil: str) -> TrialRecord:
    chance = random.Random(f"{gpus}-{batch}-{rule}-{seed}")
    name = f"{rule} {evil}" if evil and rule == "sqrt" else rule
    cell = f"{gpus}-{batch}-{rule}"
    status, note = _end(gpus, batch, rule, seed)
    kappa = gpus * batch / 32
    rate = 9000 * batch / (batch + 60) * gpus / (1 + 0.035 * (gpus - 1) * 128 / batch) * math.exp(chance.gauss(0, 0.02))
    loss_of_rule = {"none": 0.022, "linear": 0.010, "sqrt": 0.006}[rule]
    accuracy = 0.985 - loss_of_rule * math.log2(kappa) ** 1.3 + chance.gauss(0, 0.004)
    metrics = {
        "samples_per_s": rate,
        "epoch_s": 50_000 / rate,
        "first_epoch_s": 50_000 / rate + 4,
        "train_s": 500_000 / rate,
        "accuracy": accuracy,
        "val_accuracy": accuracy + 0.002,
        "peak_memory_gb": 1.4 + 0.021 * batch,
        "energy_j": 600 * gpus * 500_000 / rate,
        "gpu_util": 0.9,
        "window_s": 2.5 if not (gpus == 4 and batch == 32) else 1.1,
        "window_steps": 500,
    } | ({"time_to_target_s": 300_000 / rate} if accuracy > 0.93 else {})
    return record_of(
        gpus,
        seed,
        status,
        batch=batch,
        lr_rule=name,
        metrics=metrics if status is Status.OK else {},
        trial_id=f"{cell}-{seed}",
        cell_id=cell,
        sweep=sweep,
        note=f"{note} {evil}".strip() if note else "",
        ranks=gpus,
        lr=0.1 * kappa,
        wall_s=500_000 / rate + 20,
        finished_at="2026-11-21T12:00:00+00:00",
        provenance=PROVENANCE if status is not Status.INFEASIBLE else {},
    )


def _end(gpus: int, batch: int, rule: str, seed: int) -> tuple[Status, str]:
    return {
        (8, 512, "none", 0): (Status.OOM, "CUDA out of memory: tried to allocate 2 GiB"),
        (8, 512, "none", 1): (Status.OOM, "CUDA out of memory: tried to allocate 2 GiB"),
        (8, 512, "linear", 2): (Status.DIVERGED, "loss is nan"),
        (8, 128, "none", 1): (Status.FAILED, "RuntimeError: the disk | is full"),
        (8, 32, "sqrt", 0): (Status.TIMEOUT, "no progress for 600 s"),
        (8, 32, "sqrt", 1): (Status.INFEASIBLE, "needs 8 ranks; there is room for 4"),
    }.get((gpus, batch, rule, seed), (Status.OK, ""))


def curve_of(record: TrialRecord, epochs: int = 10) -> list[dict[str, float]]:
    """Return a learning curve that ends near the record's accuracy."""
    chance = random.Random(record.trial_id)
    floor = 2.6 * (1 - record.metrics.get("accuracy", 0.9))
    return [
        {
            "epoch": epoch,
            "loss": floor + 2.3 * math.exp(-0.5 * epoch) * (1 + 0.05 * chance.random()),
            "val_accuracy": 0.9 - math.exp(-0.5 * epoch),
            "epoch_s": 1.0,
            "lr": 0.1,
        }
        for epoch in range(1, epochs + 1)
    ]


def results(root: Path, made: list[TrialRecord], driver: dict = DRIVER) -> ResultsFolder:
    """Write a results directory with these records and their curves."""
    folder = ResultsFolder(root)
    folder.create()
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": driver})
        for record in made:
            journal.append(Kind.STARTED, {"trial_id": record.trial_id, "attempt": 1})
            folder.trial(record.trial_id).mkdir(exist_ok=True)
            if record.status in (Status.OK, Status.DIVERGED):
                text = "".join(json.dumps(row) + "\n" for row in curve_of(record))
                folder.metrics(record.trial_id).write_text(text)
            journal.append(Kind.FINISHED, record.to_json())
    return folder


def replaced(record: TrialRecord, **changes) -> TrialRecord:
    """Return the record with other fields."""
    return replace(record, **changes)


def use(name: str) -> Remark:
    """The headline that recommends a cell."""
    cell = {"gpus": 8, "device": "cuda", "device_batch_size": 128, "lr": 0.57, "lr_rule": "sqrt"}
    took = {"measure": "time for the fixed budget", "unit": "s", "objective": 9.1, "of_baseline": 62.0, "cost": 0.59}
    gains = {
        "gain": Figure(value=6.8, lo=6.5, hi=7.1, unit="1"),
        "of_gpus": 3.4,
        "of_batch": 2.0,
        "has_more_axes": False,
        "difference": -0.002,
    }
    return remark("use", name=name, cell=cell, baseline="1×128 none", margin=0.01, metric=Metric(), **took, **gains)


NOT_MADE = not_made(Terms())
"""For tests in which nothing depends on the recommendation."""

NO_CELL_KEEPS_MARGIN = remark("none_keeps_margin", name="4×32 sqrt", p_within=0.19, metric=Terms().metric)
RECOMMENDATION = Recommendation(
    terms=Terms(),
    measure="time for the fixed budget",
    cell_id="8-128-sqrt",
    name="8×128 sqrt",
    headline=use(f"8×128 sqrt {EVIL}"),
    provisional=True,
    p_best=0.71,
    p_within_margin=0.995,
    reasons=(remark("only_cell"),),
    sensitivity=(remark("one_gpu_count", gpus=8),),
    more_seeds=(MoreSeeds(cell_id="8-128-sqrt", name="8×128 sqrt", seeds=3),),
    commands=(f"python '{EVIL}'",),
    gpu_counts=(
        GpuCount(gpus=1, name="1 GPU", cell_id="1-32-none"),
        GpuCount(gpus=4, name="4 GPUs", cell_id=None, why_none=NO_CELL_KEEPS_MARGIN),
        GpuCount(gpus=8, name="8 GPUs", cell_id="8-128-sqrt"),
    ),
)


FURTHER = (
    TextTable(
        name="claims",
        title="Claims",
        about=["Brackets: 95% intervals."],
        frame=pd.DataFrame([{"claim": EVIL, "verdict": "refuted", "difference": "-0.2 [-0.3, -0.1]"}]),
    ),
)


def end(
    trials: pd.DataFrame,
    cells: pd.DataFrame | None = None,
    recommendation: Recommendation = NOT_MADE,
    tables: Sequence[TextTable] = (),
    **fields: Any,
) -> SweepEnd:
    """Return the end of a sweep with these frames, and with a document that has `tables`."""
    given = {"folder": ResultsFolder(Path("results/demo")), "documents": {"a.md": Document(text="", tables=tables)}}
    frames = {"trials": trials, "cells": pd.DataFrame() if cells is None else cells}
    return SweepEnd(recommendation=recommendation, **frames, **given | fields)
