"""Scaling laws in Markdown: Amdahl's law and the Universal Scalability Law, the critical batch, and mode=predict.

A line is a group of cells that differ only in GPUs and the batch that scales with them; laws are fitted to each line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.cells import further_axes
from orchestrator.analysis.curves import samples_to_target, start_up_s
from orchestrator.analysis.trials import frames
from orchestrator.analysis.validity import is_invalid, only_sound
from orchestrator.config.request import Request
from orchestrator.statistics.intervals import Interval
from orchestrator.statistics.law_average import EXCHANGE, IMBALANCE, LAWS
from orchestrator.statistics.prediction import Line, Link, predict
from orchestrator.statistics.scaling_law import AMDAHL, FEWEST_COUNTS, USL, Fit, TooFewCountsError, critical_batch
from orchestrator.store.layout import Layout
from orchestrator.text import numbers
from orchestrator.text.rows import TextTable, markdown
from sweeps.errors import ConfigError
from sweeps.status import Status

_ABOUT = (
    "Brackets: 95% intervals. Throughput is averaged over laws and mixtures of two, each weighted by how well it fits:"
    f" {', '.join(law.name for law in LAWS)}. A cost that does not show at the measured counts is not predicted."
)

_LEAST_SHARE = 0.1
"""Laws with a smaller share in the loss are not named."""


def predicted(request: Request) -> str:
    """Return the Markdown that mode=predict prints. Raises ConfigError with a line for each refused GPU count."""
    trials, cells = frames(Layout(request.results_dir), request)
    found = lines(trials, cells)
    if not found:
        raise ConfigError(["nothing to predict from: no ok cell has a throughput"])
    long_enough = [line for line in found if line.has_enough_counts] or found
    link = Link(
        gpus_per_node=request.predict["gpus_per_node"] or node_size(trials),
        bandwidth_gb_s=request.predict["bandwidth_gb_s"],
        latency_s=request.predict["latency_s"],
    )
    refused = dict.fromkeys(
        refusal for line in long_enough for gpus in request.predict["gpus"] for refusal in line.refusals(gpus, link)
    )
    if refused:
        raise ConfigError([f"mode=predict: {refusal}" for refusal in refused])
    predictions = [predict(line, gpus, link) for line in long_enough for gpus in request.predict["gpus"]]
    head = [f"# Prediction: {numbers.plain(request.sweep.name)}", "", interconnect(trials, link), "", _ABOUT, ""]
    left_out = len(found) - len(long_enough)
    groups = numbers.counted(left_out, "group of cells has", "groups of cells have")
    more = [f"{groups} too few GPU counts to predict from.", ""] if left_out else []
    more += [f"{line.name or 'All cells'}: the loss so far is probably {_laws(line)}.\n" for line in long_enough]
    rows = [
        {
            "cells": each.line or "all",
            "gpus": f"{each.gpus:g}",
            "global batch": f"{each.global_batch_size:g}",
            "samples/s": _bounded(each.samples_per_s),
            "time to target [s]": _bounded(each.time_to_target_s),
            "how": each.how,
        }
        for each in predictions
    ]
    return "\n".join([*head, *more, *doubtful(cells), markdown(pd.DataFrame(rows))])


def _laws(line: Line) -> str:
    """Return the laws with a large share in a line's loss."""
    shares = {law: share for law, share in line.average.parts().items() if share >= _LEAST_SHARE}
    return ", ".join(f"{law} {share:.0%}" for law, share in shares.items())


_PARTS = {EXCHANGE: "step_communication_s", IMBALANCE: "step_imbalance_s"}


def lines(trials: pd.DataFrame, cells: pd.DataFrame) -> list[Line]:
    """Return a line for each group of ok cells that differ only in GPUs and the batch that scales with them."""
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
    """Return a sentence if laws are fitted to cells without a valid timing, followed by a blank line."""
    known = (cells["status"] == Status.OK.value) & cells["samples_per_s"].notna()
    count = int((known & is_invalid(cells["timing_valid"])).sum())
    many = numbers.counted(count, "cell has", "cells have")
    return [f"{many} no valid timing; the laws still use their throughputs.", ""] if many else []


def _line(trials: pd.DataFrame, group: pd.DataFrame, shown: Sequence[str], fixed: str) -> Line:
    ok = trials[(trials["status"] == Status.OK.value) & (only_sound(trials)["samples_per_s"] > 0)]
    row = group.iloc[0]
    start_ups = start_up_s(ok)
    start_ups = start_ups[~np.isnan(start_ups)]

    def values(column: str) -> Any:
        return pd.to_numeric(ok[column], errors="coerce").to_numpy(dtype="float64")

    return Line(
        name=", ".join(f"{column}={numbers.asked(row[column])}" for column in shown),
        weak=fixed == "device_batch_size",
        gpus=values("gpus"),
        rates=values("samples_per_s"),
        seeds=values("seed"),
        batches=values("global_batch_size"),
        samples_to_target=samples_to_target(ok),
        noise_scale=float(group["noise_scale_samples"].mean()),
        n_params=float(pd.to_numeric(ok["n_params"], errors="coerce").max()),
        start_up_s=float(start_ups.mean()) if len(start_ups) else 0.0,
        parts={
            part: values(column) / values("step_s")
            for part, column in _PARTS.items()
            if column in ok and "step_s" in ok
        },
    )


def node_size(trials: pd.DataFrame) -> float | None:
    """Return the GPUs of a node by the trials' provenance; without GPUs, its cores. None if it is unknown."""
    on_cpu = bool((trials["device"].dropna() == "cpu").all())
    column = "provenance.cpu_cores" if on_cpu else "provenance.node_gpus"
    found = pd.to_numeric(trials[column], errors="coerce").min() if column in trials else math.nan
    return None if pd.isna(found) else float(found)


def interconnect(trials: pd.DataFrame, link: Link) -> str:
    """Return a sentence on the GPUs and nodes that were measured."""
    if link.gpus_per_node is None:
        return "These trials do not report how many GPUs a node has: set predict.gpus_per_node."
    what = "processes" if (trials["device"].dropna() == "cpu").all() else "GPUs"
    most = float(trials.loc[trials["status"] == Status.OK.value, "gpus"].max())
    within = "within one node" if link.nodes(most) == 1 else f"across {link.nodes(most)} nodes"
    return f"Measured: up to {most:g} {what} {within} (a node has {link.gpus_per_node:g})."


def _bounded(interval: Interval) -> str:
    return numbers.with_interval(float(interval.point), float(interval.lo), float(interval.hi), numbers.number)


_SMALLEST = 1e-6
"""A fitted α or β below this value is 0 for any realistic number of GPUs."""

_MOST = 20
"""The most lines that laws are fitted to; each takes about 100 ms."""


def _share(value: float) -> str:
    return f"{value:.3g}" if abs(value) > _SMALLEST else "0"


def scaling(trials: pd.DataFrame, cells: pd.DataFrame) -> tuple[str, list[TextTable]]:
    """Return the document and its tables: the laws of each line, and the critical batch of each rule."""
    found = lines(trials, cells)
    enough = _enough(found)
    tables = []
    if enough:
        laws = TextTable(
            name="scaling",
            title="Scaling laws",
            about=[
                "Throughput on N GPUs: X(N) = γN / (1 + α(N − 1) + βN(N − 1)). γ: throughput of one GPU. α: share of"
                " the work that more GPUs do not speed up (contention). β: cost of each pair of GPUs (coherency), as a"
                " share of one GPU's time. Amdahl's law has β = 0 and a speed-up of at most 1/α. The Universal"
                " Scalability Law (USL) has a maximum throughput. Brackets: 95% intervals by profile likelihood."
                " mode=predict extrapolates to other GPU counts."
            ],
            frame=pd.DataFrame([_row(line, law) for line in enough[:_MOST] for law in (AMDAHL, USL)]),
            remarks=[line for line in (*_left_out(found), *doubtful(cells)) if line],
        )
        tables.append(laws)
    batches = _critical_batches(trials, cells)
    if len(batches):
        critical = TextTable(
            name="critical_batch",
            title="Critical batch",
            about=[
                "The global batch, in samples, above which a larger batch hardly saves steps (McCandlish et al. 2018)."
                " It is estimated from the samples up to the target at each batch, E = E_min (1 + B/B_crit), and from"
                " the noise of gradients, which gives only its order of magnitude."
            ],
            frame=batches,
        )
        tables.append(critical)
    without = [] if enough else _left_out(found)
    content = [*without, *(line for table in tables for line in table.markdown())]
    return "\n".join(["# Scaling laws", "", *content]), tables


def _enough(found: Sequence[Line]) -> list[Line]:
    return [line for line in found if len(np.unique(line.gpus)) >= FEWEST_COUNTS]


def _left_out(found: Sequence[Line]) -> list[str]:
    """Return sentences on what the table of laws leaves out, each followed by a blank line."""
    more, too_few = len(_enough(found)) - _MOST, len(found) - len(_enough(found))
    lines = [f"{more} further groups of cells are not shown.", ""] if more > 0 else []
    groups = numbers.counted(too_few, "group of cells has", "groups of cells have")
    few = [f"{groups} fewer than {FEWEST_COUNTS} GPU counts, which are too few to fit a law.", ""]
    return lines + few if too_few else lines


def _row(line: Line, law: str) -> dict[str, Any]:
    fit = Fit.of(law, line.gpus, line.rates, line.seeds)
    alpha = fit.shape_interval(0)
    return {
        "cells": line.name,
        "GPU counts": ", ".join(f"{count:g}" for count in np.unique(line.gpus)),
        "law": "USL" if law == USL else "Amdahl",
        "γ [samples/s]": _interval(fit.at(1), numbers.number),
        "α": _interval(alpha),
        "β": _interval(fit.shape_interval(1)) if law == USL else "",
        "maximum": _limit(law, fit),
    }


def _limit(law: str, fit: Fit) -> str:
    """Return the maximum: a speed-up of 1/α by Amdahl's law; by the USL the throughput at √((1 − α)/β) GPUs."""
    alpha = float(fit.shape[0])
    beta = float(fit.shape[1]) if law == USL else 0.0
    if law == AMDAHL:
        return f"a speed-up of {numbers.number(1 / alpha)}×" if alpha > _SMALLEST else "no limit seen"
    if beta < 1e-7 or alpha >= 1:
        return "no limit seen"
    return f"the throughput at {math.sqrt((1 - alpha) / beta):.0f} GPUs"


def _critical_batches(trials: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    axes = further_axes(cells)
    key = ["lr_rule", "lr_multiplier", *axes]
    rows = []
    for values, group in cells[cells["status"] == Status.OK.value].groupby(key, sort=False, dropna=False):
        own = trials[trials["cell_id"].isin(group["cell_id"]) & trials["time_to_target_s"].notna()]
        samples = samples_to_target(own)
        scale = float(group["noise_scale_samples"].mean())
        try:
            known = _interval(
                critical_batch(own["global_batch_size"].to_numpy(dtype="float64"), samples), numbers.number
            )
        except TooFewCountsError:
            known = ""
        if known or not math.isnan(scale):
            name = ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True))
            noise = "" if math.isnan(scale) else numbers.number(scale)
            rows.append({"cells": name, "by samples to the target": known, "by the noise of gradients": noise})
    return pd.DataFrame(rows)


def _interval(interval: Interval, form: numbers.Form = _share) -> str:
    point, lo, hi = (float(getattr(interval, end)) for end in ("point", "lo", "hi"))
    if math.isinf(point):
        return f"above {numbers.number(lo)}" if math.isfinite(lo) else "beyond what was tried"
    return numbers.with_interval(point, lo, hi, lambda value: form(value) if math.isfinite(value) else "no upper end")
