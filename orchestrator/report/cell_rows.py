"""The rows that the charts of cells draw and the page filters: one for each cell, in the order of the tables.

Each function below makes a group of fields, which its docstring names. Charts and `page.js` find them by these names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.by_seed import by_seed
from orchestrator.analysis.objective import time_s
from orchestrator.analysis.scaling_loss import LOST
from orchestrator.analysis.validity import with_valid_timings
from orchestrator.decision.eligibility import speeds_known
from orchestrator.decision.recommendation import Recommendation
from orchestrator.report import plot as vega
from orchestrator.statistics.intervals import logs, mean_interval
from orchestrator.tables.candidates import calls
from orchestrator.text.cell_labels import ALWAYS, Row, cell_label, gpus_in_words, in_order, named, varying
from sweeps.gpus import cost_of
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.status import Status

_ENDS = ("", "_lo", "_hi")  # of the names of a value and of the ends of its interval


def with_times(cells: pd.DataFrame, trials: pd.DataFrame, price_per_gpu_hour: float | None = None) -> pd.DataFrame:
    """Return the cells with the time that the recommendation compares, `time_s` and the ends of its interval.

    `cost` is that of this time: GPU-hours without a price, and NaN on CPUs.
    """
    timed = with_valid_timings(trials)
    ok = timed[timed["status"] == Status.OK.value]
    seconds = mean_interval(logs(by_seed(cells["cell_id"], ok.assign(time_s=time_s(ok, None).values), "time_s")))
    ends = zip(_ENDS, (seconds.point, seconds.lo, seconds.hi), strict=True)
    times = {f"time_s{end}": np.exp(values) for end, values in ends}
    held = cells["cell_id"].map(trials.groupby("cell_id")["gpus_held"].mean()).where(cells["device"] != "cpu")
    hours = times["time_s"] * held / 3600
    return cells.assign(**times, cost=hours if price_per_gpu_hour is None else cost_of(hours, price_per_gpu_hour))


def cell_rows(cells: pd.DataFrame, recommendation: Recommendation) -> list[dict[str, Any]]:
    """Return a row for each cell `with_times`. NaN means not measured."""
    differing, metric = varying(cells), recommendation.terms.metric
    # The page pairs these rows with those of its table, which has the same order.
    known = cells.assign(speed_known=speeds_known(cells))
    records = in_order(known, [*differing, "device_batch_size", "lr_rule", "gpus"]).to_dict("records")
    first = _first(records, recommendation)
    columns = _columns_of_figures(recommendation)
    rows: list[dict[str, Any]] = []
    for index, record in enumerate(records):
        row = _names(record, differing) | _axes(record, differing) | _part(record, recommendation)
        row |= {field: record.get(column, math.nan) for field, column in columns.items()}
        # Charts with few bars begin with the first cell.
        rows.append(row | {"order": index if record is not first else -1, "rate_rank": _rate_rank(record, first)})
    panels = {"panel": _of_speed(cells), "target_panel": [*differing, "lr_rule"], "count_panel": [*differing, "gpus"]}
    for field, axes in panels.items():
        for row, panel in zip(rows, _panels(field, axes, records, first, cells), strict=True):
            row |= panel
    on_front = _front(pd.DataFrame(rows), metric.sign)
    for index, row in enumerate(rows):
        row["on_front"] = index in on_front
    return rows


def _names(record: Row, differing: Sequence[str]) -> dict[str, Any]:
    """Return the names of a cell: `label`, and `cell` with the further axes that differ in the sweep.

    `batch_cell` leaves out rule and multiplier, on which memory does not depend.
    """
    of_memory = [column for column in differing if column != "lr_multiplier"]
    without_rule = {column: value for column, value in record.items() if column != "lr_rule"}
    return {
        "label": vega.label_of(cell_label(record)),
        "cell": vega.label_of(cell_label(record, differing)),
        "batch_cell": vega.label_of(cell_label(without_rule, of_memory)),
    }


def _axes(record: Row, differing: Sequence[str]) -> dict[str, Any]:
    """Return a cell's values on the axes: `gpus`, `rule`, `global_batch`, and `axis:NAME` for each filter.

    `fixed_batch` is the batch that stays the same with more GPUs: per GPU for weak scaling, else the global one.
    """
    filters = {f"axis:{name}": vega.filter_value(record[name]) for name in (*differing, *ALWAYS)}
    return filters | {
        "gpus": record["gpus"],
        "rule": vega.label_of(str(record["lr_rule"])),
        "global_batch": record["global_batch_size"],
        "fixed_batch": record[FIXED_SIDE[record["scaling"]]],
    }


def _part(record: Row, recommendation: Recommendation) -> dict[str, Any]:
    """Return a cell's part in the comparison: its `role`, and whether its scaling is over another cell, `compared`.

    `timing_valid` is None if unknown; `speed_known` says whether the timing of the baseline is valid, too. `ideal` is
    the scaling without losses.
    """
    return {
        "role": role_of(record, recommendation),
        "compared": record["cell_id"] != record["baseline_cell_id"],
        "timing_valid": None if pd.isna(record["timing_valid"]) else bool(record["timing_valid"]),
        "speed_known": bool(record["speed_known"]),
        "ideal": record["speedup"] / record["efficiency"],
    }


def _columns_of_figures(recommendation: Recommendation) -> Mapping[str, str]:
    """Return the columns of what was measured, by field. `_lo` and `_hi` end 95% intervals.

    `metric` is that of choice, `accuracy` that on the test set. `deciding_s` is the time that the recommendation
    compares: of the training, or the total. `to_target` is in seconds, `memory` in GB; the others are shares.
    """
    deciding = "total_s" if recommendation.deciding_time == "total_time" else "time_s"
    with_ends = {"metric": recommendation.terms.metric.name, "deciding_s": deciding}
    with_ends |= {"accuracy": "accuracy", "speedup": "speedup"}
    return {
        **{f"{field}{end}": f"{column}{end}" for field, column in with_ends.items() for end in _ENDS},
        **{share: share for share in ("efficiency", *LOST)},
        "to_target": "time_to_target_s",
        "memory": "peak_memory_gb",
    }


def _first(records: Sequence[Row], recommendation: Recommendation) -> Row | None:
    """Return the cell that comes first in charts: the chosen one, else the one with the largest scaling."""
    compared = [row for row in records if row["speedup"] == row["speedup"] and row["timing_valid"] is not False]
    largest = max(compared, key=lambda row: float(row["speedup"]), default=None)
    return next((row for row in records if row["cell_id"] == recommendation.cell_id), largest)


def _rate_rank(record: Row, first: Row | None) -> int:
    """Return `rate_rank`: in how many of rule and multiplier a cell differs from the first one."""
    # Cells that differ from the chosen one in the rate alone have its speed: its own rate is drawn, if any.
    return sum(first is None or record[name] != first[name] for name in ("lr_rule", "lr_multiplier"))


def _panels(
    field: str, axes: Sequence[str], records: Sequence[Row], first: Row | None, cells: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return for each cell the title of its panel, by this field, with `_order` and `_place`, which sort the panels."""
    titles = [_panel_title(record, axes, cells) for record in records]
    ranks, places = vega.ranked_panels(records, titles, axes, first), vega.panel_places(cells, axes, _panel_title)
    return [
        {field: title, f"{field}_order": rank, f"{field}_place": places[title]}
        for title, rank in zip(titles, ranks, strict=True)
    ]


def _of_speed(cells: pd.DataFrame) -> list[str]:
    """Return the columns of the panels of scaling: axes in which compared cells differ, without learning rates."""
    # A step does the same work at any rate, and under all of these rules.
    rules = [] if set(cells["lr_rule"]) <= SAME_AT_REFERENCE else ["lr_rule"]
    compared = cells[cells["speedup"].notna() & (cells["cell_id"] != cells["baseline_cell_id"])]
    columns = [column for column in varying(cells) if column != "lr_multiplier"]
    return [column for column in [*columns, *rules] if compared[column].nunique(dropna=False) > 1]


def _panel_title(row: Row, columns: Sequence[str], cells: pd.DataFrame) -> str:
    others = [column for column in columns if column not in ("lr_rule", "gpus")]
    parts = [
        gpus_in_words(row["gpus"], on_cpu=vega.is_on_cpu(cells)) if "gpus" in columns else "",
        str(row["lr_rule"]) if "lr_rule" in columns else "",
        named(row, others),
    ]
    return vega.label_of(", ".join(filter(None, parts)))


def _front(rows: pd.DataFrame, sign: float) -> set[int]:
    """Return the rows `on_front`: of the cells than which no other one is both faster and better, by valid timings."""
    rows = rows.assign(score=sign * rows["metric"])
    known = rows[rows["timing_valid"].eq(True) & rows["deciding_s"].notna() & rows["score"].notna()]
    # A cell is on the front if no faster one has as good a score.
    fastest_first = known.sort_values(["deciding_s", "score"], ascending=[True, False], kind="stable")
    best = fastest_first["score"].cummax().shift(fill_value=-math.inf)
    return set(fastest_first.index[fastest_first["score"] > best])


def role_of(row: Row, recommendation: Recommendation) -> str:
    """Return what the headline calls a cell, as in `use now, baseline`; empty for others."""
    is_baseline = row["cell_id"] == recommendation.common_baseline_id
    return ", ".join(filter(None, (calls(recommendation).get(row["cell_id"]), "baseline" if is_baseline else "")))
