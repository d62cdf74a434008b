"""The documents on what was said before a sweep, beside what was measured: its claims with verdicts, its forecasts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from orchestrator.decision.claim_expressions import Claimed
from orchestrator.decision.claim_verdicts import UNDECIDED_BY_INTERVAL, Verdict, counts_of
from orchestrator.store.record import TrialRecord
from orchestrator.text import numbers
from orchestrator.text.cell_labels import cell_label, differing_axes
from orchestrator.text.text_tables import Document, TextTable, without_empty
from sweeps.status import Status

CLAIMS = "claims.md"

_IN_WORDS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least", "==": "equal to"}
_TOLERATED = {"<": "+", ">": "−", "=": "±"}
"""The sign of a margin, by the first character of the operator."""

_ONE_PROCESS = (
    "In one process: one process timed all seeds of a cell, or it is unknown how many did. Processes differ in speed by"
    " chance. The interval does not include that difference, so it is too narrow and the verdict too certain."
    " workers=per_seed uses another process for each seed."
)


def claims_document(verdicts: Sequence[Verdict], sweep: str) -> Document:
    """Return the document with a row for each claim: its sentence, its verdict, and both sides, compared."""
    # A claim without a measured seed has neither a ratio nor a difference.
    by_ratio = [verdict.by_ratio for verdict in verdicts if verdict.n]
    compared = "ratio" if all(by_ratio) else "ratio (×) or difference" if any(by_ratio) else "difference"
    decided = sum(verdict.why in ("", UNDECIDED_BY_INTERVAL) for verdict in verdicts)
    about = [
        "Measured and claimed are the two sides of the expression, means over the seeds; next to them is their"
        f" {compared} with its 95% interval, paired by seed. A claim is confirmed if the whole interval agrees with it,"
        " and refuted if none of it does."
    ]
    # Several claims together are wrong more often than each of them.
    if decided > 1:
        about.append(
            f"Each verdict is wrong by chance in at most 5% of sweeps, but of {decided} claims some verdict in up to"
            f" {1 - 0.95**decided:.0%}."
        )
    if any(verdict.one_process for verdict in verdicts):
        about.append(_ONE_PROCESS)
    rows = [_claim_row(verdict, compared) for verdict in verdicts]
    table = TextTable(name="claims", title="Claims", about=about, frame=without_empty(pd.DataFrame(rows)))
    counts = ", ".join(f"{count} {word}" for word, count in counts_of(verdicts).items())
    line = ("Claims", f"{counts} (tables/{CLAIMS})")
    return Document(text=table.document(f"Claims: {sweep}"), tables=[table], line=line)


def _claim_row(verdict: Verdict, compared: str) -> dict[str, str]:
    """Return a claim's row. The right side, which may be measured, has its margin: `at least 0.9100 − 0.01`."""
    claim = verdict.claim
    order = Claimed.parse(claim.expression).order
    tolerated = f" {_TOLERATED[order[0]]} {claim.margin:g}" if claim.margin else ""
    sign = "×" if verdict.by_ratio else ""
    seeds = f"{verdict.n}{' in one process' if verdict.one_process and verdict.n else ''}"
    if verdict.seeds_to_settle:
        seeds += f"; {verdict.seeds_to_settle} would settle it"
    return {
        "claim": claim.sentence,
        "verdict": f"{verdict.verdict}: {verdict.why}" if verdict.why else verdict.verdict,
        "measured": _four(verdict.left) if verdict.n else "",
        "claimed": f"{_IN_WORDS[order]} {_four(verdict.right)}{tolerated}" if verdict.n else "",
        compared: numbers.with_interval(verdict.point, verdict.lo, verdict.hi, _four, sign),
        "seeds": seeds,
        "about": claim.about,
        "expression": claim.expression,
    }


def _four(value: float) -> str:
    """Return four significant digits, but all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.4g}"


_MEASURED = {"peak_memory_gb": "peak GB", "samples_per_s": "samples/s", "train_s": "train s", "wall_s": "trial s"}
"""The figures of a trial that are forecast, with their headings."""


def forecast_document(records: Iterable[TrialRecord]) -> Document | None:
    """Return the document on the forecasts of these trials; None if none was made."""
    rows = against_measured(records)
    if rows.empty:
        return None
    table = forecast_error_table(rows)
    return Document(text=table.document(table.title), tables=[table], rows=rows.drop(columns="cell"))


def against_measured(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """Return a row per cell that had a forecast, with the median of its trials that are ok, and the forecast's ends.

    The columns of a figure are `train_s` (measured), `train_s_forecast`, `train_s_lo`, `train_s_hi`.
    """
    cells: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.forecast and not record.same_as:  # a copy measured nothing
            cells.setdefault(record.cell_id, []).append(record)
    axes = differing_axes(trials[0].axes for trials in cells.values())
    return pd.DataFrame([_cell_row(trials, axes) for trials in cells.values()])


def _cell_row(trials: Sequence[TrialRecord], axes: Sequence[str]) -> dict[str, Any]:
    first = trials[0]
    ok = [trial for trial in trials if trial.status is Status.OK]
    columns = {"gpus": first.gpus, "device_batch_size": first.device_batch_size, "lr_rule": first.lr_rule}
    row: dict[str, Any] = {
        "cell_id": first.cell_id,
        "cell": cell_label({**first.axes, **columns}, axes),
        **columns,
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
        "cell": list(rows["cell"]),
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
            texts.append(f"{numbers.number(measured)} ({measured / forecast - 1:+.0%})" if both else "")
        columns[heading] = texts
    return TextTable(
        name="forecast",
        title="Forecast against measured",
        about=["What was measured, and in brackets how much more that is than the forecast made before the sweep."],
        frame=without_empty(columns),
        remarks=[f"{inside} of {compared} figures are within their 90% interval."] if compared else [],
    )
