"""The printout of `mode=forecast`: a row per group of cells with the same figures, the reasons for gaps, and totals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.config.request import Request
from orchestrator.config.settings import Settings
from orchestrator.plan.estimates import DISTURBED, Estimate, Forecast
from orchestrator.plan.forecasts import axes_in_names, machine, name_of
from orchestrator.plan.plan import Plan
from orchestrator.plan.prices import cheapest_offer, offers_of
from orchestrator.plan.printout import UNKNOWN, aligned, describe, time_and_cost, totals
from orchestrator.statistics.extrapolation import COUNTS
from orchestrator.text.numbers import number
from sweeps.gpus import cost_of
from sweeps.printable import printable_line
from sweeps.trial import TrialSpec

_MUCH = 0.2  # the share of a trial beside its training above which it is explained


def forecast_text(plan: Plan, request: Request) -> str:
    """Return the forecast as a `table` or as `json`. Raises ConfigError for an unreadable price list."""
    report = request.settings.report
    cells = forecast_rows(plan, request.settings)
    if request.settings.format == "json":
        return json.dumps({"cells": cells, **totals(plan, report.price_per_gpu_hour)}, indent=2)
    alike: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        alike.setdefault(repr({**cell, "cell_id": "", "axes": "", "trials": 0}), []).append(cell)
    first = next((cell for cell in cells if _has_speed(cell)), None)
    groups = [
        (_forecast_line(name, same, first, report.currency), same)
        for name, same in zip(_names(alike.values()), alike.values(), strict=True)
    ]
    few_counts = f"needs valid timings on {COUNTS} GPU counts"
    nothing_known = few_counts if request.settings.extrapolates else "nothing is known before it has run"
    shown: list[dict[str, Any]] = []
    unknown: dict[str, list[str]] = {}  # names of cells by the reason why figures are missing
    for row, same in groups:
        is_shown = row["peak GB"] or row["samples/s"] or row["trial s"] or row["fits"] == "no"
        # A cell of which nothing can be said has no row, only the reason.
        if is_shown:
            shown.append(row)
        if why := same[0]["why"] or ("" if is_shown else nothing_known):
            unknown.setdefault(why, []).append(row["cell"])
    reasons = [f"{', '.join(names)}: {why}" for why, names in unknown.items()]
    if not shown:
        return "\n".join(reasons)
    source, *others = dict.fromkeys(row["from"] for row in shown)
    of_all = "" if others else f"; from {source}"
    empty = [key for key in shown[0] if all(row[key] == "" for row in shown) or (key == "from" and of_all)]
    why_unsure = list(_why_unsure(cells))
    empty += [] if why_unsure else ["train s"]
    lacks_memory = all(trial.device == "cpu" for trial in plan.trials) and "peak GB" in empty
    is_disturbed = any(cell["source"] == DISTURBED for cell in cells)
    lines = [
        *aligned([{key: value for key, value in row.items() if key not in empty} for row in shown]),
        "",
        *reasons,
        *([f"speed-up: against {first['label']}"] if first and len(shown) > 1 else []),
        f"on {', '.join(describe(node) for node in plan.nodes)}; ± and ranges cover 90%{of_all}",
        *(["memory is forecast for GPUs only"] if lacks_memory else []),
        *(["disturbed: other programs ran beside the rehearsal; mode=forecast repeats it"] if is_disturbed else []),
        *why_unsure,
        *time_and_cost(plan, report.price_per_gpu_hour, report.currency or ""),
    ]
    if report.target is not None and not any(cell["target_s"] for cell in cells):
        lines.append(
            "time to report.target: unknown until trials reach it, at a cell's batch or at three other batches"
        )
    if any(cell["is_efficient"] for cell in cells):
        lines.append("*: no other cell is as fast to report.target and costs less")
    lines.append(f"{request.metric.word} is not forecast: the same command without mode=forecast measures it")
    return "\n".join(lines)


def unanswered(plan: Plan) -> list[TrialSpec]:
    """Return the trials without a forecast of their speed; those that are too large have their answer if others fit."""
    forecasts = [(trial, plan.forecasts.forecast(trial)) for trial in plan.trials]
    lacking = [trial for trial, forecast in forecasts if forecast is None or forecast.samples_per_s is None]
    return [trial for trial in lacking if trial.trial_id not in plan.too_large or len(lacking) == len(plan.trials)]


def forecast_rows(plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """Return one row per cell, as JSON values; estimates have a value and the ends of a 90% interval."""
    seeds = Counter(trial.cell_id for trial in plan.trials)
    cells = {trial.cell_id: trial for trial in reversed(plan.trials)}
    price, offers = settings.report.price_per_gpu_hour, offers_of(settings)
    axes = axes_in_names(cells.values())
    rows: list[dict[str, Any]] = []
    for trial in sorted(cells.values(), key=lambda trial: (trial.gpus, trial.batch.global_batch_size)):
        forecast = plan.forecasts.forecast(trial) or Forecast(fits="unsure", source=UNKNOWN)
        offer = cheapest_offer(offers, machine(plan.nodes), trial.gpus_held)
        per_hour = None if price is None else cost_of(trial.gpus_held, price)
        if offer:
            per_hour = offer.per_hour(trial.gpus_held)
        rows.append(
            {
                "cell_id": trial.cell_id,
                "label": name_of(trial, axes),
                "axes": {axis: value for axis, value in trial.axes.items() if axis != "seed"},
                "trials": seeds[trial.cell_id],
                **asdict(forecast),
                "why": forecast.why or plan.infeasible.get(trial.trial_id, ""),
                "cost": _cost(forecast.duration_s, per_hour),
                "cost_to_target": _cost(forecast.target_s, per_hour),
                "offer": asdict(offer) if offer else None,
            }
        )
    priced = [row for row in rows if row["cost_to_target"]]
    # A cell is efficient if no other one is at least as fast and at least as cheap.
    points = [(row["target_s"]["value"], row["cost_to_target"]["value"]) for row in priced]
    for row in rows:
        row["is_efficient"] = False
    for row, (target_s, cost) in zip(priced, points, strict=True):
        as_good = {point for point in points if point[0] <= target_s and point[1] <= cost}
        row["is_efficient"] = as_good == {(target_s, cost)}
    return rows


def _why_unsure(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if much of the trials is beside their training, which makes their length uncertain."""
    known = [cell for cell in cells if cell["duration_s"] and cell["train_s"]]
    beside_s = [cell["duration_s"]["value"] - cell["train_s"]["value"] for cell in known]
    if sum(beside_s) > _MUCH * sum(cell["duration_s"]["value"] for cell in known):
        span = "–".join(dict.fromkeys(f"{seconds:.1f}" for seconds in (min(beside_s), max(beside_s))))
        yield f"trial s is the less certain because {span} s of it are the start of processes, evaluation and files"


def _cost(seconds: Estimate | None, per_hour: float | None) -> dict[str, float] | None:
    return None if seconds is None or per_hour is None else asdict(seconds.times(per_hour / 3600))


def _names(groups: Collection[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a name for each group of cells with the same figures, with their rules only where groups need them."""
    short = Counter(same[0]["label"] for same in groups)
    rules = [", ".join(dict.fromkeys(str(cell["axes"].get("lr_rule")) for cell in same)) for same in groups]
    return [
        same[0]["label"] if short[same[0]["label"]] == 1 else f"{same[0]['label']} {rule}"
        for same, rule in zip(groups, rules, strict=True)
    ]


def _has_speed(cell: Mapping[str, Any]) -> bool:
    return bool(cell["samples_per_s"]) and cell["fits"] != "no"


def _forecast_line(
    name: str, same: Sequence[Mapping[str, Any]], first: Mapping[str, Any] | None, currency: str | None
) -> dict[str, Any]:
    """Return the line of the table for cells with the same figures; `first` is the cell that speed-ups compare with."""
    cell, gain = same[0], ""
    if first and _has_speed(cell):
        gain = f"{number(cell['samples_per_s']['value'] / first['samples_per_s']['value'])}×"
    return {
        "cell": name,
        "trials": sum(other["trials"] for other in same),
        "fits": cell["fits"] if cell["peak_memory_gb"] or (cell["why"] and not cell["samples_per_s"]) else "",
        "peak GB": _about(cell["peak_memory_gb"]),
        "samples/s": _about(cell["samples_per_s"]),
        "speed-up": gain,
        # As uncertain as the speed, and the cost as the trial's length.
        "train s": _value(cell["train_s"]),
        "trial s": _about(cell["duration_s"]),
        f"cost {currency or ''}".rstrip(): _value(cell["cost"]),
        "offer": printable_line(cell["offer"]["name"]) if cell["offer"] else "",
        "target s": _about(cell["target_s"]),
        "target cost": _about(cell["cost_to_target"]) + (" *" if cell["is_efficient"] else ""),
        "from": cell["source"],
    }


_FAR = 1.0  # a wider interval is a range: nothing is more than 100% below


def _value(estimate: Mapping[str, float] | None) -> str:
    return "" if estimate is None else number(estimate["value"])


def _about(estimate: Mapping[str, float] | None) -> str:
    """Return `12.3 ±2%`: the estimate, and how far its interval reaches; `12.3 (4–37)` if that is far."""
    if estimate is None:
        return ""
    value, lo, hi = estimate["value"], estimate["lo"], estimate["hi"]
    if not value:  # what costs nothing has no relative error
        return number(value)
    reach = max(hi / value, value / lo) - 1 if lo > 0 else hi / value - 1
    if reach > _FAR:
        ends = (number(float(f"{end:.2g}")) for end in (lo, hi))
        return f"{number(value)} ({'–'.join(end.rstrip('0').rstrip('.') if '.' in end else end for end in ends)})"
    return f"{number(value)} ±{reach:.0%}" if reach else number(value)
