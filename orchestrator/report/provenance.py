"""What the figures of a report come from: training, machine, versions, commit and command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.config.sections import value_at
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from sweeps.number import is_number

_OWN_LOOP = "trainables.supervised.training:train"
"""The trainable of which `model` and `data` say what it trains."""


def trained(trials: pd.DataFrame, asked: Mapping[str, Any], most: int = 2000) -> str:
    """What all trials trained, and for how long: `small_cnn on digits, 10 epochs`; without what is an axis.

    A command is cut to `most` characters.
    """

    def fixed(key: str) -> Any:
        is_axis = any(f"axes.{axis}" in trials for axis in (key, key.partition(".")[0]))
        return None if is_axis else value_at(asked, f"config.{key}")

    words, target = fixed("trainable.argv"), fixed("trainable._target_")
    if words:
        what = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    else:
        names = (fixed("model.name"), fixed("data.name")) if target == _OWN_LOOP else (target,)
        what = " on ".join(map(str, filter(None, names)))
    lengths = ((unit, fixed(f"budget.{unit}")) for unit in ("epochs", "samples", "steps", "seconds"))
    length = next((f"{n:,g} {unit if n != 1 else unit[:-1]}" for unit, n in lengths if is_number(n)), "")
    return ", ".join(filter(None, (one_line(what, most), length)))


def provenance(
    trials: pd.DataFrame, driver: Mapping[str, Any], asked: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """As (what, value); values that trials differ in are all told."""
    prefix = "provenance."
    names = [column for column in trials.columns if column.startswith(prefix)]
    found = [("training", trained(trials, asked or {})), ("device", _distinct(trials["device_model"]))]
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
