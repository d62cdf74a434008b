"""mode=predict: the lines of a sweep's cells, and what they say about other GPU counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.baseline import FIXED_SIDE
from orchestrator.collection.frames import frames
from orchestrator.collection.samples_to_target import samples_to_target, start_up_s
from orchestrator.collection.summary import further_axes
from orchestrator.collection.timed import is_invalid, only_sound
from orchestrator.config.request import Request
from orchestrator.statistics.means import Array, Interval
from orchestrator.statistics.prediction import Line, Link, Prediction, predict
from orchestrator.storage.layout import Layout
from orchestrator.text import figures
from orchestrator.text.rows import markdown
from sweeps.mistakes import MistakesError
from sweeps.status import Status

_ABOUT = (
    "By the Universal Scalability Law, fitted to the measured throughputs. Brackets: 95% intervals, which span Amdahl's"
    " law, too."
)


def predicted(request: Request) -> str:
    """The Markdown that mode=predict prints. Raises MistakesError with everything that is refused."""
    trials, cells = frames(Layout(request.results_dir), request)
    found = lines(trials, cells)
    if not found:
        raise MistakesError(["nothing to predict from: no ok cell has a throughput"])
    long_enough = [line for line in found if len(np.unique(line.gpus)) >= 3] or found
    link = Link(
        gpus_per_node=request.predict["gpus_per_node"] or node_size(trials),
        bandwidth_gb_s=request.predict["bandwidth_gb_s"],
        latency_s=request.predict["latency_s"],
    )
    refused = dict.fromkeys(
        refusal for line in long_enough for gpus in request.predict["gpus"] for refusal in line.refusals(gpus, link)
    )
    if refused:
        raise MistakesError([f"mode=predict: {refusal}" for refusal in refused])
    predictions = [predict(line, gpus, link) for line in long_enough for gpus in request.predict["gpus"]]
    head = [f"# Prediction: {figures.plain(request.sweep.name)}", "", interconnect(trials, link), "", _ABOUT, ""]
    left_out = len(found) - len(long_enough)
    groups = figures.counted(left_out, "group of cells has", "groups of cells have")
    more = [f"{groups} fewer than 3 GPU counts, too few to fit a law.", ""] if left_out else []
    return "\n".join([*head, *more, *doubtful(cells), markdown(_table(predictions))])


def lines(trials: pd.DataFrame, cells: pd.DataFrame) -> list[Line]:
    """One line for each group of ok cells that are alike except for GPUs and the freed side of the batch."""
    fixed = FIXED_SIDE[str(cells["scaling"].iloc[0])]
    axes = further_axes(cells)
    key = ["device", fixed, "lr_rule", "lr_multiplier", *axes]
    known = cells[(cells["status"] == Status.OK.value) & cells["samples_per_s"].notna()]
    shown = [column for column in key if column == fixed or known[column].nunique(dropna=False) > 1]
    return [
        _line(trials[trials["cell_id"].isin(group["cell_id"])], group, shown, fixed)
        for _, group in known.groupby(key, sort=False, dropna=False)
    ]


def doubtful(cells: pd.DataFrame) -> list[str]:
    """A sentence if laws are fitted to cells without a valid timing, followed by a blank line."""
    known = (cells["status"] == Status.OK.value) & cells["samples_per_s"].notna()
    count = int((known & is_invalid(cells["timing_valid"])).sum())
    many = figures.counted(count, "cell has", "cells have")
    return [f"{many} no valid timing; the laws use their throughputs nevertheless.", ""] if many else []


def _line(trials: pd.DataFrame, group: pd.DataFrame, shown: Sequence[str], fixed: str) -> Line:
    ok = trials[(trials["status"] == Status.OK.value) & (only_sound(trials)["samples_per_s"] > 0)]
    row = group.iloc[0]

    def values(column: str) -> Any:
        return pd.to_numeric(ok[column], errors="coerce").to_numpy(dtype="float64")

    return Line(
        name=", ".join(f"{column}={figures.asked(row[column])}" for column in shown),
        weak=fixed == "device_batch_size",
        gpus=values("gpus"),
        rates=values("samples_per_s"),
        seeds=values("seed"),
        batches=values("global_batch_size"),
        samples_to_target=samples_to_target(ok),
        noise_scale=float(group["noise_scale_samples"].mean()),
        n_params=float(pd.to_numeric(ok["n_params"], errors="coerce").max()),
        start_up_s=_mean(start_up_s(ok)),
    )


def _mean(values: Array) -> float:
    """The mean of the known values; 0 if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def node_size(trials: pd.DataFrame) -> float | None:
    """GPUs of a node, or cores where processes stand for GPUs, as the trials' provenance tells; None if it does not."""
    on_cpu = bool((trials["device"].dropna() == "cpu").all())
    column = "provenance.cpu_cores" if on_cpu else "provenance.node_gpus"
    found = pd.to_numeric(trials[column], errors="coerce").min() if column in trials else math.nan
    return None if pd.isna(found) else float(found)


def interconnect(trials: pd.DataFrame, link: Link) -> str:
    """What was measured, in words."""
    if link.gpus_per_node is None:
        return "These trials do not report how many GPUs a node has: set predict.gpus_per_node."
    what = "processes" if (trials["device"].dropna() == "cpu").all() else "GPUs"
    most = float(trials.loc[trials["status"] == Status.OK.value, "gpus"].max())
    within = "within one node" if link.nodes(most) == 1 else f"across {link.nodes(most)} nodes"
    return f"Measured: up to {most:g} {what} {within} (a node has {link.gpus_per_node:g})."


def _table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "cells": each.line or "all",
                "gpus": f"{each.gpus:g}",
                "global batch": f"{each.global_batch_size:g}",
                "samples/s": _interval(each.samples_per_s),
                "time to target [s]": _interval(each.time_to_target_s),
                "how": each.how,
            }
            for each in predictions
        ]
    )


def _interval(interval: Interval) -> str:
    return figures.with_interval(float(interval.point), float(interval.lo), float(interval.hi), figures.number)
