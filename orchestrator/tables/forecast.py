"""The forecasts of a sweep's cells, made before they ran, beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from orchestrator.store.record import TrialRecord
from orchestrator.text.numbers import number
from orchestrator.text.rows import Document, TextTable, cell_label, without_empty
from sweeps.status import Status

_MEASURED = {"peak_memory_gb": "peak GB", "samples_per_s": "samples/s", "train_s": "train s", "wall_s": "trial s"}
"""The figures of a trial that are forecast, with their headings."""


def forecast_document(records: Iterable[TrialRecord]) -> Document | None:
    """Return the document on the forecasts of these trials; None if none was made."""
    rows = against_measured(records)
    if rows.empty:
        return None
    table = forecast_error_table(rows)
    return Document(text=table.document(table.title), tables=[table], rows=rows)


def against_measured(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """Return a row per cell that had a forecast, with the median of its trials that are ok, and the forecast's ends.

    The columns of a figure are `train_s` (measured), `train_s_forecast`, `train_s_lo`, `train_s_hi`.
    """
    cells: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.forecast:
            cells.setdefault(record.cell_id, []).append(record)
    return pd.DataFrame([_row(trials) for trials in cells.values()])


def _row(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    first = trials[0]
    ok = [trial for trial in trials if trial.status is Status.OK]
    row: dict[str, Any] = {
        "cell_id": first.cell_id,
        "gpus": first.gpus,
        "device_batch_size": first.device_batch_size,
        "lr_rule": first.lr_rule,
        "status": min((trial.status for trial in trials), key=list(Status).index).value,
        "fits": first.forecast["fits"],
    }
    for name in _MEASURED:
        values = [trial.wall_s if name == "wall_s" else trial.metrics.get(name) for trial in ok]
        known = [float(value) for value in values if value is not None]
        estimate = first.forecast.get(name) or {}
        row |= {
            name: statistics.median(known) if known else None,
            f"{name}_forecast": estimate.get("value"),
            f"{name}_lo": estimate.get("lo"),
            f"{name}_hi": estimate.get("hi"),
        }
    return row


def forecast_error_table(rows: pd.DataFrame) -> TextTable:
    """Return the forecasts beside what was measured, one line per cell."""
    columns: dict[str, list[str]] = {
        "cell": [cell_label(row) for row in rows.to_dict("records")],
        "status": list(rows["status"]),
        "fits": ["" if fits == "unsure" else fits for fits in rows["fits"]],
    }
    inside = compared = 0
    for name, heading in _MEASURED.items():
        figures = rows[[name, f"{name}_forecast", f"{name}_lo", f"{name}_hi"]].astype("float64").to_numpy()
        texts = []
        for measured, forecast, lo, hi in figures:
            both = measured == measured and forecast == forecast
            compared += both
            inside += bool(both and lo <= measured <= hi)
            texts.append(f"{number(measured)} ({measured / forecast - 1:+.0%})" if both else "")
        columns[heading] = texts
    return TextTable(
        name="forecast",
        title="Forecast against measured",
        about=["What was measured, and in brackets how much more that is than the forecast made before the sweep."],
        frame=without_empty(columns),
        remarks=[f"{inside} of {compared} figures are within their 90% interval."] if compared else [],
    )
