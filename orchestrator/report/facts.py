"""The facts of the report in words: what was trained, on which machines, with what outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.analysis.validity import is_valid
from orchestrator.report.plot import is_on_cpu
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.text import numbers
from orchestrator.text.numbers import one_line
from orchestrator.text.rows import not_ok, seeds_in_words, varying
from sweeps.status import Status

_MOST = 50
"""The most lines of a list; the tables hold all."""


def key_facts(end: SweepEnd) -> list[tuple[str, str]]:
    """Return the facts under the title, as (name, value)."""
    cells, trials = end.cells, end.trials
    # The numbers of trials, so that a reader sees failures before the figures.
    counts = trials["status"].value_counts()
    ok = int(counts.get(Status.OK.value, 0))
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != Status.OK.value)
    timed = int(is_valid(trials["timing_valid"]).sum())
    on_cpu = " (gpus counts worker processes)" if is_on_cpu(cells) else ""
    finished = trials["finished_at"].replace("", None).dropna()
    facts = [
        ("training", end.trained(most=60)),
        ("device", ", ".join(map(str, cells["device"].dropna().unique())) + on_cpu),
        ("trials", f"{len(trials)}: {ok} ok" + (f", {others}" if others else "")),
        ("cells", f"{len(cells)}, {seeds_in_words(cells)} each"),
        ("timings valid", f"{timed} of {ok}" + (", none disturbed" if timed == ok else "")),
        ("last trial ended", str(finished.max())[:16].replace("T", " ") + " UTC" if len(finished) else "not known"),
    ]
    return facts if facts[0][1] else facts[1:]


def provenance(end: SweepEnd) -> list[tuple[str, str]]:
    """Return training, machine, versions and commit as (name, value); differing values are listed."""
    trials, driver, prefix = end.trials, end.driver, "provenance."
    measured = {"training": end.trained(), "device": _distinct(trials["device_model"])}
    for column in trials.columns:
        if column.startswith(prefix):
            measured[column.removeprefix(prefix).replace("_", " ")] = _distinct(trials[column])
    packages = driver.get("packages")
    of_driver = {key: value for key, value in driver.items() if key not in ("packages", "command", "arguments")}
    of_driver |= dict(packages) if isinstance(packages, Mapping) else {}
    # A fact of the ranks replaces the driver's, which may run on another machine.
    facts = {str(key).replace("_", " "): str(value) for key, value in of_driver.items() if value} | measured
    return [(key, one_line(facts[key], 2000)) for key in dict.fromkeys([*measured, *facts]) if facts[key]]


def _distinct(column: pd.Series[Any]) -> str:
    values = list(dict.fromkeys(map(numbers.fact, column.dropna())))
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more values" if len(values) > 4 else "")


def not_ok_lines(cells: pd.DataFrame) -> list[str]:
    """Return the lines on cells that are not ok, and how many more there are."""
    lines = not_ok(cells, varying(cells))
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"{len(lines) - _MOST} more lines: see summary.csv"]
