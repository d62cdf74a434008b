"""Turns records into frames: one row per trial, and one row per cell.

A trial's row also has the number of trials that shared its host, the epochs it trained including a part of one, the
decision of `telemetry.timing_gate` on its timing, and a note on stragglers, which stay in the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis import summary, work
from orchestrator.analysis.baseline import Comparison
from orchestrator.analysis.by_seed import by_seed
from orchestrator.analysis.objective import total_s
from orchestrator.analysis.summary import summary_frame
from orchestrator.config.request import Metric, Request, Terms
from orchestrator.statistics.collapses import FEWEST_LOSSES, collapsed
from orchestrator.store.record import TrialRecord
from orchestrator.store.results import history_in
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.trial_metrics import metric_value, time_to_target_s, tokens_per_s
from orchestrator.telemetry import timing_gate
from sweeps.axes import is_number
from sweeps.errors import ConfigError
from sweeps.lr_rule import RULES
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

MEETING_S = 2.0
"""Trials that overlap by less ran one after another, because wall-clock ends are accurate to a second or two."""


def cotenants(records: Sequence[TrialRecord]) -> list[float]:
    """Return for each record how many others overlapped with it on its host; NaN if its host or time is unknown.

    For a trial on several hosts, the host with the most others counts.
    """
    # Sorted starts and ends count overlaps in n·log n steps: sweeps have thousands of trials.
    ends = np.full(len(records), np.nan)
    for place, record in enumerate(records):
        with suppress(ValueError, OverflowError, OSError):
            if record.same_as:  # it has not run
                continue
            ends[place] = datetime.fromisoformat(record.finished_at).timestamp()
    starts = ends - np.array([record.wall_s for record in records], dtype="float64")
    others = np.full(len(records), np.nan)
    there: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        for machine in record.machines:
            there.setdefault(machine, []).append(place)
    for places in there.values():
        own = np.array(places)
        own = own[~np.isnan(starts[own])]
        # A host is known: 0 others, not an unknown number.
        others[own] = np.fmax(others[own], 0)
        # Shorter trials overlap with none, not even with themselves, on which the -1 below relies.
        own = own[ends[own] - starts[own] > MEETING_S]
        began_before = np.searchsorted(np.sort(starts[own]), ends[own] - MEETING_S, side="right")
        over_by_then = np.searchsorted(np.sort(ends[own]), starts[own] + MEETING_S, side="left")
        others[own] = np.fmax(others[own], began_before - over_by_then - 1)
    return [float(count) for count in others]


_WHOLE = 1e-6
"""A computed number of steps may differ from a whole number by this: more than rounding of a billion steps."""


def epochs_trained(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return the epochs trained, by row: 0.26 after 100 of 390 steps; NaN if a trial does not report epochs.

    Trials report the number of epochs they started, which is 1 after a single step. It is kept for a user's own
    measurements and for batches that grow.
    """
    begun, steps = trials["epochs"], trials["steps"]
    # The supervised loop reports `epoch_s` for a whole epoch at the rate `samples_per_s`, so that their product is the
    # samples of an epoch, a whole number of steps.
    with np.errstate(invalid="ignore", divide="ignore"):
        in_an_epoch = trials["epoch_s"] * trials["samples_per_s"] * steps / trials["samples"]
        whole = in_an_epoch.round()
        exact = (whole > 0) & ((in_an_epoch - whole).abs() < _WHOLE)
        return begun.where(~exact, np.minimum(begun, steps / whole))


_OWN_PARTS = ("step_data_s", "step_host_s", "step_compute_s")
"""The parts of a step that a rank does not share with others."""


def stragglers(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return a note by trial for each ok trial that is slow among those with the same steps, or has a slow rank."""
    slow = timing_gate.slow_timings(records)
    notes: dict[str, list[str]] = {}
    for record in records:
        if record.status is not Status.OK:
            continue
        imbalance_s = metric_value(record.metrics, "step_imbalance_s")
        # Without the communication, in which fast ranks wait for the slow one.
        own_s = sum(metric_value(record.metrics, name) or 0.0 for name in _OWN_PARTS)
        slowest = 1 + imbalance_s / own_s if imbalance_s is not None and own_s > 0 else 1.0
        if slowest >= timing_gate.SLOWER:
            rank = f"rank {record.metrics['slowest_rank']}" if "slowest_rank" in record.metrics else "the slowest rank"
            note = f"straggler: {rank} takes {slowest:.1f} times the median rank's time for a step"
            notes.setdefault(record.trial_id, []).append(note)
        if times := slow.get(record.trial_id):
            trial = f"this trial on {record.provenance['host']}" if record.provenance.get("host") else "this trial"
            note = f"straggler: {trial} took {times:.1f} times as long as the median of trials with the same steps"
            notes.setdefault(record.trial_id, []).append(note)
    return {trial_id: "; ".join(sentences) for trial_id, sentences in notes.items()}


MEASURED = (
    *("first_epoch_s", "epoch_s", "train_s", "samples_per_s", "window_s", "window_steps"),
    *("accuracy", "val_accuracy", "loss", "time_to_target_s", "epochs", "samples", "steps"),
    *("energy_j", "energy_j_per_sample", "peak_memory_gb", "gpu_util", "gpu_util_spread", "power_w", "n_params", "mfu"),
)
"""Metrics that are columns of every sweep, measured or not."""

COLUMNS = (
    *("sweep", "trial_id", "cell_id", "gpus", "ranks", "device", "device_model", "strategy"),
    *("global_batch_size", "device_batch_size", "grad_accum_steps", "lr_rule", "lr_multiplier", "lr", "seed"),
    *("status", "attempt", *MEASURED, "wall_s", "timing", "timing_valid", "note", "finished_at", "co_tenants"),
    *("gpus_held", "process", "timing_fault", "timed_with", "same_as"),
    *summary.OF_TEXTS,
    *("collapsed", "total_s", "work_done", "budget_samples", "cause", *summary.OF_SOURCES, "n_nodes", "skipped_by"),
)
"""Columns of `trials.csv`; the further axes, other metrics and the provenance follow."""

_ONLY_OF_TRIALS = frozenset(
    (
        *("step_s", "step_data_s", "step_host_s", "step_compute_s", "step_communication_s", "step_imbalance_s"),
        *("slowest_rank", "workers", "busy_gpus", "micro_batch_size", "noise_scale", "gain"),
        *("val_samples", "test_samples", "flops_per_sample", "matrix_flops_per_s", "reserved_memory_gb"),
        *("device_memory_gb", "cpu_util", "sm_clock_mhz", "temperature_c", "foreign_cpu", "foreign_gpu_processes"),
        *("idle_gpu_processes", "throttled_periods", "swapped_pages", "epochs_to_target"),
    )
)
"""Numbers of telemetry and of the shipped trainables that are no columns of the summary."""

_FIELDS = tuple(name for name in COLUMNS if name in TrialRecord.__dataclass_fields__)

_SEPARATE = ("device_model", "process")
"""Provenance with a separate column."""

_RESERVED = frozenset((*COLUMNS, *summary.COLUMNS, *summary.FURTHER))


# Frames have a row for each trial, and for few rows pandas takes a third longer with the strings of pyarrow.
@pd.option_context("mode.string_storage", "python")
def collect(
    request: Request, records: Sequence[TrialRecord], arguments: Sequence[str] = ()
) -> tuple[pd.DataFrame, pd.DataFrame, Terms]:
    """Return the trials, the cells and the terms of the choice, from each trial's last record.

    All tables and decisions use these values. The request says which cells are compared, by which metric and margin,
    and at which price; `arguments` are those that produced the records. The metric and `own_metrics` become columns of
    the cells, with intervals. Raises ConfigError if `sweep.baseline` names an axis that no record has.
    """
    # Which metrics the trials report is known only now.
    request = request.with_metric_of(record.metrics for record in records)
    report, metric = request.settings.report, request.metric
    comparison = Comparison(
        scaling=request.scaling,
        baseline=request.settings.sweep.baseline or {},
        reference_batch_size=request.reference_batch_size,
        axis_columns=axis_columns(records),
    )
    # Otherwise the tables would be in the order in which trials ended.
    ordered = sorted(records, key=_grid_place)
    if (name := request.settings.sweep.name) != "???":  # the folder may have been renamed since
        ordered = [replace(record, sweep=name) for record in ordered]
    trials = with_collapsed(trials_frame(ordered), report.margin, metric)
    metrics = dict.fromkeys([metric.name, *own_metrics(records)])
    cells = summary_frame(trials, comparison, report=report, metrics=list(metrics))
    return trials, cells, Terms.of(request, cell_axes(records), arguments)


def frames(folder: ResultsFolder, request: Request) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the trials and the cells of a results folder, from its journal. Raises ConfigError if there are none."""
    rows = history_in(folder).ends
    if not rows:
        raise ConfigError([f"no trial has ended yet in {folder.root}"])
    trials, cells, _ = collect(request, list(rows.values()))
    return trials, cells


def _grid_place(record: TrialRecord) -> tuple[Any, ...]:
    """Return a sort key: numbers by size, rules in the order of their definition, unknown rules last."""
    rule = list(RULES).index(record.lr_rule) if record.lr_rule in RULES else len(RULES)
    return record.gpus, record.device_batch_size, record.global_batch_size, rule, record.lr_multiplier, record.seed


def axis_columns(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return the column of each axis that any record has beyond the standard ones."""
    # A dict keeps the order of the config; a set would change the columns from run to run.
    names = dict.fromkeys(axis for record in records for axis in record.axes if axis not in STANDARD_AXES)
    return {axis: f"axes.{axis}" if axis in _RESERVED else axis for axis in names}


def cell_axes(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return the column of each axis that any record has, except the seed: these axes identify cells."""
    columns = axis_columns(records)
    names = dict.fromkeys(axis for record in records for axis in record.axes if axis != "seed")
    return {axis: columns.get(axis, axis) for axis in names}


def trials_frame(records: Sequence[TrialRecord]) -> pd.DataFrame:
    """Return a row for each record, in their order: `COLUMNS`, further axes, other metrics, then `provenance.…`.

    `device` is the GPU's model, or `cpu`. It is empty for a trial that ended before reporting its device, and `cuda`
    for an ok trial that reports none. `device_model` may also be the CPU's. `timing_valid` is empty for a trial that is
    not ok, and false with a reason in `note` for a timing that is not valid. Metrics that are not numbers are empty.
    """
    axes = axis_columns(records)
    metrics = _metric_columns(records, {*_RESERVED, *axes.values()})
    provenance = {
        name: f"provenance.{name}" for record in records for name in record.provenance if name not in _SEPARATE
    }
    by_id = {record.trial_id: record for record in records}
    rows = [
        _fields(record)
        | {"timed_with": _other_axes(record, by_id.get(record.timed_with))}
        | {axes[axis]: _cell(value) for axis, value in record.axes.items() if axis in axes}
        | {metrics[name]: _cell(value) for name, value in record.metrics.items()}
        | {"tokens_per_s": tokens_per_s(record.metrics), "time_to_target_s": time_to_target_s(record.metrics)}
        | {provenance[name]: _cell(value) for name, value in record.provenance.items() if name in provenance}
        for record in records
    ]
    columns = dict.fromkeys([*COLUMNS, *axes.values(), *metrics.values(), *provenance.values()])
    frame = pd.DataFrame(rows, columns=list(columns))
    # Means and comparisons would carry an infinity into every cell.
    measured = [*MEASURED, *summary.OF_TEXTS]
    numbers = _finite(pd.Series(frame[measured].to_numpy(dtype="object").ravel()))
    frame[measured] = numbers.to_numpy().reshape(len(frame), len(measured))
    frame["epochs"] = epochs_trained(frame)
    frame["first_epoch_s"] = frame["first_epoch_s"].mask(frame["epochs"] < 1)
    frame["co_tenants"] = cotenants(records)
    kept = pd.Series([record.in_kept_processes for record in records], frame.index, dtype="bool")
    took_window = pd.Series([record.took_window for record in records], frame.index, dtype="bool")
    frame["total_s"] = total_s(frame, kept, took_window)
    return _with_judgements(frame, records)


def _metric_columns(records: Sequence[TrialRecord], taken: Set[str]) -> dict[str, str]:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    measured = (*MEASURED, *summary.OF_TEXTS, *summary.OF_SOURCES)
    return {name: f"metrics.{name}" if name in taken and name not in measured else name for name in names}


def own_metrics(records: Sequence[TrialRecord]) -> list[str]:
    """Return the columns of the numbers that a user's own code reports, such as `perplexity`."""
    columns = _metric_columns(records, {*_RESERVED, *axis_columns(records).values()})
    numbers = {name for record in records for name, value in record.metrics.items() if is_number(value)}
    own = (columns[name] for name in columns if name in numbers - _ONLY_OF_TRIALS)
    return [column for column in own if column not in _RESERVED]


def _fields(record: TrialRecord) -> dict[str, Any]:
    named_model = record.provenance.get("device_model")
    model = named_model if isinstance(named_model, str) else None
    named = record.device == "cpu" or (record.status is Status.OK and not model)
    device = record.device if named else model
    given = {name: getattr(record, name) for name in _FIELDS}
    held = record.gpus_held or record.gpus
    given["process"] = record.provenance.get("process")
    given["n_nodes"] = record.nodes
    given["wall_s"] = record.wall_s + record.earlier_s  # all attempts held the devices
    if record.unknown_attempts:
        note = f"wall_s and cost exclude {record.unknown_attempts} interrupted attempt(s) of unknown length"
        given["note"] = "; ".join(filter(None, (record.note, note)))
    given |= {"status": record.status.value, "cause": record.cause.value}
    return given | {"device": device, "device_model": model, "gpus_held": held}


def _other_axes(record: TrialRecord, timed: TrialRecord | None) -> str | None:
    """Return the axes, as `lr_rule=none`, in which a row's timing is from another trial; None if it has its own."""
    if timed is None:
        return None
    return ", ".join(f"{axis}={value}" for axis, value in timed.axes.items() if record.axes.get(axis) != value)


def _with_judgements(frame: pd.DataFrame, records: Sequence[TrialRecord]) -> pd.DataFrame:
    """Add `timing_valid`, `timing_fault`, `work_done`, `budget_samples`, and notes on these and on stragglers."""
    timings, slow = timing_gate.judgements_of(records), stragglers(records)
    judgements = [timings.get(trial_id) for trial_id in frame["trial_id"]]
    frame["timing_valid"] = pd.array(
        [None if judgement is None else judgement.fault is None for judgement in judgements], dtype="boolean"
    )
    frame["timing_fault"] = [
        judgement.fault.value if judgement and judgement.fault else None for judgement in judgements
    ]
    by_id = work.accounts(records)
    accounts = [by_id.get(trial_id, work.Account()) for trial_id in frame["trial_id"]]
    frame["work_done"] = np.array([account.share for account in accounts], dtype="float64")
    frame["budget_samples"] = np.array([account.budget_samples for account in accounts], dtype="float64")
    of_rates = work.rate_deviations(records)
    notes = []
    for trial_id, note, account, judgement in zip(frame["trial_id"], frame["note"], accounts, judgements, strict=True):
        reasons = judgement.reasons if judgement else ()
        parts = [account.note, note, of_rates.get(trial_id), *reasons, slow.get(trial_id)]
        notes.append("; ".join(filter(None, parts)))
    return frame.assign(note=notes)


def with_collapsed(trials: pd.DataFrame, margin: float, metric: Metric) -> pd.DataFrame:
    """Return the trials with `collapsed`, and a note on each collapsed one.

    An ok trial without the metric has collapsed, too. The column is empty if no ok trial has the metric.
    """
    flags = pd.Series(pd.NA, index=trials.index, dtype="boolean")
    scores = _finite(metric.score(trials))
    is_ok = trials["status"] == Status.OK.value
    known = is_ok & scores.notna()
    ok = trials[known].assign(score=scores[known])
    if ok.empty:
        return trials.assign(collapsed=flags)
    cell_ids = ok["cell_id"].drop_duplicates()
    values = by_seed(cell_ids, ok, "score")
    is_collapsed = collapsed(values, margin, fewest=2 if metric.higher_is_better else FEWEST_LOSSES)
    row, seed = pd.Index(cell_ids).get_indexer(ok["cell_id"]), pd.Index(sorted(set(ok["seed"]))).get_indexer(ok["seed"])
    flags[known] = is_collapsed[row, seed]
    usual = np.nanmedian(np.where(is_collapsed, np.nan, values), axis=1)[row]
    notes = trials["note"].copy()
    for place, own, other in zip(ok.index, metric.sign * ok["score"], metric.sign * usual, strict=True):
        if flags[place]:
            note = f"collapsed: {metric.name} is {own:.3f}, that of other seeds {other:.3f}"
            notes[place] = "; ".join(filter(None, [notes[place], note]))
    # A loss of NaN is how most trainings report that they diverged.
    for place in trials.index[is_ok & ~known]:
        flags[place] = True
        notes[place] = "; ".join(filter(None, [notes[place], f"collapsed: no finite {metric.name}"]))
    return trials.assign(collapsed=flags, note=notes)


def _finite(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return the values as numbers; NaN for values that are not finite numbers."""
    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    return numbers.where(numbers.abs() < math.inf)


def _cell(value: Any) -> Any:
    """Return a value that fits into a table: lists, mappings and integers of more than 64 bits become text.

    Numbers that are not finite become empty.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def parsed_cell(cell: Any) -> Any:
    """Return the list or mapping that `_cell` turned into text; any other value unchanged."""
    if isinstance(cell, str) and cell.startswith(("[", "{")):
        with suppress(ValueError):  # text that only starts like JSON
            return json.loads(cell)
    return cell
