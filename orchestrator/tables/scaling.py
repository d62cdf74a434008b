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
from orchestrator.store.results_folder import ResultsFolder
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
    trials, cells = frames(ResultsFolder(request.results_dir), request)
    every = lines(trials, cells)
    if not every:
        raise ConfigError(["nothing to predict from: no ok cell has a throughput"])
    # Without any line that is long enough, the refusals below say how many counts are needed.
    usable = [line for line in every if line.has_enough_counts] or every
    link = Link(
        gpus_per_node=request.settings.cluster.gpus_per_node or node_size(trials),
        bandwidth_gb_s=request.settings.predict.bandwidth_gb_s,
        latency_s=request.settings.predict.latency_s,
    )
    # All refusals are told at once, before anything is predicted.
    wanted = [(line, gpus) for line in usable for gpus in request.settings.predict.gpus]
    refusals = dict.fromkeys(refusal for line, gpus in wanted for refusal in line.refusals(gpus, link))
    if refusals:
        raise ConfigError([f"mode=predict: {refusal}" for refusal in refusals])
    rows = []
    for prediction in (predict(line, gpus, link) for line, gpus in wanted):
        row = {
            "cells": prediction.line or "all",
            "gpus": f"{prediction.gpus:g}",
            "global batch": f"{prediction.global_batch_size:g}",
            "samples/s": _interval(prediction.samples_per_s, numbers.number),
            "time to target [s]": _interval(prediction.time_to_target_s, numbers.number),
            "how": prediction.how,
        }
        rows.append(row)
    few = len(every) - len(usable)
    return "\n".join(
        [
            *(f"# Prediction: {numbers.plain(request.sweep.name)}", "", interconnect(trials, link), "", _ABOUT, ""),
            *([f"{_groups(few)} too few GPU counts to predict from.", ""] if few else []),
            *(f"{line.name or 'All cells'}: the loss so far is probably {_laws(line)}.\n" for line in usable),
            *(line for sentence in doubtful(cells) for line in (sentence, "")),
            markdown(pd.DataFrame(rows)),
        ]
    )


def _groups(count: int) -> str:
    return numbers.counted(count, "group of cells has", "groups of cells have")


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
    """Return a sentence if laws are fitted to cells without a valid timing."""
    known = (cells["status"] == Status.OK.value) & cells["samples_per_s"].notna()
    count = int((known & is_invalid(cells["timing_valid"])).sum())
    text = numbers.counted(count, "cell has", "cells have")
    return [f"{text} no valid timing; the laws still use their throughputs."] if text else []


_MOST_GPUS = 1e9
"""A larger number of GPUs in a record is an error."""


def _line(trials: pd.DataFrame, group: pd.DataFrame, shown: Sequence[str], fixed: str) -> Line:
    # The laws square the count, which overflows for what a damaged journal may hold.
    is_count = pd.to_numeric(trials["gpus"], errors="coerce") <= _MOST_GPUS
    ok = trials[(trials["status"] == Status.OK.value) & (only_sound(trials)["samples_per_s"] > 0) & is_count]
    row = group.iloc[0]
    # A start-up that was not measured counts as none: the prediction is then of the training alone.
    start_ups = start_up_s(ok)
    start_ups = start_ups[~np.isnan(start_ups)]

    def values(column: str) -> Any:
        return pd.to_numeric(ok[column], errors="coerce").to_numpy(dtype="float64")

    return Line(
        name=", ".join(f"{column}={numbers.config_value(row[column])}" for column in shown),
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
    # Processes on one machine share its cores as GPUs on one node share its links.
    column = "provenance.cpu_cores" if on_cpu else "provenance.node_gpus"
    size = pd.to_numeric(trials[column], errors="coerce").min() if column in trials else math.nan
    return None if pd.isna(size) else float(size)


def interconnect(trials: pd.DataFrame, link: Link) -> str:
    """Return a sentence on the GPUs and nodes that were measured."""
    if link.gpus_per_node is None:
        return "These trials do not report how many GPUs a node has: set cluster.gpus_per_node."
    what = "processes" if (trials["device"].dropna() == "cpu").all() else "GPUs"
    most = float(trials.loc[trials["status"] == Status.OK.value, "gpus"].max())
    within = "within one node" if link.nodes(most) == 1 else f"across {link.nodes(most)} nodes"
    return f"Measured: up to {most:g} {what} {within} (a node has {link.gpus_per_node:g})."


_SMALLEST = 1e-6
"""A fitted α or β below this value is 0 for any realistic number of GPUs."""

_MOST = 20
"""The most lines that laws are fitted to; each takes about 100 ms."""


def scaling(trials: pd.DataFrame, cells: pd.DataFrame) -> tuple[str, list[TextTable]]:
    """Return the document and its tables: the laws of each line, and the critical batch of each rule."""
    every = lines(trials, cells)
    fitted = [line for line in every if len(np.unique(line.gpus)) >= FEWEST_COUNTS]
    left_out = []
    # Each fit takes time, and nobody reads more rows.
    if len(fitted) > _MOST:
        left_out.append(f"{len(fitted) - _MOST} further groups of cells are not shown.")
    if len(every) > len(fitted):
        few = _groups(len(every) - len(fitted))
        left_out.append(f"{few} fewer than {FEWEST_COUNTS} GPU counts, which are too few to fit a law.")
    tables = []
    if fitted:
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
            frame=pd.DataFrame([_row(line, law) for line in fitted[:_MOST] for law in (AMDAHL, USL)]),
            remarks=[*left_out, *doubtful(cells)],
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
    without_laws = [] if fitted else [line for sentence in left_out for line in (sentence, "")]
    content = [*without_laws, *(line for table in tables for line in table.markdown())]
    return "\n".join(["# Scaling laws", "", *content]), tables


def _row(line: Line, law: str) -> dict[str, Any]:
    fit = Fit.of(law, line.gpus, line.rates, line.seeds)
    return {
        "cells": line.name,
        "GPU counts": ", ".join(f"{count:g}" for count in np.unique(line.gpus)),
        "law": "USL" if law == USL else "Amdahl",
        "γ [samples/s]": _interval(fit.at(1), numbers.number),
        "α": _interval(fit.shape_interval(0)),
        "β": _interval(fit.shape_interval(1)) if law == USL else "",
        "maximum": _limit(law, fit),
    }


def _limit(law: str, fit: Fit) -> str:
    """Return the maximum: a speed-up of 1/α by Amdahl's law; by the USL the throughput at √((1 − α)/β) GPUs."""
    alpha = float(fit.shape[0])
    if law == AMDAHL:
        return f"a speed-up of {numbers.number(1 / alpha)}×" if alpha > _SMALLEST else "no limit seen"
    # Below this β the maximum lies beyond a thousand GPUs.
    beta = float(fit.shape[1])
    if beta < 1e-7 or alpha >= 1:
        return "no limit seen"
    return f"the throughput at {math.sqrt((1 - alpha) / beta):.0f} GPUs"


def _critical_batches(trials: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    key = ["lr_rule", "lr_multiplier", *further_axes(cells)]
    rows = []
    for values, group in cells[cells["status"] == Status.OK.value].groupby(key, sort=False, dropna=False):
        reached = trials[trials["cell_id"].isin(group["cell_id"]) & trials["time_to_target_s"].notna()]
        batches = reached["global_batch_size"].to_numpy(dtype="float64")
        scale = float(group["noise_scale_samples"].mean())
        try:
            by_samples = _interval(critical_batch(batches, samples_to_target(reached)), numbers.number)
        except TooFewCountsError:
            by_samples = ""
        if by_samples or not math.isnan(scale):
            row = {
                "cells": ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True)),
                "by samples to the target": by_samples,
                "by the noise of gradients": "" if math.isnan(scale) else numbers.number(scale),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def _share(value: float) -> str:
    return f"{value:.3g}" if abs(value) > _SMALLEST else "0"


def _interval(interval: Interval, form: numbers.Form = _share) -> str:
    """Return the point with its ends, which may be infinite."""
    point, lo, hi = (float(end) for end in (interval.point, interval.lo, interval.hi))
    # Without a critical batch in sight, the data bound it from below.
    if math.isinf(point):
        return f"above {numbers.number(lo)}" if math.isfinite(lo) else "beyond what was tried"
    return numbers.with_interval(point, lo, hi, lambda value: form(value) if math.isfinite(value) else "no upper end")
