"""What the figures of a report come from: machine, versions, commit and command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.text import figures
from orchestrator.text.figures import one_line


def provenance(trials: pd.DataFrame, driver: Mapping[str, Any]) -> list[tuple[str, str]]:
    """As (what, value); values that trials differ in are all told."""
    prefix = "provenance."
    names = [column for column in trials.columns if column.startswith(prefix)]
    found = [("device", _distinct(trials["device_model"]))]
    found += [(column.removeprefix(prefix).replace("_", " "), _distinct(trials[column])) for column in names]
    packages = driver.get("packages")
    facts = {key: value for key, value in driver.items() if key != "packages"}
    facts |= dict(packages) if isinstance(packages, Mapping) else {}
    known = {key for key, _ in found}
    found += [(str(key).replace("_", " "), str(value)) for key, value in facts.items() if key not in known and value]
    return [(key, one_line(value, 2000)) for key, value in found if value]


def _distinct(column: pd.Series[Any]) -> str:
    values = list(dict.fromkeys(map(figures.fact, column.dropna())))
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more" if len(values) > 4 else "")
