"""What a Hydra sweeper receives for a whole sweep: one number from its summary."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.storage.layout import Layout

BEST = {"max": max, "min": min}


def objective_of(results_dir: Path, section: Mapping[str, Any]) -> float | None:
    """The best figure of any ok cell in the column `section["column"]` of `summary.csv`.

    None if no column is asked for or no ok cell has the figure: Hydra's Optuna sweeper takes that as a failure (and
    stops with an error at a NaN). Raises KeyError, listing the columns, if the table has no such column.
    """
    column = section.get("column")
    if column is None:
        return None
    path = Layout(results_dir).table("summary.csv")
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and column not in rows[0]:
        raise KeyError(f"objective.column={column!r} is not one of {', '.join(rows[0])}")
    figures = [float(row[column]) for row in rows if row["status"] == "ok" and row[column]]
    return BEST[section["best"]](figures) if figures else None
