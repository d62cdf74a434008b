"""Rows as CSV that a spreadsheet takes for data, and not for formulas."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.text.figures import not_a_formula


def csv_bytes(rows: Sequence[Mapping[str, Any]], *, most: int | None = None) -> bytes:
    """The rows with their heading; empty for what is missing. `most` bytes keep as many whole rows as fit."""
    file = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([not_a_formula(name) for name in names])
    for row in rows:
        before = file.tell()
        writer.writerow([_value(row[name]) for name in names])
        if most is not None and file.tell() > most:
            file.truncate(before)
            break
    return file.getvalue().encode(errors="replace")


def _value(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else not_a_formula(value)
