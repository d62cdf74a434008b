"""The printout of `mode=plan`: a row per trial or cell, and totals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.backends.backend_choice import A_NODE
from orchestrator.config.schema import value_at
from orchestrator.plan.forecasts import can_rehearse
from orchestrator.plan.plan import Plan
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.queue import SweepBudget
from orchestrator.schedule.simulation import ScheduledTrial
from orchestrator.text.numbers import counted, duration, suited, training
from sweeps.axes import flat, is_number
from sweeps.gpus import cost_of
from sweeps.identity import SHOWN_DIGITS
from sweeps.trial import TrialSpec

UNKNOWN = "unknown"
_SECONDS = ("start_s", "expected_s")
_COLUMNS = (
    *("axes", "gpus", "gpus_held", "ranks", "device", "timing"),
    *("global_batch_size", "device_batch_size", "lr"),
)
"""Columns of a trial's later row that its plan knows."""
_MOST_ROWS = 24  # rows up to which trials that may run again have one each: the totals must not leave the screen
_SHOWN = ("gpus", "global_batch_size", "lr", "start_s", "expected_s", "note")


def as_json(plan: Plan, price_per_gpu_hour: float | None, remarks: Sequence[str] = ()) -> str:
    """Return the plan as one JSON object."""
    printout = {"trials": rows(plan), **totals(plan, price_per_gpu_hour), "remarks": list(remarks)}
    return json.dumps(printout, indent=2)


def as_text(plan: Plan, price_per_gpu_hour: float | None, remarks: Sequence[str] = (), currency: str = "") -> str:
    """Return the plan as a table for people."""
    table, shared = _without_shared(_table(plan))
    values = ", ".join(f"{key}={value}" for key, value in shared.items())
    to_run = counted(len(plan.to_run), "trial", "trials") or "no trials"
    copied = sum(trial.trial_id in plan.originals for trial in plan.to_run)
    same = f" ({copied} of them get the result of the same training under another rule or rate)" if copied else ""
    counts = f"{to_run} to run{same}, {len(plan.finished)} finished, {len(plan.infeasible)} infeasible"
    reasons = Counter(plan.infeasible.values())
    return "\n".join(
        [
            *aligned(table),
            "",
            *([f"all trials: {values}"] if shared else ()),
            counts,
            *(f"{counted(trials, 'trial', 'trials')} infeasible: {why}" for why, trials in reasons.items()),
            f"on {', '.join(describe(node) for node in plan.nodes)}",
            *time_and_cost(plan, price_per_gpu_hour, currency),
            *(f"note: {remark}" for remark in remarks),
        ]
    )


def headline(plan: Plan, config: Mapping[str, Any]) -> str:
    """Return the sweep, its training, precision, devices and cells in one line, as the answer begins."""
    axes = {axis for trial in plan.trials for axis in trial.axes}
    is_axis = {key: bool({key, key.partition(".")[0]} & axes) for key, _ in flat(config)}
    parts = [
        str(config["sweep"]["name"]),
        training(lambda key: None if is_axis.get(key) else value_at(config, key), most=40),
        str(value_at(config, "trainable.precision") or "") if not is_axis.get("trainable.precision") else "",
        " + ".join(dict.fromkeys("CPU" if trial.device == "cpu" else "GPU" for trial in plan.trials)),
        counted(len({trial.cell_id for trial in plan.trials}), "cell", "cells"),
    ]
    return " · ".join(filter(None, parts))


def budget_line(plan: Plan, budget: SweepBudget) -> str:
    """Return the budget of the sweep, and how many trials start before it is used up; empty without a budget."""
    names = ("gpu_hours", "wall_s", "cost")
    given = [f"sweep.budget.{name}={limit:g}" for name in names if (limit := getattr(budget, name)) is not None]
    if not given or not plan.to_run:
        return ""
    if plan.timetable.makespan_s is None:
        return f"budget: {', '.join(given)}; what the trials take is unknown"
    schedule = plan.timetable.schedule
    gpu_s, now_s, running = budget.used_gpu_s, 0.0, list[ScheduledTrial]()
    for started, stay in enumerate(schedule):
        # Trials that run side by side hold their GPUs at the same time.
        gpu_s += sum((min(other.end_s, stay.start_s) - now_s) * other.trial.gpus_held for other in running)
        now_s = stay.start_s
        if reason := budget.reached(gpu_s=gpu_s, wall_s=now_s):
            return f"budget: {started} of {len(schedule)} trials start, the others are skipped: {reason}"
        running = [*(other for other in running if other.end_s > now_s), stay]
    return f"budget: {', '.join(given)}: all trials start"


def rows(plan: Plan) -> list[dict[str, Any]]:
    """Return one row per trial, as JSON values: those to run in starting order, the infeasible, the finished."""
    others = [trial for trial, _ in plan.without_room] + [t for t in plan.trials if t.trial_id in plan.finished]
    # A time beside an unknown duration before it would be a guess.
    known = plan.timetable.unknown == 0
    return [
        _row(plan, stay.trial)
        | {
            "order": place,
            "start_s": stay.start_s if known else None,
            "nodes": list(dict.fromkeys(plan.nodes[number].name for number in stay.placement.nodes)),
        }
        for place, stay in enumerate(plan.timetable.schedule, start=1)
    ] + [_row(plan, trial) | {"order": None, "start_s": None, "nodes": []} for trial in others]


def _row(plan: Plan, trial: TrialSpec) -> dict[str, Any]:
    done = plan.finished.get(trial.trial_id)
    state = f"finished: {done.status}" if done else ("infeasible" if trial.trial_id in plan.infeasible else "to run")
    return {
        "trial_id": trial.trial_id,
        "state": state,
        **{name: trial.columns[name] for name in _COLUMNS},
        "cpus_per_rank": trial.gang.cpus_per_rank,
        "expected_s": None if done else plan.expected_s(trial),
        "note": plan.infeasible.get(trial.trial_id, done.note if done else ""),
    }


def time_and_cost(plan: Plan, price_per_gpu_hour: float | None, currency: str) -> Iterator[str]:
    """Yield the line on time and cost; none if there is nothing to run."""
    timetable = plan.timetable
    hours, unknown, makespan_s = timetable.gpu_hours, timetable.unknown, timetable.makespan_s
    if makespan_s is None:
        can_tell = any(can_rehearse(trial) for trial in plan.to_run)
        before = " (mode=forecast tells it before)" if can_tell else ""
        cost = "" if price_per_gpu_hour is None else " and cost"
        yield f"expected duration{cost}: unknown until the first trials have run{before}"
    elif timetable.schedule:
        unit = "GPU" if any(trial.device == "cuda" for trial in plan.trials) else "worker"
        used = suited(f"{unit}-hours", hours).text(hours)
        most = _most(plan)
        longest = f" (up to {duration(most * makespan_s)})" if most > 1 else ""
        cost = ""
        if price_per_gpu_hour is not None:
            expected = cost_of(hours, price_per_gpu_hour)
            highest = f" (up to {most * expected:.2f})" if most > 1 else ""
            cost = f", cost {expected:.2f}{highest} {currency}".rstrip()
        few = f", without {counted(unknown, 'trial', 'trials')} of unknown duration" if unknown else ""
        yield f"expected duration: {duration(makespan_s)}{longest}; {used}{cost}{few}"


def _most(plan: Plan) -> float:
    """Return how many times as long as expected the trials may take, by the 90% intervals of their forecasts."""
    forecasts = [plan.forecasts.forecast(trial) for trial in plan.to_run if trial.trial_id not in plan.originals]
    estimates = [forecast.duration_s for forecast in forecasts if forecast and forecast.duration_s]
    return sum(estimate.hi for estimate in estimates) / (sum(estimate.value for estimate in estimates) or 1.0)


def totals(plan: Plan, price_per_gpu_hour: float | None) -> dict[str, Any]:
    """Return what the trials to run take together."""
    timetable = plan.timetable
    return {
        "to_run": len(plan.to_run),
        "finished": len(plan.finished),
        "infeasible": len(plan.infeasible),
        "expected_gpu_hours": timetable.gpu_hours,
        "expected_makespan_s": timetable.makespan_s,
        "trials_of_unknown_duration": timetable.unknown,
        "expected_cost": None if price_per_gpu_hour is None else cost_of(timetable.gpu_hours, price_per_gpu_hour),
        "nodes": [vars(node) for node in plan.nodes],
    }


def describe(node: Node) -> str:
    """`host: 8 CPUs, 2 × NVIDIA H200`."""
    gpus = f", {node.gpus:g} × {node.gpu_type or 'GPU'}" if node.gpus else ", no GPU"
    cpus = "any number of CPUs" if node.cpus == A_NODE.cpus else f"{node.cpus:g} CPU{'s' if node.cpus != 1 else ''}"
    return f"{node.name}: {cpus}{gpus}"


def _table(plan: Plan) -> list[dict[str, Any]]:
    """Return the rows of the table, with figures as text."""
    names_trials = plan.finished or plan.again  # `rerun` may name a trial that has run
    shown = []
    for row in rows(plan):
        cells = {"state": row["state"]}
        if names_trials:
            cells["trial"] = row["trial_id"][:SHOWN_DIGITS]
        cells |= row["axes"] | {key: row[key] for key in _SHOWN}
        cells["lr"] = f"{row['lr']:.4g}"
        for key in _SECONDS:
            seconds = UNKNOWN if row[key] is None else f"{row[key]:.1f}"
            cells[key] = seconds if row["state"] == "to run" else ""
        if row["state"] == "infeasible":
            cells["note"] = ""  # the few reasons follow below the table
        shown.append(cells)
    if "seed" in shown[0] and (not names_trials or len(shown) > _MOST_ROWS):
        shown = _by_cell(shown)
    # A narrow terminal must show the rest.
    empty = [key for key in (*_SECONDS, "note") if all(cells[key] in ("", UNKNOWN) for cells in shown)]
    return [{key: value for key, value in cells.items() if key not in empty} for cells in shown]


def _by_cell(shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for all seeds of a cell that are in the same state, from the start of the first."""
    cells: dict[str, dict[str, Any]] = {}
    for row in shown:
        alike = str([value for key, value in row.items() if key not in ("trial", "seed", "start_s")])
        cell = cells.setdefault(alike, {key: value for key, value in row.items() if key != "trial"} | {"seed": []})
        cell["seed"].append(row.get("seed"))
    return [cell | {"seed": ",".join(map(str, sorted(cell["seed"])))} for cell in cells.values()]


def _without_shared(shown: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows without the columns in which several rows have one value, and these values."""
    first = shown[0] if len(shown) > 1 else {}
    shared = {key: value for key, value in first.items() if key != "state" and all(row[key] == value for row in shown)}
    return [{key: value for key, value in row.items() if key not in shared} for row in shown], shared


def aligned(shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rows below their keys; numbers are aligned to the right."""
    columns = list(dict.fromkeys(key for row in shown for key in row))
    cells = [columns, *([str(row.get(key, "")) for key in columns] for row in shown)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(is_number(row.get(key, 0)) for row in shown) or key in ("lr", *_SECONDS) for key in columns]
    for line in (cells[0], ["-" * width for width in widths], *cells[1:]):
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        )
        yield "  ".join(padded).rstrip()
