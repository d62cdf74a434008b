"""The laws behind the speed-ups: Amdahl's, the Universal Scalability Law, and the batch up to which samples help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.samples_to_target import samples_to_target
from orchestrator.collection.summary import further_axes
from orchestrator.statistics.critical_batch import critical_batch
from orchestrator.statistics.means import Interval
from orchestrator.statistics.prediction import Line
from orchestrator.statistics.scaling_law import AMDAHL, FEWEST_COUNTS, USL, Fit, TooFewCountsError
from orchestrator.tables.predict import doubtful, lines
from orchestrator.text import figures
from orchestrator.text.table import TextTable
from sweeps.status import Status

_SMALLEST = 1e-6
"""A fitted α or β below this is 0 for any realistic number of GPUs."""

_MOST = 20
"""Maximum number of lines that laws are fitted to: each takes some 100 ms."""


def _share(value: float) -> str:
    return f"{value:.3g}" if abs(value) > _SMALLEST else "0"


def scaling(trials: pd.DataFrame, cells: pd.DataFrame) -> tuple[str, list[TextTable]]:
    """The document and its tables: a row for each line of cells that has a law, and for each known critical batch."""
    found = lines(trials, cells)
    tables = _tables(trials, cells, found)
    without = [] if _enough(found) else _left_out(found)
    content = [*without, *(line for table in tables for line in table.markdown())]
    return "\n".join(["# Scaling laws", "", *content]), tables


def _tables(trials: pd.DataFrame, cells: pd.DataFrame, found: Sequence[Line]) -> list[TextTable]:
    enough = _enough(found)
    tables = []
    if enough:
        laws = TextTable(
            name="scaling",
            title="Scaling laws",
            about=[
                "Throughput on N GPUs: X(N) = γN / (1 + α(N − 1) + βN(N − 1)). γ: throughput of one GPU. α: share of"
                " the work that more GPUs do not speed up (contention). β: cost of each pair of GPUs (coherency), as a"
                " share of one GPU's time. Amdahl's law has β = 0 and a speed-up of at most 1/α; the Universal"
                " Scalability Law (USL) has a maximum throughput. Brackets: 95% intervals by profile likelihood."
                " mode=predict goes beyond these counts."
            ],
            frame=pd.DataFrame([_row(line, law) for line in enough[:_MOST] for law in (AMDAHL, USL)]),
            remarks=[line for line in (*_left_out(found), *doubtful(cells)) if line],
        )
        tables.append(laws)
    batches = _critical(trials, cells)
    if len(batches):
        critical = TextTable(
            name="critical_batch",
            title="Critical batch",
            about=[
                "The global batch, in samples, above which larger ones hardly save steps (McCandlish et al. 2018):"
                " estimated from the samples that the target took at each batch, E = E_min (1 + B/B_crit), and from"
                " the noise of gradients, which gives only its order of magnitude."
            ],
            frame=batches,
        )
        tables.append(critical)
    return tables


def _enough(found: Sequence[Line]) -> list[Line]:
    return [line for line in found if len(np.unique(line.gpus)) >= FEWEST_COUNTS]


def _left_out(found: Sequence[Line]) -> list[str]:
    """What the table of laws leaves out, each followed by a blank line."""
    more, too_few = len(_enough(found)) - _MOST, len(found) - len(_enough(found))
    lines = [f"{more} further groups of cells are not shown.", ""] if more > 0 else []
    groups = figures.counted(too_few, "group of cells has", "groups of cells have")
    few = [f"{groups} fewer than {FEWEST_COUNTS} GPU counts, too few to fit a law.", ""]
    return lines + few if too_few else lines


def _row(line: Line, law: str) -> dict[str, Any]:
    fit = Fit.of(law, line.gpus, line.rates, line.seeds)
    alpha = fit.shape_interval(0)
    return {
        "cells": line.name,
        "GPU counts": ", ".join(f"{count:g}" for count in np.unique(line.gpus)),
        "law": "USL" if law == USL else "Amdahl",
        "γ [samples/s]": _interval(fit.at(1), figures.number),
        "α": _interval(alpha),
        "β": _interval(fit.shape_interval(1)) if law == USL else "",
        "maximum": _limit(law, fit),
    }


def _limit(law: str, fit: Fit) -> str:
    """The largest speed-up: 1/α by Amdahl's law; by the USL the one at √((1 − α)/β) GPUs."""
    alpha = float(fit.shape[0])
    beta = float(fit.shape[1]) if law == USL else 0.0
    if law == AMDAHL:
        return f"a speed-up of {figures.number(1 / alpha)}×" if alpha > _SMALLEST else "no limit seen"
    if beta < 1e-7 or alpha >= 1:
        return "no limit seen"
    return f"the throughput at {math.sqrt((1 - alpha) / beta):.0f} GPUs"


def _critical(trials: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    axes = further_axes(cells)
    key = ["lr_rule", "lr_multiplier", *axes]
    rows = []
    for values, group in cells[cells["status"] == Status.OK.value].groupby(key, sort=False, dropna=False):
        own = trials[trials["cell_id"].isin(group["cell_id"]) & trials["time_to_target_s"].notna()]
        samples = samples_to_target(own)
        scale = float(group["noise_scale_samples"].mean())
        try:
            known = _interval(
                critical_batch(own["global_batch_size"].to_numpy(dtype="float64"), samples), figures.number
            )
        except TooFewCountsError:
            known = ""
        if known or not math.isnan(scale):
            name = ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True))
            noise = "" if math.isnan(scale) else figures.number(scale)
            rows.append({"cells": name, "by samples to the target": known, "by the noise of gradients": noise})
    return pd.DataFrame(rows)


def _interval(interval: Interval, form: figures.Form = _share) -> str:
    point, lo, hi = (float(getattr(interval, end)) for end in ("point", "lo", "hi"))
    if math.isinf(point):
        return f"above {figures.number(lo)}" if math.isfinite(lo) else "beyond what was tried"
    return figures.with_interval(point, lo, hi, lambda value: form(value) if math.isfinite(value) else "no upper end")
