"""The input of the report, and its facts in words: what was trained, on which machines, with what outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from orchestrator.analysis.validity import is_valid
from orchestrator.config.schema import value_at
from orchestrator.decision.recommendation import Recommendation
from orchestrator.report.plot import is_on_cpu
from orchestrator.store.results import Finding
from orchestrator.text import numbers
from orchestrator.text.numbers import one_line
from orchestrator.text.rows import TextTable, not_ok, seeds_in_words, varying
from sweeps.axes import is_number
from sweeps.identity import LOOPS
from sweeps.status import Status


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The frames of a sweep, as returned by `analysis.trials.collect`, with its decision and its provenance."""

    trials: pd.DataFrame
    cells: pd.DataFrame
    """At least one row."""
    recommendation: Recommendation
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial_id", "epoch", "loss"]))
    """The learning curves, as returned by `analysis.curves.curves_frame`."""
    further: Sequence[TextTable] = ()
    """Tables of claims and scaling, where the sweep has any."""
    branches: pd.DataFrame | None = None
    """As returned by `tables.critical_batch.branches`; None without branches."""
    driver: Mapping[str, Any] = field(default_factory=dict)
    """The last driver: host, versions, commit, command."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The config that it ran, as of `checked_sweep.fingerprint`."""
    findings: Sequence[Finding] = ()
    """Damaged files in the results directory."""

    @property
    def discussed(self) -> list[str]:
        """The recommended cell and its baseline, which plots of some cells show first."""
        return [cell_id for cell_id in (self.recommendation.cell_id, self.recommendation.baseline_cell_id) if cell_id]

    @property
    def sweep(self) -> str:
        """The sweep's name."""
        return str(self.cells["sweep"].iloc[0])


_MOST = 50
"""The most lines of a list; the tables hold all."""


def trained(trials: pd.DataFrame, fingerprint: Mapping[str, Any], most: int = 2000) -> str:
    """Return what all trials trained and for how long: `small_cnn on digits, 10 epochs`; axes are left out.

    A command is cut to `most` characters.
    """

    # What differs between trials is an axis, and named with the cells.
    def fixed(key: str) -> Any:
        is_axis = any(f"axes.{axis}" in trials for axis in (key, key.partition(".")[0]))
        return None if is_axis else value_at(fingerprint, f"config.{key}")

    # A command is its own description; a function of the user's has only its name.
    words, target = fixed("trainable.argv"), fixed("trainable._target_")
    if words:
        what = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    else:
        names = (fixed("model.name"), fixed("data.name")) if target in LOOPS else (target,)
        what = " on ".join(map(str, filter(None, names)))
    lengths = ((unit, fixed(f"budget.{unit}")) for unit in ("epochs", "samples", "tokens", "steps", "seconds"))
    length = next((f"{n:,.12g} {unit if n != 1 else unit[:-1]}" for unit, n in lengths if is_number(n)), "")
    return ", ".join(filter(None, (one_line(what, most), length)))


def key_facts(data: ReportData) -> list[tuple[str, str]]:
    """Return the facts under the title, as (name, value)."""
    cells, trials = data.cells, data.trials
    # The numbers of trials, so that a reader sees failures before the figures.
    counts = trials["status"].value_counts()
    ok = int(counts.get(Status.OK.value, 0))
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != Status.OK.value)
    timed = int(is_valid(trials["timing_valid"]).sum())
    on_cpu = " (gpus counts worker processes)" if is_on_cpu(cells) else ""
    finished = trials["finished_at"].replace("", None).dropna()
    facts = [
        ("training", trained(trials, data.fingerprint, most=60)),
        ("device", ", ".join(map(str, cells["device"].dropna().unique())) + on_cpu),
        ("trials", f"{len(trials)}: {ok} ok" + (f", {others}" if others else "")),
        ("cells", f"{len(cells)}, {seeds_in_words(cells)} each"),
        ("timings valid", f"{timed} of {ok}" + (", none disturbed" if timed == ok else "")),
        ("last trial ended", str(finished.max())[:16].replace("T", " ") + " UTC" if len(finished) else "not known"),
    ]
    return facts if facts[0][1] else facts[1:]


def provenance(
    trials: pd.DataFrame, driver: Mapping[str, Any], fingerprint: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return training, machine, versions and commit as (name, value); differing values are listed."""
    prefix = "provenance."
    measured = {"training": trained(trials, fingerprint or {}), "device": _distinct(trials["device_model"])}
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
