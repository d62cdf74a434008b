"""Explains, as remarks, why no cell is recommended: none qualifies, no speed is known, or no objective is asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from orchestrator.decision.candidates import Contenders
from orchestrator.decision.claim_verdicts import Verdict, counts_of
from orchestrator.decision.eligibility import speeds_known
from orchestrator.decision.explain import scaling_of, superlinear
from orchestrator.decision.recommendation import Remark, remark
from orchestrator.telemetry.timing_gate import FOREIGN_CPU, TOO_SHORT, Fault
from orchestrator.text.cell_labels import cell_label, varying
from sweeps.metric import is_higher_better
from sweeps.status import Status

_MOST_NAMED = 2  # cells in a sentence, besides the first


def no_cell(contenders: Contenders) -> list[Remark]:
    """Return remarks on why no cell is recommended."""
    left_out = contenders.eligible.left_out
    not_considered = [remark("not_considered", left_out=left_out)] if left_out else []
    codes = {reason.code for reason in left_out}
    if contenders.choice.favourite is not None or (len(contenders.candidates) == 0 and "cells_not_timed" in codes):
        return [*_no_speed(contenders), *not_considered]
    if len(contenders.candidates):
        none_within = contenders.remark("none_within_margin", baseline=contenders.names[contenders.baseline or 0])
        return [none_within, *not_considered]
    trials = contenders.trials
    if len(trials) and not (trials["status"] == Status.OK.value).any():
        ends = trials.groupby(["status", "note"], sort=False).size()
        status, note = ends.index[int(ends.to_numpy().argmax())]
        commonest = remark("commonest_end", count=int(ends.max()), trials=len(trials), status=status, note=note)
        return [remark("none_ok", left_out=left_out), commonest]
    if contenders.trials["score"].isna().all() and "no_metric" in codes:
        trials = contenders.trials.dropna(axis="columns", how="all")
        measured = [name for name in trials if name != "loss" and is_higher_better(str(name)) is not None]
        return [contenders.remark("metric_missing", measured=measured)]
    to_report = contenders.measure.unit == "s" and "no_figure" in codes
    return [contenders.remark("none_measured", left_out=left_out, to_report=to_report)]


def _no_speed(contenders: Contenders) -> list[Remark]:
    """Return how many timings are not valid, the commonest reason with its remedy, and which cells may be better."""
    names, favourite, baseline = contenders.names, contenders.choice.favourite, contenders.baseline
    better = contenders.seem_better
    if favourite is None:
        return [no_speed(contenders.trials)]
    if better:
        headline = no_speed(contenders.trials, better)
        named = list(better.values())[: 1 + _MOST_NAMED]
        return [headline, remark("may_be_better", names=named, more=len(better) - len(named), than=names[favourite])]
    assert baseline is not None  # the favourite itself has a valid timing
    headline = no_speed(contenders.trials, [contenders.cells["cell_id"][baseline]])
    return [headline, remark("baseline_not_timed", name=names[baseline])]


def no_speed(trials: pd.DataFrame, cell_ids: Collection[str] = ()) -> Remark:
    """Return the remark that no speed is known, with the commonest fault of the timings of these cells (default: all).

    `by` and `cpu` are the program that disturbed most of them, and the share of the cores' time that it took; an empty
    word and NaN if none did, or if others were on the GPUs, which matters more.
    """
    ok = trials[trials["status"] == Status.OK.value]
    concerned = ok[ok["cell_id"].isin(list(cell_ids))] if cell_ids else ok
    faults = concerned["timing_fault"].dropna()
    # The seeds of a cell on several device models have valid timings each.
    fault = Fault(faults.mode()[0]) if len(faults) else Fault.SEVERAL_MODELS
    faulty = ok[ok["timing_fault"] == fault.value] if len(faults) else concerned
    on_gpus = faulty.reindex(columns=["foreign_gpu_processes"]).fillna(0).to_numpy()[:, 0] > 0
    load = faulty.loc[~on_gpus].reindex(columns=["foreign_cpu", "foreign_cpu_by"]).dropna()
    # A program that happened to run beside is no cause of other faults, nor of other disturbances.
    is_cause = (load["foreign_cpu"] > FOREIGN_CPU) & (fault is Fault.DISTURBED)
    load = load[is_cause]
    # The notes of such trials may be about something else.
    own_words = {Fault.SHARED: "", Fault.TOO_SHORT: TOO_SHORT}
    return remark(
        "no_speed",
        count=len(faulty),
        timings=len(ok),
        fault=fault.value,
        by=str(load["foreign_cpu_by"].mode()[0]) if len(load) else "",
        cpu=float(load["foreign_cpu"].median()),
        note=own_words.get(fault, str(faulty["note"].iloc[0]).rstrip(".")),
    )


def too_few_workers(trials: pd.DataFrame) -> list[Remark]:
    """Return a remark if no trial with several GPUs trained on all of them: then nothing is known about more GPUs."""
    several = trials[(trials["gpus"] > 1) & (trials["status"] == Status.OK.value)]
    if several.empty or not (several["timing_fault"] == Fault.TOO_FEW_WORKERS.value).all():
        return []
    on_cpu = bool((several["device"] == "cpu").all())
    return [remark("too_few_workers", on_cpu=on_cpu, note=str(several["note"].iloc[0]).split("; ")[0])]


def without_objective(trials: pd.DataFrame, cells: pd.DataFrame, claims: Sequence[Verdict]) -> list[Remark]:
    """Return the outcome of the claims and the largest scaling among the cells of a summary."""
    counted = [remark("claims", counts=counts_of(claims))] if claims else []
    return [*counted, *_largest_scaling(trials, cells), remark("not_requested")]


def _largest_scaling(trials: pd.DataFrame, cells: pd.DataFrame) -> list[Remark]:
    """Return the largest scaling over a baseline with fewer GPUs, or that no such scaling is known."""
    gpus = cells.set_index("cell_id")["gpus"]
    is_more = cells["gpus"] > gpus.reindex(cells["baseline_cell_id"]).to_numpy()
    scaled = cells[is_more & cells["speedup"].notna()]
    known = scaled[speeds_known(cells)[scaled.index]]
    if known.empty:
        return [] if scaled.empty else [no_speed(trials)]
    row = known.to_dict("records")[int(known["speedup"].to_numpy().argmax())]
    values = {"efficiency": row["efficiency"], "name": cell_label(row, varying(cells))}
    return [remark("largest_scaling", **scaling_of(row), **values), *superlinear(cells, row)]
